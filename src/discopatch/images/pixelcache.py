"""A finished cache: transformed pictures as raw bytes in a file that is mapped into memory."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from discopatch.images.picture import Pixels
from discopatch.images.refusals import RefusalReport
from discopatch.images.transform import Transform

FORMAT = 1


@dataclass(frozen=True, eq=False, slots=True)
class PixelCache:
    """Transformed pictures, ready for training; `digest` stands for all pixels, wherever the files lie."""

    names: list[str]
    pixels: Pixels  # (N, size, size, 3), read-only, mapped into memory
    transform: Transform
    report: RefusalReport
    digest: str


def map_pixels(folder: Path, number: int, size: int) -> Pixels:
    """The pictures of a finished folder, or ValueError when it does not hold as many bytes as they need."""
    shape = (number, size, size, 3)
    path = folder / "pixels.bin"
    if path.stat().st_size != prod(shape):
        raise ValueError(f"{path} does not hold {number} pictures of {size} x {size}")
    return np.memmap(path, dtype=np.uint8, mode="r", shape=shape)


def load(folder: Path) -> PixelCache | None:
    """A finished cache, or None when there is none or it is damaged."""
    try:
        index = json.loads((folder / "index.json").read_text())
        transform = Transform.from_dict(index["transform"])
        report = RefusalReport.from_dict(index["report"])
        names, digest = index["names"], index["digest"]
        if index["format"] != FORMAT:
            return None
        return PixelCache(names, map_pixels(folder, len(names), transform.size), transform, report, digest)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
