"""What an image becomes: a Picture, or a Refusal that says why not."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (H, W, 3), RGB


@dataclass(frozen=True, slots=True)
class Picture:
    """A named image as RGB of 8 bits, (H, W, 3)."""

    name: str
    pixels: Pixels


class Reason(StrEnum):
    """Why an image was refused."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    EMPTY = "empty"
    NOT_AN_IMAGE = "not_an_image"
    TRUNCATED = "truncated"
    TOO_LARGE = "too_large"
    TOO_SMALL = "too_small"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An image that could not become a Picture; `detail` is one sentence with the remedy, if there is one."""

    name: str
    reason: Reason
    detail: str

    @property
    def error(self) -> str:
        """Reason and detail in one line, as results show it."""
        return f"{self.reason}: {self.detail}"


class ImageRefused(ValueError):  # noqa: N818 - it is a verdict on the image, not a fault of the program
    """Raised while one image is decoded; `open` turns it into a Refusal."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)  # all of it, or the refusal could not pass between processes
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class NoImagesError(ValueError):
    """A source holds no image at all, or every one of them was refused."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused unread: images too small to hold a patch, and files made to exhaust memory."""

    min_side: int = 32
    max_pixels: int = 89_478_485  # where Pillow begins to warn, so that it never does
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        if min(self.min_side, self.max_pixels, self.max_bytes) < 1:
            raise ValueError(f"{self}: every limit must be at least 1")
