"""The one preprocessing: an image of any size becomes the square that the networks take."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil, floor
from typing import Annotated, Any, Literal, Self

import numpy as np
from PIL import Image

from discopatch.errors import ParameterError, SchemaError, TransformError
from discopatch.images.image import Pixels
from discopatch.schema import between, check_fields, read_fields, shorten

Fit = Literal["crop", "squash"]
Resample = Literal["bicubic", "bilinear", "lanczos"]
PixelRange = Literal["symmetric", "unit"]  # [-1, 1] or [0, 1]
Decoder = Literal["pillow", "scaled", "nvimgcodec"]
Span = tuple[float, float]

SCALED = "discopatch: scaled"  # in the info of an image that was scaled while it was decoded
MAX_SIZE = 4096  # pixels along a side, so that a definition from anyone cannot ask for all memory
_DEFINITION_VERSION = 1  # raise it whenever the same fields would give other pixels
_USUAL = {"pixels": "symmetric", "decoder": "pillow"}  # of fields that earlier definitions have not


@dataclass(frozen=True, slots=True)
class Transform:
    """Resizes an image with antialiasing to `size` x `size`.

    crop: the short side becomes `size`, then the centre is cut out; squash: the aspect ratio is ignored.
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

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, pixels: Pixels) -> Pixels:
        """(H, W, 3) as (size, size, 3), C-contiguous."""
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise ParameterError(f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (H, W, 3)")
        if pixels.shape[:2] == (self.size, self.size):
            return np.ascontiguousarray(pixels)
        return self.resize(Image.fromarray(np.ascontiguousarray(pixels)))

    def resize(self, image: Image.Image) -> Pixels:
        """A PIL image in RGB as (size, size, 3); it need not become an array before it is small."""
        if image.size == (self.size, self.size):
            return np.array(image)
        rows, columns = self.spans(image.height, image.width)
        scaled = image.info.get(SCALED) is True  # not a text of that name in a file
        used = Image.Resampling["HAMMING" if scaled else self.resample.upper()]
        return _resample(image, rows, columns, self.size, used)

    @property
    def decoded_side(self) -> int | None:
        """How many pixels a side keeps at least where JPEG files are scaled while they are decoded."""
        return 2 * self.size if self.decoder == "scaled" else None

    def spans(self, height: int, width: int) -> tuple[Span, Span]:
        """Which rows and which columns of an image of that size fill the square."""
        short = min(height, width)
        return self._span(height, short), self._span(width, short)

    def _span(self, length: int, short: int) -> Span:
        """Which part of a side of the image fills the side of the square.

        As in resize-then-crop the side becomes a whole number of pixels and is cut at a whole pixel.
        """
        if self.fit == "squash":
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
        return {name: value for name, value in fields.items() if _USUAL.get(name) != value}

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


def check_same_transform(expected: Transform, actual: Transform) -> None:
    """Raises TransformError unless both give the same pixels."""
    if expected != actual:
        raise TransformError(
            f"expected images through {expected} ({expected.digest}), got {actual} ({actual.digest}): "
            "prepare the images with the expected transform, or fit again with this one"
        )


def _resample(image: Image.Image, rows: Span, columns: Span, size: int, resample: Image.Resampling) -> Pixels:
    """Computes only the square: Pillow's filters read beyond the box, so the rest need not be resized.

    Columns always come before rows: by itself Pillow chooses by the shape, not alike in all its versions,
    and the order shows in the pixels because what lies between is rounded and clipped.
    """
    top, bottom = _reach(rows, size, image.height)
    left, right = _reach(columns, size, image.width)
    too_large = (right - left) * (bottom - top) > (Image.MAX_IMAGE_PIXELS or float("inf"))  # for Pillow to cut it out
    if too_large or (left, top, right, bottom) == (0, 0, *image.size):
        left, top, part = 0, 0, image
    else:
        part = image.crop((left, top, right, bottom))
    narrow = part.resize((size, part.height), resample, box=(columns[0] - left, 0, columns[1] - left, part.height))
    return np.array(narrow.resize((size, size), resample, box=(0, rows[0] - top, size, rows[1] - top)))


def _reach(span: Span, size: int, length: int) -> tuple[int, int]:
    """Which pixels the widest filter reads to fill the span: lanczos, 3 pixels of the coarser grid."""
    support = 3 * max(1, (span[1] - span[0]) / size) + 1
    return max(0, floor(span[0] - support)), min(length, ceil(span[1] + support))
