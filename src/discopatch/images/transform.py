"""The one preprocessing: an image of any size as the networks take it."""

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import ceil, floor
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ParameterError, SchemaError, TransformError
from discopatch.images.image import Pixels
from discopatch.images.levels import Levels
from discopatch.schema import between, check_fields, length, read_fields, shorten

Fit = Literal["crop", "squash", "whole"]
Resample = Literal["bicubic", "bilinear", "lanczos"]
PixelRange = Literal["symmetric", "unit"]  # [-1, 1] or [0, 1]
Decoder = Literal["pillow", "scaled", "nvimgcodec"]
Span = tuple[float, float]
Shape = tuple[int, int]  # height and width
Ignore = str | Path | NDArray[Any] | Sequence[Sequence[float]]

SCALED = "discopatch: scaled"  # in the info of an image that was scaled while it was decoded: its size before
MAX_SIZE, MAX_LONG = 8192, 16384  # pixels along a side, so that a definition from anyone cannot ask for all memory
_DEFINITION_VERSION = 1  # raise it whenever the same fields would give other pixels
MULTIPLE = 32  # pixels: a side of an image after the transform `whole` is a multiple of it
LEAST = 2  # multiples: a patch of the paper's network has 64 pixels
IGNORED = 128  # the grey of pixels that are ignored
_USUAL = {"pixels": "symmetric", "decoder": "pillow", **dict.fromkeys(("shape", "ignore", "levels"))}  # of later fields


@dataclass(frozen=True, slots=True)
class Transform:
    """Resizes an image with antialiasing.

    crop: the short side becomes `size`, then the centre square is cut out; squash: to `size` x `size`, whatever the
    aspect ratio; whole: to the largest size within `shape`, whose short side is `size`, that keeps the aspect ratio,
    each side rounded to a multiple of 32. Pixels that `ignore` covers, a mask over the whole image, become grey.
    An image that already has the size stays as it is, byte for byte. `pixels` is the range in which the network that
    the images are for takes their bytes as floats; the images themselves stay bytes.

    `decoder` is what reads encoded images, whose pixels differ a little: `pillow` decodes whole images; `scaled` lets
    JPEG files be scaled down by 2, 4 or 8 while they are decoded, to no less than twice the size, and resizes these on
    by a shorter filter, Hamming's; `nvimgcodec` decodes JPEG files on a GPU. What a decoder does not read, it leaves to
    `pillow`. Arrays are pixels already.
    """

    size: Annotated[int, between(1, MAX_SIZE)] = 256
    fit: Fit = "crop"
    resample: Resample = "bicubic"
    pixels: PixelRange = "symmetric"
    decoder: Decoder = "pillow"
    shape: Annotated[tuple[Annotated[int, between(MULTIPLE, MAX_LONG)], ...], length(2, 2)] | None = None
    ignore: Annotated[str, length(1, 2**20)] | None = None  # a PNG in base64, white where pixels are ignored
    levels: Levels | None = None  # of deep images, which are mapped to bytes before all else

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.fit == "whole") != (self.shape is not None) or min(self.shape or (self.size,)) != self.size:
            raise ParameterError(
                f"fit is {self.fit!r}, shape {self.shape}, size {self.size}: whole images have a shape"
            )

    @classmethod
    def whole(cls, aspect: float, size: int = 256, *, like: Self | None = None) -> Self:
        """The transform of whole images with that ratio of width to height, whose short side becomes `size`."""
        long = min(MULTIPLE * max(1, round(size * max(aspect, 1 / aspect) / MULTIPLE)), 4 * size, MAX_LONG)
        shape = (size, long) if aspect >= 1 else (long, size)
        return replace(like or cls(), size=size, fit="whole", shape=shape, ignore=None)

    def __call__(self, pixels: Pixels) -> Pixels:
        """(H, W, 3) after the transform, C-contiguous."""
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise ParameterError(f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (H, W, 3)")
        return self.resize(Image.fromarray(np.ascontiguousarray(pixels)))

    def resize(self, image: Image.Image) -> Pixels:
        """A PIL image in RGB after the transform; it need not become an array before it is small."""
        shape = self.shape_of(image.height, image.width)
        if self.ignore is not None:  # also before resizing, which reads beyond the border of the mask
            image = image.copy()
            image.paste((IGNORED,) * 3, mask=Image.fromarray(read_mask(self.ignore, (image.height, image.width))))
        if image.size == shape[::-1]:
            found = np.array(image)
        else:
            rows, columns = self.spans(image.height, image.width)
            scaled = isinstance(image.info.get(SCALED), tuple)  # not a text of that name in a file
            used = Image.Resampling["HAMMING" if scaled else self.resample.upper()]
            found = _resample(image, rows, columns, shape, used)
        if self.ignore is not None:
            found[read_mask(self.ignore, shape)] = IGNORED
        return found

    @property
    def largest(self) -> Shape:
        """Height and width that no image exceeds after the transform, and that most have."""
        return (self.size, self.size) if self.shape is None else (self.shape[0], self.shape[1])

    def shape_of(self, height: int, width: int) -> Shape:
        if self.shape is None:
            return self.largest
        scale = min(self.shape[0] / height, self.shape[1] / width)
        rows, columns = (
            min(most, MULTIPLE * max(LEAST, round(side * scale / MULTIPLE)))
            for side, most in zip((height, width), self.shape, strict=True)
        )
        return rows, columns

    @property
    def decoded_side(self) -> int | None:
        """How many pixels a side keeps at least where JPEG files are scaled while they are decoded."""
        return 2 * self.size if self.decoder == "scaled" else None

    def spans(self, height: int, width: int) -> tuple[Span, Span]:
        """Which rows and which columns of an image of that size are kept."""
        short = min(height, width)
        return self._span(height, short), self._span(width, short)

    def _span(self, length: int, short: int) -> Span:
        """Which part of a side of the image is kept.

        As in resize-then-crop the side becomes a whole number of pixels and is cut at a whole pixel.
        """
        if self.fit != "crop":
            return 0, length
        resized = round(length * self.size / short)
        start = (resized - self.size) // 2
        return start * length / resized, (start + self.size) * length / resized

    @property
    def digest(self) -> str:
        """16 hex digits that differ whenever the definition does; they are stored with the weights."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The definition, ready for JSON; fields of later versions are left out where they are as usual."""
        fields = {"version": _DEFINITION_VERSION, **asdict(self)}
        own = {name: value for name, value in fields.items() if _USUAL.get(name) != value}
        return dict(json.loads(json.dumps(own)))  # with lists for tuples

    @classmethod
    def from_dict(cls, definition: object) -> Self:
        """The transform of a stored definition; TransformError when this version does not know it."""
        fields = {**_USUAL, **definition} if isinstance(definition, Mapping) else {}
        version = fields.pop("version", None)
        if version != _DEFINITION_VERSION:
            raise TransformError(
                f"transform of version {shorten.repr(version)}, this discopatch knows {_DEFINITION_VERSION}: "
                "update discopatch or fit again"
            )
        try:
            return read_fields(cls, fields, where="transform")
        except SchemaError as error:
            raise TransformError(f"{error}: update discopatch or fit again") from None


def make_mask(ignore: Ignore, size: Shape, shape: Shape) -> str:
    """The mask over images of that shape, as `Transform.ignore` holds it.

    ignore: an image file or an array (H, W), other than 0 where pixels are ignored, or rectangles (left, top, width,
    height) in pixels of an image of that size.
    """
    if isinstance(ignore, str | Path):
        try:
            with Image.open(ignore) as image:
                mask = np.array(image.convert("L")) > 0
        except (OSError, Image.DecompressionBombError) as error:
            raise ParameterError(
                f"{ignore} is no mask ({error}): give an image that is white where it is ignored"
            ) from None
    elif isinstance(ignore, np.ndarray):
        mask = ignore > 0
    else:
        mask = np.zeros(size, bool)
        for rectangle in ignore:
            try:
                left, top, width, height = (int(each) for each in rectangle)
            except (TypeError, ValueError):
                raise ParameterError(f"{rectangle!r} is no rectangle: give left, top, width and height") from None
            mask[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = True
    if mask.ndim != 2 or not mask.any() or mask.all():
        raise ParameterError(
            f"the mask of shape {mask.shape} ignores all pixels or none, or is no image: mark some and leave some"
        )
    if not 0.9 < mask.shape[1] * size[0] / (mask.shape[0] * size[1]) < 1.1:
        raise ParameterError(
            f"the mask has {mask.shape[1]} x {mask.shape[0]} pixels, the images {size[1]} x {size[0]}: give a mask of "
            "the same shape"
        )
    touched = touched_rows(touched_rows(mask, shape[0]).T, shape[1]).T
    if touched.all():
        raise ParameterError("nothing is left beside the mask at this resolution: choose a smaller mask")
    file = io.BytesIO()
    Image.fromarray(touched).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def touched_rows(mask: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """The mask with another number of rows, each true where the mask is in any row that it overlaps."""
    edges = np.arange(rows + 1) * len(mask) / rows
    pairs = zip(np.floor(edges[:-1]).astype(int), np.ceil(edges[1:]).astype(int), strict=True)
    return np.stack([mask[first:last].any(0) for first, last in pairs])


@lru_cache(maxsize=8)
def read_mask(text: str, shape: Shape) -> NDArray[np.bool_]:
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as image:
            found: NDArray[np.bool_] = np.array(image.convert("1").resize(shape[::-1], Image.Resampling.NEAREST), bool)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise TransformError(f"its mask of ignored pixels cannot be read ({error}): fit again") from None
    return found


def check_same_transform(expected: Transform, actual: Transform) -> None:
    """Raises TransformError unless both give the same pixels."""
    if expected != actual:
        raise TransformError(
            f"expected images through {expected} ({expected.digest}), got {actual} ({actual.digest}): "
            "prepare the images with the expected transform, or fit again with this one"
        )


def _resample(image: Image.Image, rows: Span, columns: Span, shape: Shape, resample: Image.Resampling) -> Pixels:
    """Computes only what is kept: Pillow's filters read beyond the box, so the rest need not be resized.

    Columns always come before rows: by itself Pillow chooses by the shape, not alike in all its versions,
    and the order shows in the pixels because what lies between is rounded and clipped.
    """
    height, width = shape
    top, bottom = _reach(rows, height, image.height)
    left, right = _reach(columns, width, image.width)
    too_large = (right - left) * (bottom - top) > (Image.MAX_IMAGE_PIXELS or float("inf"))  # for Pillow to cut it out
    if too_large or (left, top, right, bottom) == (0, 0, *image.size):
        left, top, part = 0, 0, image
    else:
        part = image.crop((left, top, right, bottom))
    narrow = part.resize((width, part.height), resample, box=(columns[0] - left, 0, columns[1] - left, part.height))
    return np.array(narrow.resize((width, height), resample, box=(0, rows[0] - top, width, rows[1] - top)))


def _reach(span: Span, size: int, length: int) -> tuple[int, int]:
    """Which pixels the widest filter reads to fill the span: lanczos, 3 pixels of the coarser grid."""
    support = 3 * max(1, (span[1] - span[0]) / size) + 1
    return max(0, floor(span[0] - support)), min(length, ceil(span[1] + support))
