"""Where labels go so that they cover neither each other nor what they name."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ANGLES = np.linspace(0, 2 * np.pi, 24, endpoint=False)
_REACHES = (1.5, 5.0, 10.0, 16.0, 23.0, 31.0, 40.0, 50.0, 62.0)  # points between a mark and its label
_ROUNDS = 12
_GAP = 0.7  # points around each label that stay free


def place(marks: Array, radii: Array, sizes: Array, box: tuple[float, float, float, float]) -> Array:
    """Centres of labels, (n, 2), for round marks at (n, 2): all in the same unit, within left, bottom, right, top.

    One label after the other moves to where it costs least, given all others, until none wants to move.
    """
    if not len(marks):
        return marks
    options = np.stack([_options(*each) for each in zip(marks, radii, sizes, strict=True)])  # (n, candidates, 2)
    costs = np.stack([_fixed_costs(options[i], sizes[i], marks, radii, i, box) for i in range(len(marks))])
    chosen = costs.argmin(1)
    for _ in range(_ROUNDS):
        before = chosen.copy()
        for i in np.argsort(-_crowd(marks)):
            others = np.arange(len(marks)) != i
            centres = options[others, chosen[others]]
            overlap = _overlaps(options[i], sizes[i] + 2 * _GAP, centres, sizes[others]).sum(1)
            crossed = _crossings(options[i], sizes[i], marks[i], centres, sizes[others], marks[others]).sum(1)
            chosen[i] = (costs[i] + 50 * overlap + 150 * crossed).argmin()
        if (chosen == before).all():
            break
    found: Array = options[np.arange(len(marks)), chosen]
    return found


def _options(mark: Array, radius: float, size: Array) -> Array:
    """(candidates, 2): around the mark, nearest first."""
    directions = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
    to_edge = np.abs(directions) @ (size / 2)  # keeps the whole label outside of the circle
    return np.concatenate([mark + directions * (radius + reach + to_edge)[:, None] for reach in _REACHES])


def _fixed_costs(options: Array, size: Array, marks: Array, radii: Array, own: int, box: tuple[float, ...]) -> Array:
    left, bottom, right, top = box
    low, high = options - size / 2, options + size / 2
    outside = np.maximum(0, [left - low[:, 0], bottom - low[:, 1], high[:, 0] - right, high[:, 1] - top]).sum(0)
    covered = _overlaps(options, size + 2 * _GAP, marks, 2 * np.stack([radii, radii], axis=1)).sum(1)
    others = np.arange(len(marks)) != own
    crossed = _through(options, marks[own], marks[others], 2 * np.stack([radii, radii], axis=1)[others]).sum(1)
    distance = np.hypot(*(options - marks[own]).T)
    steep = np.abs(options[:, 1] - marks[own, 1]) / (distance + 1e-9)  # beside reads better than above
    costs: Array = 1000 * outside + 20 * covered + 15 * crossed + 1.5 * distance + 2 * steep
    return costs


def _overlaps(centres: Array, size: Array, others: Array, sizes: Array) -> Array:
    """(candidates, others): shared areas."""
    reach = (size + sizes) / 2
    shared = np.clip(reach[None] - np.abs(centres[:, None] - others[None]), 0, None)
    areas: Array = shared.prod(2)
    return areas


def _crossings(options: Array, size: Array, mark: Array, centres: Array, sizes: Array, marks: Array) -> Flags:
    """(candidates, others): whether a line from a mark to its label runs through the other's label or line."""
    own = _through(options, mark, centres, sizes)
    theirs = _inside(_line(marks, centres)[None], options[:, None, None], size)
    found: Flags = own | theirs | _cross(mark, options[:, None], marks[None], centres[None])
    return found


def _through(options: Array, mark: Array, centres: Array, sizes: Array) -> Flags:
    """(candidates, others): whether the line from the mark to the label runs through another box."""
    return _inside(_line(mark, options)[:, None], centres[:, None], sizes[:, None])


def _line(start: Array, end: Array) -> Array:
    """(..., 2) -> (..., points, 2): most of the way from one to the other."""
    start, end = np.broadcast_arrays(start, end)
    found: Array = start[..., None, :] + np.linspace(0.1, 0.9, 17)[:, None] * (end - start)[..., None, :]
    return found


def _inside(points: Array, centres: Array, sizes: Array) -> Flags:
    """Whether any of some points (..., points, 2) lies in a box."""
    found: Flags = np.any(np.all(np.abs(points - centres) < sizes / 2 + _GAP, axis=-1), axis=-1)
    return found


def _cross(start: Array, end: Array, starts: Array, ends: Array) -> Flags:
    """Whether lines cross: both ends of each lie on different sides of the other."""
    first = _side(start, end, starts) * _side(start, end, ends) < 0
    second = _side(starts, ends, start) * _side(starts, ends, end) < 0
    found: Flags = first & second
    return found


def _side(start: Array, end: Array, point: Array) -> Array:
    """Positive to the left of a line, negative to its right."""
    (x, y), (u, v) = np.moveaxis(end - start, -1, 0), np.moveaxis(point - start, -1, 0)
    found: Array = x * v - y * u
    return found


def _crowd(marks: Array) -> Array:
    """How many marks are near each."""
    distance = np.hypot(*(marks[:, None] - marks[None]).transpose(2, 0, 1))
    found: Array = np.exp(-distance / 20).sum(1)
    return found
