"""One image as RGB, or the reason why it could not be read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ImageError, NoImagesError, ParameterError
from discopatch.schema import Count, Positive, check_fields
from discopatch.utils import counted, escaped

T = TypeVar("T")
Pixels = NDArray[np.uint8]  # RGB, (H, W, 3)

EXAMPLES = 5  # names that a report keeps for each reason


@dataclass(frozen=True, slots=True)
class NamedImage:
    """A decoded image, RGB of 8 bits, (H, W, 3), and the name that results give it."""

    name: str
    pixels: Pixels
    original: tuple[int, int] | None = None  # height and width before the transform, where there was one
    out_of_range: bool = False  # more values than in normal images were clipped to black or white

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image before the transform."""
        return self.original or (self.pixels.shape[0], self.pixels.shape[1])


class RefusalReason(StrEnum):
    """Why an image was refused."""

    MISSING = "missing"
    UNREADABLE = "unreadable"
    EMPTY = "empty"
    NOT_AN_IMAGE = "not_an_image"
    TRUNCATED = "truncated"
    TOO_LARGE = "too_large"
    TOO_SMALL = "too_small"
    UNSUPPORTED = "unsupported"
    NOT_FINITE = "not_finite"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An image that could not be used; `detail` is one sentence, with the remedy if there is one."""

    name: str
    reason: RefusalReason
    detail: str

    @classmethod
    def not_finite(cls, name: str) -> Self:
        """An image for which the network or the head gave no number: nothing is known of it, so it is not accepted."""
        detail = "its score is not a finite number: check the weights and the precision, or look at the image yourself"
        return cls(name, RefusalReason.NOT_FINITE, detail)

    @property
    def error(self) -> str:
        """Reason and detail in one line, as results show it."""
        return f"{self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused before it is decoded: images too small to hold a patch, and files that would exhaust memory.

    A thread or process that decodes takes memory for the file and, by format, 8 to 20 bytes for each pixel.
    """

    min_side: Positive = 32
    max_pixels: Positive = 89_478_485  # where Pillow begins to warn; of RGB in 8 bits that is 256 MiB
    max_bytes: Positive = 2**28  # so many pixels without compression; scans of 16 bits may need more

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_LIMITS = Limits()


def check_bytes(count: int, limits: Limits) -> None:
    """Raises ImageError for an encoded image that is empty or larger than `limits.max_bytes`."""
    if count == 0:
        raise ImageError(RefusalReason.EMPTY, "0 bytes")
    if count > limits.max_bytes:
        detail = f"{count:,} bytes; at most {limits.max_bytes:,}: raise max_bytes (--max-bytes)"
        raise ImageError(RefusalReason.TOO_LARGE, detail)


def check_pixels(height: int, width: int, limits: Limits, *, min_side: int | None = None) -> None:
    """Raises ImageError where an image has too many pixels, or a side too few."""
    if height * width > limits.max_pixels:
        detail = f"{width} x {height} pixels; at most {limits.max_pixels:,} in all"
        raise ImageError(RefusalReason.TOO_LARGE, f"{detail}: shrink it or raise max_pixels (--max-pixels)")
    least = limits.min_side if min_side is None else min_side
    if min(height, width) < least:
        detail = f"{width} x {height} pixels; each side needs at least {least}: use a larger image"
        raise ImageError(RefusalReason.TOO_SMALL, detail)


@dataclass(slots=True)
class RefusalReport:
    """Counts the images that were accepted, and those refused by reason, with the names of the first few."""

    accepted: Count = 0
    refused: dict[RefusalReason, Positive] = field(default_factory=dict)
    examples: dict[RefusalReason, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.refused.values())

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, refusal: Refusal) -> None:
        self.refused[refusal.reason] = self.refused.get(refusal.reason, 0) + 1
        names = self.examples.setdefault(refusal.reason, [])
        if len(names) < EXAMPLES:
            names.append(refusal.name)

    def summary(self) -> str:
        """One line, such as: 3 of 120 images refused: 2 truncated (a.jpg, b.jpg), 1 empty (c.png)."""
        total = f"{self.count} of {counted(self.accepted + self.count, 'image')} refused"
        reasons = []
        for reason, count in sorted(self.refused.items(), key=lambda item: (-item[1], item[0])):  # most first
            shown = self.examples.get(reason, [])
            names = [*map(escaped, shown), *["..."] * (count > len(shown))]
            reasons.append(f"{count} {reason.replace('_', ' ')} ({', '.join(names)})")
        return f"{total}: {', '.join(reasons)}" if reasons else total

    def nothing_left(self) -> NoImagesError:
        if not self.count:
            return NoImagesError("no images: check the path; of tables name the column, as in photos.parquet#column")
        return NoImagesError(f"nothing left to work with: {self.summary()}")


def accepted(stream: Iterable[NamedImage | Refusal], report: RefusalReport) -> Iterator[NamedImage]:
    """The images of a stream; its refusals go into the report. NoImagesError when there was no image."""
    for item in stream:
        if isinstance(item, Refusal):
            report.add(item)
        else:
            report.accepted += 1
            yield item
    if report.accepted == 0:
        raise report.nothing_left()


def single(stream: Iterator[T | Refusal]) -> T:
    """The only image of a stream, which is to be explained; ImageError when it was refused."""
    item = next(stream, None)
    if item is None:
        raise NoImagesError("nothing to explain: give one image")
    if next(stream, None) is not None:
        raise ParameterError(
            "more than one image: explain takes one; `discopatch score FOLDER --detector ... --report report.html` "
            "explains many"
        )
    if isinstance(item, Refusal):
        raise ImageError(item.reason, f"{item.name}: {item.error}")
    return item
