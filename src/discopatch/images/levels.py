"""The linear map from the values of deep images, of more than 8 bits or of many bands, to what a network sees."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ImageError, ParameterError
from discopatch.images.image import RefusalReason
from discopatch.schema import Name, Positive, between, check_fields, length

OUTSIDE = "discopatch: outside"  # in the info of a mapped image: the share of its values that were clipped
BYTES = ("uint8", "bool")  # kinds of values
N_SAMPLED = 2**14  # pixels of each normal image by which levels are chosen
TAIL, ODD = 0.001, 0.05  # shares of the pixels of an image, and of the images, that do not count for the range
MARGIN = 0.05  # of the range, added on both sides
# An image is out of range if more of its values are clipped than so many times the usual share, plus this share.
MANY = 2, 0.005
_BLOCK = 2**20  # pixels that are mapped at a time

Value = Annotated[float, between(-1e300, 1e300)]
Bands = Annotated[tuple[Annotated[int, between(1, 2**16)], ...], length(1, 3)]
Choice = Literal["auto", "window"] | tuple[Value, Value]  # chosen by normal images, of each DICOM file, or given


class Values(NamedTuple):
    """The pixels of an image as they are stored."""

    bands: NDArray[Any]  # (H, W, bands)
    kind: str  # the type of a value, or DICOM
    deep: bool = True  # whether no fixed rule makes RGB of 8 bits of them
    window: tuple[float, float] | None = None  # of a DICOM file


@dataclass(frozen=True, slots=True)
class Levels:
    """The values of deep images that become black and white; values in between are mapped linearly.

    count, kind: number of bands of the normal images, and the type of their values.
    bands: which of them become red, green and blue, from 1; a single one becomes grey.
    low, high: the values of each that become black and white; none where each DICOM file has a window.
    usual: the share of clipped values that most normal images do not exceed.
    """

    count: Positive
    kind: Name
    bands: Bands
    low: Annotated[tuple[Value, ...], length(0, 3)]
    high: Annotated[tuple[Value, ...], length(0, 3)]
    usual: Annotated[float, between(0, 1)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        lengths = {len(self.low), len(self.high)}
        fits = len(self.bands) != 2 and max(self.bands) <= self.count and lengths in ({0}, {len(self.bands)})
        if not fits or any(low >= high for low, high in zip(self.low, self.high, strict=True)):
            levels = f" and levels {self.low} to {self.high}" * bool(self.low)
            remedy = "give one band or three of those that are there, and the lower level first"
            raise ParameterError(f"bands {self.bands} of {self.count}{levels}: {remedy}")

    @classmethod
    def choose(cls, images: Iterable[Values], choice: Choice, bands: tuple[int, ...] | None) -> Self:
        """The levels of normal images, of which those with the usual number and type of bands count."""
        rng, found = np.random.default_rng(0), list[tuple[int, Values]]()
        for values in images:
            height, width, count = values.bands.shape
            chosen = bands or ((1, 2, 3) if count > 2 else (1,))
            rows, columns = (rng.integers(side, size=(N_SAMPLED, 1)) for side in (height, width))
            part = values.bands[rows, columns, [min(band, count) - 1 for band in chosen]].astype(np.float64)
            found.append((count, values._replace(bands=part)))
        (count, kind), _ = Counter((own, each.kind) for own, each in found).most_common(1)[0]
        levels = cls(count, kind, tuple(bands or ((1, 2, 3) if count > 2 else (1,))), (), ())
        usual = [each for own, each in found if own == count]
        if choice == "window":
            usual = [each for each in usual if each.window is not None] or usual
        parts = [each.bands for each in usual]
        if choice == "auto":
            tails = np.array([np.quantile(part, (TAIL, 1 - TAIL), axis=0) for part in parts])
            low, high = np.quantile(tails[:, 0], ODD, axis=0), np.quantile(tails[:, 1], 1 - ODD, axis=0)
            margin = np.maximum(MARGIN * (high - low), 1e-3 * np.maximum(np.abs(high), 1))
            digits = 2 - int(np.floor(np.log10(margin.min())))
            low, high = np.round(low - margin, digits), np.round(high + margin, digits)
            low = np.maximum(low, 0) if kind.startswith("uint") else low
            levels = replace(levels, low=tuple(low.tolist()), high=tuple(high.tolist()))
        elif choice != "window":
            low, high = map(float, choice)
            levels = replace(levels, low=(low,) * len(levels.bands), high=(high,) * len(levels.bands))
        shares = [share_outside(part, *levels._ends(each)) for part, each in zip(parts, usual, strict=True)]
        return replace(levels, usual=float(np.quantile(shares, 1 - ODD)))

    def apply(self, values: Values | None) -> Image.Image:
        """The image in RGB, with the share of clipped values in its info; `values` are None for 8 bits."""
        if values is None or (values.kind in BYTES and values.kind != self.kind):
            detail = f"8 bits, and the detector {self.text}: give the original, or fit a detector on images of 8 bits"
            raise ImageError(RefusalReason.UNSUPPORTED, detail)
        height, width, count = values.bands.shape
        if count != self.count:
            detail = f"{count} bands, and the normal images have {self.count}: give images like those of the fit"
            raise ImageError(RefusalReason.UNSUPPORTED, detail)
        low, high = self._ends(values)
        found, outside, step = np.empty((height, width, len(self.bands)), np.uint8), 0.0, max(1, _BLOCK // width)
        for start in range(0, height, step):
            part = values.bands[start : start + step][:, :, self._columns].astype(np.float64)
            outside += share_outside(part, low, high) * part.size / found.size
            found[start : start + step] = np.rint(np.clip((part - low) * (255 / (high - low)), 0, 255))
        image = Image.fromarray(found if len(self.bands) == 3 else found[:, :, 0]).convert("RGB")
        image.info[OUTSIDE] = outside
        return image

    def is_out_of_range(self, image: Image.Image) -> bool:
        """Whether more values of a mapped image were clipped than of normal images."""
        return bool(image.info.get(OUTSIDE, 0.0) > MANY[0] * self.usual + MANY[1])

    @property
    def _columns(self) -> list[int]:
        return [band - 1 for band in self.bands]

    def _ends(self, values: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The values of each band that become black and white."""
        if not self.low and values.window is None:
            detail = "no DICOM file with a window: fit with levels='auto' (--levels auto)"
            raise ImageError(RefusalReason.UNSUPPORTED, detail)
        low, high = (self.low, self.high) if self.low else zip(values.window or (), strict=True)
        return np.array(low), np.array(high)

    @property
    def text(self) -> str:
        if not self.low:
            return "maps the window of each DICOM file to the range of the network"
        depth = "DICOM" if self.kind == "DICOM" else f"{8 * np.dtype(self.kind).itemsize}-bit"
        names = (
            [f"{depth} grey"] if self.count == 1 else [f"band {band} of {self.count} ({depth})" for band in self.bands]
        )
        ends = zip(self.low, self.high, names, strict=True)
        parts = ", ".join(f"{low:,.9g} to {high:,.9g} of {name}" for low, high, name in ends)
        return f"maps {parts} to the range of the network"


def share_outside(values: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> float:
    return float(((values < low) | (values > high)).mean())


def check_levels(choice: object, bands: object) -> None:
    """Raises ParameterError unless a fit takes these levels and bands."""
    try:
        msgspec.convert((choice, bands), tuple[Choice, Bands | None])
    except msgspec.ValidationError as error:
        remedy = "give auto, window or the values that become black and white, and one band or three"
        raise ParameterError(f"levels is {choice!r}, bands is {bands!r} ({error}): {remedy}") from None
