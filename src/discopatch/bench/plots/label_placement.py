"""Where labels go so that they cover neither each other nor what they name."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ANGLES = np.linspace(0, 2 * np.pi, 24, endpoint=False)
_REACHES = (1.5, 5.0, 10.0, 16.0, 23.0, 31.0, 40.0, 50.0, 62.0)  # points between a mark and its label
_ROUNDS = 12
_GAP = 0.7  # points around each label that stay free


def place_labels(marks: Array, radii: Array, sizes: Array, box: tuple[float, float, float, float]) -> Array:
    """Centres of labels, (n, 2), for round marks at (n, 2): all in points, within left, bottom, right, top.

    One label after the other moves to where it costs least, given all others, until none wants to move.
    """
    if not len(marks):
        return marks
    candidates = np.stack([_around(*each) for each in zip(marks, radii, sizes, strict=True)])  # (n, candidates, 2)
    squares = 2 * np.stack([radii, radii], axis=1)
    costs = np.stack([_own_costs(candidates[i], sizes[i], marks, squares, i, box) for i in range(len(marks))])
    chosen = costs.argmin(1)
    crowd = np.exp(-np.linalg.norm(marks[:, None] - marks, axis=2) / 20).sum(1)
    for _ in range(_ROUNDS):
        before = chosen.copy()
        for i in np.argsort(-crowd):
            others = np.arange(len(marks)) != i
            centres = candidates[others, chosen[others]]
            overlap = _shared_areas(candidates[i], sizes[i] + 2 * _GAP, centres, sizes[others]).sum(1)
            lines = _line_points(marks[others], centres)
            crossed = (
                _enter(_line_points(marks[i], candidates[i])[:, None], centres, sizes[others])
                | _enter(lines[None], candidates[i][:, None], sizes[i])
                | _cross(marks[i], candidates[i][:, None], marks[others], centres)
            )
            chosen[i] = (costs[i] + 50 * overlap + 150 * crossed.sum(1)).argmin()
        if (chosen == before).all():
            break
    centres = candidates[np.arange(len(marks)), chosen]
    return np.asarray(centres, np.float64)


def _around(mark: Array, radius: float, size: Array) -> Array:
    """(candidates, 2): centres of a label around its mark, nearest first."""
    directions = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
    to_edge = np.abs(directions) @ (size / 2)  # keeps the whole label outside of the circle
    return np.concatenate([mark + directions * (radius + reach + to_edge)[:, None] for reach in _REACHES])


def _own_costs(centres: Array, size: Array, marks: Array, squares: Array, own: int, box: tuple[float, ...]) -> Array:
    """(candidates,): what each costs whatever the other labels do: out of the box, over marks, far from its own."""
    low, high = centres - size / 2, centres + size / 2
    outside = (np.maximum(0, box[:2] - low) + np.maximum(0, high - box[2:])).sum(1)
    covered = _shared_areas(centres, size + 2 * _GAP, marks, squares).sum(1)
    others = np.arange(len(marks)) != own
    crossed = _enter(_line_points(marks[own], centres)[:, None], marks[others], squares[others]).sum(1)
    distance = np.linalg.norm(centres - marks[own], axis=1)
    steep = np.abs(centres[:, 1] - marks[own, 1]) / (distance + 1e-9)  # beside reads better than above
    return np.asarray(1000 * outside + 20 * covered + 15 * crossed + 1.5 * distance + 2 * steep)


def _shared_areas(centres: Array, size: Array, others: Array, sizes: Array) -> Array:
    """(candidates, others): the area that two boxes share."""
    return np.asarray(np.clip((size + sizes) / 2 - np.abs(centres[:, None] - others), 0, None).prod(2))


def _line_points(start: Array, end: Array) -> Array:
    """(..., 2) -> (..., 17, 2): points on most of the line from a mark to its label."""
    start, end = np.broadcast_arrays(start, end)
    return np.asarray(start[..., None, :] + np.linspace(0.1, 0.9, 17)[:, None] * (end - start)[..., None, :])


def _enter(points: Array, centres: Array, sizes: Array) -> Flags:
    """Whether any of the points (..., 17, 2) lies in a box (..., 2)."""
    inside = np.abs(points - centres[..., None, :]) < (sizes / 2 + _GAP)[..., None, :]
    return np.asarray(inside.all(-1).any(-1))


def _cross(start: Array, end: Array, starts: Array, ends: Array) -> Flags:
    """Whether lines cross: both ends of each lie on different sides of the other."""
    first = _side(start, end, starts) * _side(start, end, ends) < 0
    return first & (_side(starts, ends, start) * _side(starts, ends, end) < 0)


def _side(start: Array, end: Array, point: Array) -> Array:
    """Positive to the left of a line, negative to its right."""
    (x, y), (u, v) = np.moveaxis(end - start, -1, 0), np.moveaxis(point - start, -1, 0)
    return np.asarray(x * v - y * u)
