"""Regions of an image that are unusual: connected parts of its anomaly map, with boxes and outlines."""

from collections.abc import Sequence
from math import ceil, floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

MAX_REGIONS = 20
UNUSUAL = 1.0  # what few places of normal images reach: no region lies below it
LEVEL = 0.25  # of the map's maximum: cells above it belong to regions, so that faint halos do not join them
SMALLEST = 1e-4  # of the image: regions of a smaller area are left out
FEWEST = 4  # cells of the map in a region
MAX_POINTS = 128  # of a contour

# The shift that brings the neighbour across a side of a cell into its place, and the corners at which that side begins
# and ends, clockwise.
SIDES = (
    ((1, 0), (0, 0), (0, 1)),
    ((0, -1), (0, 1), (1, 1)),
    ((-1, 0), (1, 1), (1, 0)),
    ((0, 1), (1, 0), (0, 0)),
)


class Region(NamedTuple):
    """An unusual part of an image, in pixels of the original image. Holes count as parts of it."""

    box: tuple[int, int, int, int]  # left, top, width, height
    contour: tuple[tuple[float, float], ...]  # (x, y) of a closed polygon; its first point is not repeated
    area: int
    peak: float  # largest value of the anomaly map inside


def find_regions(anomaly_map: NDArray[np.floating], size: tuple[int, int]) -> tuple[Region, ...]:
    """The regions of an image of this height and width, largest peak first; the map (h, w) covers all of it."""
    highest = float(anomaly_map.max(initial=0))
    if highest <= UNUSUAL:
        return ()
    values = np.pad(anomaly_map, 1)  # so that no region touches the border of the array
    parts = connected_parts(above := values > max(UNUSUAL, LEVEL * highest))
    cells, peaks = np.bincount(parts.ravel()), np.zeros(parts.max() + 1)
    np.maximum.at(peaks, parts[above], values[above])
    kept = np.flatnonzero(cells >= max(FEWEST, SMALLEST * anomaly_map.size))[1:]  # 0 is outside
    down, across = np.divide(size, anomaly_map.shape).tolist()
    found = []
    for number in kept[np.argsort(-peaks[kept], kind="stable")][:MAX_REGIONS]:
        rows, columns = np.nonzero(parts == number)
        top, bottom, left, right = rows.min() - 1, rows.max(), columns.min() - 1, columns.max()
        outside = connected_parts(parts[top : bottom + 2, left : right + 2] != number)
        inside = outside != outside[0, 0]  # with its holes
        contour = (outline(inside) + np.array([left, top]) - 1) * (across, down)
        x, y = floor(left * across), floor(top * down)
        box = x, y, ceil(right * across) - x, ceil(bottom * down) - y
        area = round(inside.sum() * down * across)
        found.append(Region(box, tuple(map(tuple, contour.round(1).tolist())), area, peaks[number].item()))
    return tuple(found)


def connected_parts(inside: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(h, w): the number of the part to which each cell belongs, 0 outside. Cells are connected across their sides."""
    cells = np.cumsum(inside).reshape(inside.shape) * inside
    down, right = inside[1:] & inside[:-1], inside[:, 1:] & inside[:, :-1]
    one = np.concatenate([cells[:-1][down], cells[:, :-1][right]])
    other = np.concatenate([cells[1:][down], cells[:, 1:][right]])
    numbers = np.arange(cells.max() + 1)
    while (apart := numbers[one] != numbers[other]).any():
        one, other = one[apart], other[apart]
        ends = np.sort([numbers[one], numbers[other]], axis=0)
        np.minimum.at(numbers, ends[1], ends[0])
        while ((further := numbers[numbers]) != numbers).any():
            numbers = further
    return numbers[cells]


def outline(inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(points, 2): x and y of a polygon through the middles of the outer sides of the cells of one connected part.

    The part has no holes and leaves the border of the array free. Its polygon is half a cell smaller than its cells.
    """
    following: dict[tuple[int, int], tuple[int, int]] = {}  # from corner to corner
    for shift, start, end in SIDES:
        cells = np.argwhere(inside & ~np.roll(inside, shift, (0, 1)))
        following |= zip(map(tuple, (cells + start).tolist()), map(tuple, (cells + end).tolist()), strict=True)
    corners = [next(iter(following))]
    while (corner := following[corners[-1]]) != corners[0]:
        corners.append(corner)
    middles: NDArray[np.float64] = (np.array(corners) + np.roll(corners, -1, 0)) / 2
    return middles[:: ceil(len(middles) / MAX_POINTS), ::-1]


def first_touches(regions: Sequence[Region], mask: NDArray[np.bool_]) -> bool:
    """Whether the region with the largest peak has a pixel in common with a mask (h, w) of the original image."""
    if not regions:
        return False
    filled = Image.new("1", mask.shape[::-1])
    ImageDraw.Draw(filled).polygon(regions[0].contour, fill=1)
    return bool((np.asarray(filled) & mask).any())
