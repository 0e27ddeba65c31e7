"""Bytes, PIL images and arrays become RGB of 8 bits, by rules that never depend on the content.

EXIF orientation is applied. Transparency is composited on white. Grey of 16 bits is divided by 257, so that
the full range stays the full range; of colours of 16 bits Pillow keeps the upper byte. Floats lie in [0, 1].
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from discopatch.errors import ImageError
from discopatch.images.files import check_bytes
from discopatch.images.formats import SIGNATURE_LENGTH, identify, open_encoded
from discopatch.images.headers import check_pixels, checked, tags_fit
from discopatch.images.image import DEFAULT_LIMITS, Limits, Pixels, RefusalReason
from discopatch.images.transform import SCALED

# A list may hold one image twice, and Pillow's loading on first use does not expect two threads.
_LAZY_LOADING = threading.Lock()

# What Pillow says of a file that is whole, but of a kind that it cannot read.
_UNSUPPORTED_TEXTS = ("unsupported", "unknown pixel mode", "cannot handle", "conversion from", "not supported")


def decode(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """The pixels (H, W, 3) of an encoded image, or ImageError."""
    return np.array(rgb_from_bytes(data, limits))


def rgb_from_bytes(data: bytes, limits: Limits, suffix: str = "", *, side: int | None = None) -> Image.Image:
    """An encoded image in RGB, of several frames the first; it goes by the content, and the size is checked first.

    With `side` a JPEG is scaled while it is decoded, by 8, 4 or 2, as far as no side has fewer pixels than that; its
    `info` then has SCALED.
    """
    check_bytes(len(data), limits)
    kind = identify(data[:SIGNATURE_LENGTH], suffix)
    with _pillow_errors_refuse(kind):
        image = open_encoded(kind, checked(kind, data, limits))
        check_pixels(image.height, image.width, limits)
        stored = image.size
        if side is not None and kind == "JPEG":
            least = max(side, limits.min_side)  # or what is left would be refused as too small
            image.draft(None, (least, least))
        scaled = image.size != stored
        image.load()
        check_pixels(image.height, image.width, limits)  # what is in a HEIF may be larger than it says
        found = _rgb(_upright(image))
        if scaled:
            found.info[SCALED] = True
        return found


def rgb_from_image(image: Image.Image, limits: Limits) -> Image.Image:
    """A PIL image of any mode in RGB."""
    check_pixels(image.height, image.width, limits)
    with _pillow_errors_refuse(image.format or "image"):
        with _LAZY_LOADING:
            image.load()
            upright = _upright(image)
        return _rgb(upright)


def rgb_from_array(array: NDArray[Any], limits: Limits) -> Image.Image:
    """(H, W) or (H, W, C) with 1, 3 or 4 channels, of uint8, uint16, bool or floats in [0, 1], in RGB."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(
            RefusalReason.UNSUPPORTED,
            f"array of shape {array.shape}: give (H, W) or (H, W, C) with 1, 3 or 4 channels (tensors: channels first)",
        )
    check_pixels(array.shape[0], array.shape[1], limits)
    grey_or_colour = _eight_bits(array)
    if array.ndim == 3 and array.shape[2] == 1:
        grey_or_colour = grey_or_colour[:, :, 0]
    return _rgb(Image.fromarray(np.ascontiguousarray(grey_or_colour)))


@contextmanager
def _pillow_errors_refuse(kind: str) -> Iterator[None]:
    """Turns what Pillow raises on a bad file, which can be any exception, into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except (MemoryError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(RefusalReason.TOO_LARGE, f"{kind} too large to decode: scale it down") from error
    except Exception as error:
        if any(text in str(error).lower() for text in _UNSUPPORTED_TEXTS):
            detail = f"a kind of {kind} that cannot be read ({error}): save it as RGB of 8 bits"
            raise ImageError(RefusalReason.UNSUPPORTED, detail) from error
        detail = f"{kind} cut short or damaged ({error}): copy it again"
        raise ImageError(RefusalReason.TRUNCATED, detail) from error


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says, or itself when there is nothing to turn."""
    try:
        if not tags_fit(_exif_of(image)):
            return image
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken metadata, of which there are many kinds, are no reason to lose the pixels
        return image
    if orientation == 1:
        return image
    # Pillow also writes the metadata anew, which fails for some that it can read: so it gets the orientation alone.
    turned = image.copy()
    turned.info = {key: value for key, value in image.info.items() if key == "transparency"}
    turned.getexif()[ExifTags.Base.Orientation] = orientation
    ImageOps.exif_transpose(turned, in_place=True)
    return turned


def _exif_of(image: Image.Image) -> bytes:
    """The metadata as they stand in the file, from which `getexif` reads them."""
    if isinstance(raw := image.info.get("exif"), bytes):
        return raw
    text = image.info.get("Raw profile type exif")  # of PNG, in hexadecimal digits after three lines
    return bytes.fromhex("".join(text.split("\n")[3:])) if isinstance(text, str) else b""


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "F":
        image = _grey_of_eight_bits(image)
    if image.mode == "I":
        detail = "integers of 32 bits, whose range is unknown: scale them to 8 or 16 bits"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    translucent = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(translucent, mask=translucent)
    return canvas


def _grey_of_eight_bits(image: Image.Image) -> Image.Image:
    deep = np.asarray(image)
    grey = _eight_bits(deep)
    if "transparency" in image.info:
        grey[deep == image.info["transparency"]] = 255
    return Image.fromarray(grey)


def _eight_bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if array.dtype.kind != "f":
        raise ImageError(
            RefusalReason.UNSUPPORTED,
            f"pixels of type {array.dtype}, whose range is unknown: give uint8, uint16, bool or floats in [0, 1]",
        )
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= 1):  # also true of NaN
        detail = f"floats from {low:.4g} to {high:.4g}: scale them to [0, 1] and clip, without NaN"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    return np.rint(array.astype(np.float32) * 255).astype(np.uint8)
