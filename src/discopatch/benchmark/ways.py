"""The way of a picture from its file to the network: sizes, storages, corruptions, step by step.

A low-level detector sees the way as well as the content. So each set's way is written down, enters the digest of the
set, and is also taken by images that are surely normal: what is found then is the way's alone.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from discopatch.benchmark.storage import Storage
from discopatch.images import Pixels, Transform
from discopatch.images.corrupt import corrupt


class Step(Protocol):
    """One step; what is random in it hangs on the picture's number in its set."""

    def __call__(self, pixels: Pixels, number: int) -> Pixels:
        """(H, W, 3) -> the same, further on."""

    def describe(self) -> dict[str, Any]:
        """All that decides what it does, for JSON."""


Way = tuple[Step, ...]


@dataclass(frozen=True)
class Resize:
    """To a square, by a transform."""

    transform: Transform

    def __call__(self, pixels: Pixels, number: int) -> Pixels:
        """(size, size, 3)."""
        return self.transform(pixels)

    def describe(self) -> dict[str, Any]:
        """The transform."""
        return {"resize": self.transform.to_dict()}


@dataclass(frozen=True)
class Crop:
    """To the middle."""

    size: int

    def __call__(self, pixels: Pixels, number: int) -> Pixels:
        """(size, size, 3)."""
        top, left = ((side - self.size) // 2 for side in pixels.shape[:2])
        return pixels[top : top + self.size, left : left + self.size]

    def describe(self) -> dict[str, Any]:
        """The size."""
        return {"crop": self.size}


@dataclass(frozen=True)
class Corrupt:
    """One of the corruptions, seeded by the picture's number."""

    name: str
    severity: int

    def __call__(self, pixels: Pixels, number: int) -> Pixels:
        """Of the same size."""
        return corrupt(pixels, self.name, self.severity, seed=number)

    def describe(self) -> dict[str, Any]:
        """Name and severity."""
        return {"corrupt": self.name, "severity": self.severity}


@dataclass(frozen=True)
class Store:
    """Written to a file and read again, in one of several ways, number by number."""

    storages: tuple[Storage, ...]

    def __call__(self, pixels: Pixels, number: int) -> Pixels:
        """Of the same size."""
        return self.storages[number % len(self.storages)].store(pixels)

    def describe(self) -> dict[str, Any]:
        """The qualities, 0 for those without loss, and how the colours are kept."""
        return {"store": [[each.quality or 0, each.subsampling] for each in self.storages]}


def travel(pixels: Pixels, way: Way, number: int) -> Pixels:
    """The whole way."""
    for step in way:
        pixels = step(pixels, number)
    return pixels


def describe(way: Way) -> list[dict[str, Any]]:
    """Step by step."""
    return [step.describe() for step in way]
