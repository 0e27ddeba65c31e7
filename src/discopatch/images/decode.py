"""Bytes, PIL images and arrays become RGB of 8 bits, by rules that never depend on the content.

EXIF orientation is applied. Transparency is composited on white. Grey of 16 bits is divided by 257, so that
the full range stays the full range; of colours of 16 bits Pillow keeps the upper byte. Floats lie in [0, 1].
"""

import io
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from discopatch.errors import ImageError
from discopatch.images.image import Limits, Pixels, RefusalReason

# These classes are called directly because Image.open warns of large images, and a warning cannot be silenced
# from several threads without disturbing the caller's filters; our own limit comes before any decoding.
_SIGNATURES: tuple[tuple[bytes, str, Callable[[io.BytesIO], ImageFile]], ...] = (
    (b"\xff\xd8\xff", "JPEG", JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", "PNG", PngImageFile),
    *((start, "TIFF", TiffImageFile) for start in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    (b"GIF87a", "GIF", GifImageFile),
    (b"GIF89a", "GIF", GifImageFile),
    (b"RIFF", "WebP", WebPImageFile),
    (b"BM", "BMP", BmpImageFile),
)

# A list may hold one image twice, and Pillow's loading on first use does not expect two threads.
_LAZY_LOADING = threading.Lock()

# What Pillow says of a file that is whole, but of a kind that it cannot read.
_UNSUPPORTED_TEXTS = ("unsupported", "unknown pixel mode", "cannot handle", "conversion from", "not supported")


def decode(data: bytes, limits: Limits = Limits()) -> Pixels:  # noqa: B008 - frozen
    """The pixels (H, W, 3) of an encoded image, or ImageError."""
    return np.array(rgb_from_bytes(data, limits))


def read_file(path: Path, limits: Limits) -> bytes:
    """The bytes of a regular file, refused unread when there are too many of them."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(RefusalReason.UNREADABLE, "not a regular file")
        check_bytes(status.st_size, limits)
        return path.read_bytes()
    except FileNotFoundError:
        raise ImageError(RefusalReason.MISSING, "no such file") from None
    except OSError as error:
        raise unreadable(error) from error


def unreadable(error: OSError) -> ImageError:
    """The error of a file or folder that is there but cannot be read."""
    detail = f"the system refuses to read it ({error.strerror}): check its permissions"
    return ImageError(RefusalReason.UNREADABLE, detail)


def check_bytes(count: int, limits: Limits) -> None:
    """Refuses an encoded image that is empty or larger than `limits.max_bytes`."""
    if count == 0:
        raise ImageError(RefusalReason.EMPTY, "0 bytes")
    if count > limits.max_bytes:
        raise ImageError(RefusalReason.TOO_LARGE, f"{count} bytes; at most {limits.max_bytes}: raise max_bytes")


def rgb_from_bytes(data: bytes, limits: Limits) -> Image.Image:
    """An encoded JPEG, PNG, WebP, TIFF, BMP or GIF (its first frame) in RGB; the size is checked first."""
    check_bytes(len(data), limits)
    for signature, kind, opener in _SIGNATURES:
        if data.startswith(signature) and (kind != "WebP" or data[8:12] == b"WEBP"):
            with _pillow_errors_refuse(kind):
                image = opener(io.BytesIO(data))
                _check_size(image.height, image.width, limits)
                image.load()
                return _rgb(_upright(image))
    detail = "not a JPEG, PNG, WebP, TIFF, BMP or GIF file: convert it to one of these"
    raise ImageError(RefusalReason.NOT_AN_IMAGE, detail)


def rgb_from_image(image: Image.Image, limits: Limits) -> Image.Image:
    """A PIL image of any mode in RGB."""
    _check_size(image.height, image.width, limits)
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
    _check_size(array.shape[0], array.shape[1], limits)
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


def _check_size(height: int, width: int, limits: Limits) -> None:
    if height * width > limits.max_pixels:
        raise ImageError(
            RefusalReason.TOO_LARGE,
            f"{width} x {height} pixels; at most {limits.max_pixels} in all: shrink it or raise max_pixels",
        )
    if min(height, width) < limits.min_side:
        raise ImageError(
            RefusalReason.TOO_SMALL,
            f"{width} x {height} pixels; each side needs at least {limits.min_side}: use a larger image",
        )


def _upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says, or itself when there is nothing to turn."""
    try:
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
