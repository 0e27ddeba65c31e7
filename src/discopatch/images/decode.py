"""Bytes, PIL images and arrays become RGB of 8 bits, by rules that never depend on the content.

EXIF orientation is applied. Transparency is composited on white. Without levels, grey of 16 bits is divided by 257, so
that the full range stays the full range; of colours of 16 bits Pillow keeps the upper byte. Floats lie in [0, 1].
"""

import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from discopatch.errors import DiscopatchError, ImageError, MissingExtraError
from discopatch.images.deep import READERS, TiffHeader, check_tiff, dicom_header, from_array, orientation_of
from discopatch.images.image import DEFAULT_LIMITS, Limits, Pixels, RefusalReason, check_bytes, check_pixels
from discopatch.images.levels import BYTES, Values
from discopatch.images.transform import SCALED

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".tif", ".tiff", ".bmp", ".gif"),
    *(".heic", ".heif", ".heics", ".heifs", ".hif", ".avif", ".avifs"),
    *(".dcm", ".dicom"),
)
OTHER_SUFFIXES = (  # of images that are not read: they are refused, not passed over
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".rw2", ".orf", ".pef", ".srw", ".jp2", ".j2k", ".jxl", ".psd"),
    *(".svg", ".eps", ".exr", ".hdr", ".svs", ".ndpi", ".czi", ".ppm", ".pgm", ".pnm", ".tga", ".ico", ".fits"),
)
SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz")
OTHER_ARCHIVES = (
    *(".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".tar.lz4", ".tar.zstd"),
    *(".zip", ".7z", ".rar", ".zst"),
)
NOTE_SUFFIXES = (  # of labels and notes beside images, which are passed over unopened and without a word
    *(".txt", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".toml", ".ini", ".md", ".html", ".log"),
    *(".cls", ".cls2", ".id", ".index", ".caption", ".npy", ".npz", ".pkl", ".pickle", ".pyd", ".pt", ".pth", ".db"),
)
_ALL_IMAGES, _ALL_ARCHIVES = IMAGE_SUFFIXES + OTHER_SUFFIXES, SHARD_SUFFIXES + OTHER_ARCHIVES

# The first bytes of each format. Pillow's classes are called directly because Image.open warns of large images, and a
# warning cannot be silenced from several threads without disturbing the caller's filters.
_FORMATS: dict[str, tuple[re.Pattern[bytes], type[ImageFile] | None]] = {
    "DICOM": (re.compile(rb".{128}DICM", re.DOTALL), None),  # first, since it may also begin as a TIFF
    "JPEG": (re.compile(rb"\xff\xd8\xff"), JpegImageFile),
    "PNG": (re.compile(rb"\x89PNG\r\n\x1a\n"), PngImageFile),
    "TIFF": (re.compile(rb"II[*+]\0|MM\0[*+]"), TiffImageFile),
    "GIF": (re.compile(rb"GIF8[79]a"), GifImageFile),
    "BMP": (re.compile(rb"BM"), BmpImageFile),
    "WebP": (re.compile(rb"RIFF....WEBP", re.DOTALL), WebPImageFile),
    "AVIF": (re.compile(rb"....ftyp(?:....)*?avi[fs]", re.DOTALL), AvifImageFile),
    "HEIF": (re.compile(rb"....ftyp(?:....)*?(?:hei[cxms]|hev[cxms]|mif[12]|msf1)", re.DOTALL), None),
}
SIGNATURE = 132  # bytes at the beginning of a file

MAX_SCANS = 64  # of a progressive JPEG; writers make about ten, and each is a pass over all pixels
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")

# Of the EXIF orientations from 2 on.
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")

# A list may hold one image twice, and Pillow's loading on first use is not safe for two threads.
_LAZY_LOADING = threading.Lock()

NO_LEVELS = "deeper than 8 bits, and there are no levels: fit a detector on such images, or scale them to 8 bits"

# Pillow's errors for a file that is whole, but of a kind that it cannot read.
_UNSUPPORTED = re.compile(
    "unsupported|unknown pixel mode|cannot handle|conversion from|not (supported|installed)", re.I
)


# Names and first bytes of files.


def is_archive(name: str) -> bool:
    """Whether a file of that name is a tar archive, of a compression that is read or of another one."""
    return name.lower().endswith(_ALL_ARCHIVES)


def is_parquet(name: str) -> bool:
    return name.lower().endswith((".parquet", ".pq"))


def is_image_name(name: str) -> bool:
    """Whether a file of that name is an image, of a format that is read or of another one."""
    return name.lower().endswith(_ALL_IMAGES)


def is_note(name: str) -> bool:
    """Whether a file of that name holds labels or notes, or is hidden."""
    return name.rpartition("/")[2].startswith(".") or name.lower().endswith(NOTE_SUFFIXES)


def is_image_start(start: bytes) -> bool:
    """Whether the first bytes of a file are those of an image that is read, whatever its name."""
    return any(pattern.match(start[:SIGNATURE]) for pattern, _ in _FORMATS.values())


def identify(data: bytes, name: str = "") -> str:
    """The format by the first bytes; ImageError, with the remedy, where it is not read."""
    start = data[:SIGNATURE]
    kind = next((kind for kind, (pattern, _) in _FORMATS.items() if pattern.match(start)), None)
    if kind in (None, "TIFF") and name.lower().endswith(OTHER_SUFFIXES):  # a raw file begins with a thumbnail
        suffix = name.lower().rpartition(".")[2]
        detail = f"files of .{suffix} are not read: convert them to PNG or TIFF of 8 or 16 bits, the same way for all"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    if kind is None:
        detail = "not a JPEG, PNG, WebP, TIFF, BMP, GIF, HEIC, AVIF or DICOM file: convert it to one of these"
        raise ImageError(RefusalReason.NOT_AN_IMAGE, detail)
    return kind


def _open(kind: str, data: bytes) -> ImageFile:
    opener = _FORMATS[kind][1]
    if opener is None:
        try:
            import pillow_heif
        except ImportError:
            detail = "HEIC needs pillow-heif: pip install 'discopatch[heif]'"
            raise ImageError(RefusalReason.UNSUPPORTED, detail) from None
        opener = pillow_heif.HeifImageFile
    return opener(io.BytesIO(data))


# Pixels.


def decode(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Pixels:
    """The pixels (H, W, 3) of an encoded image, or ImageError."""
    return np.array(rgb_from_bytes(data, limits))


def stored_values(content: bytes | Image.Image | NDArray[Any], limits: Limits, name: str = "") -> Values | None:
    """The pixels as they are stored in a file or in memory; None where they have 8 bits."""
    if isinstance(content, np.ndarray):
        return from_array(content, limits)
    if isinstance(content, Image.Image):
        with _pillow_errors_refuse(content.format or "image"), _LAZY_LOADING:
            return from_array(np.asarray(_upright(content)), limits) if content.mode[0] in "IF" else None
    check_bytes(len(content), limits)
    kind = identify(content, name)
    with _pillow_errors_refuse(kind):
        return READERS[kind](content, limits) if kind in READERS else None


def rgb_from_bytes(data: bytes, limits: Limits, name: str = "", *, side: int | None = None) -> Image.Image:
    """An encoded image in RGB, of several frames the first; it goes by the content, and the size is checked first.

    With `side` a JPEG is scaled while it is decoded, by 8, 4 or 2, as far as no side has fewer pixels than that; its
    `info` then has its height and width as SCALED.
    """
    check_bytes(len(data), limits)
    kind = identify(data, name)
    if kind == "DICOM":
        values = stored_values(data, limits, name)
        if values is None or values.kind not in BYTES:
            raise ImageError(RefusalReason.UNSUPPORTED, NO_LEVELS)
        return rgb_from_array(values.bands, limits)
    with _pillow_errors_refuse(kind):
        if kind == "WebP":
            check_pixels(*_webp_size(data), limits, min_side=0)  # Pillow allocates all pixels as it opens the file
        image = _open(kind, data)
        check_pixels(image.height, image.width, limits)
        if isinstance(image, TiffImageFile):
            check_tiff(image, data, limits)
        if kind == "JPEG" and image.info.get("progressive"):
            check_scans(data)
        stored = image.size
        if side is not None and kind == "JPEG":
            least = max(side, limits.min_side)  # or what is left would be refused as too small
            image.draft(None, (least, least))
        scaled = image.size != stored
        image.load()
        check_pixels(image.height, image.width, limits)  # a HEIF may be larger than its header says
        found = _rgb(_upright(image))
        if scaled:
            turned = (found.width > found.height) != (image.width > image.height)
            found.info[SCALED] = stored if turned else stored[::-1]
        return found


class Header(NamedTuple):
    """Format and mode of an image, its height and width as it is shown, and the date in its EXIF, if they are known."""

    kind: str
    mode: str
    size: tuple[int, int]
    date: str = ""


def header_of(data: bytes, name: str = "") -> Header:
    kind, date = identify(data, name), ""
    with _pillow_errors_refuse(kind):
        if kind == "DICOM":
            header = dicom_header(data)
            return Header(kind, "", (int(header.Rows), int(header.Columns)))
        image = TiffHeader(io.BytesIO(data)) if kind == "TIFF" else _open(kind, data)
        exif = image.getexif()
        turned = exif.get(ExifTags.Base.Orientation, 1) in range(5, 9)
        with suppress(Exception):  # broken metadata are no reason to refuse an image
            taken = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
            date = str(taken or exif.get(ExifTags.Base.DateTime, ""))
    return Header(kind, image.mode, image.size if turned else image.size[::-1], date)


def count_pixels(data: bytes, name: str = "") -> int:
    """Number of pixels of an encoded image, from its header, or ImageError."""
    kind = identify(data, name)
    # Pillow allocates all pixels of a WebP as it opens the file.
    height, width = _webp_size(data) if kind == "WebP" else header_of(data, name).size
    return height * width


def rgb_from_image(image: Image.Image, limits: Limits) -> Image.Image:
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


def _webp_size(data: bytes) -> tuple[int, int]:
    """Height and width by the header."""
    chunk, body = data[12:16], data[20:30].ljust(10, b"\0")
    if chunk == b"VP8X":
        width, height = (1 + int.from_bytes(body[place : place + 3], "little") for place in (4, 7))
    elif chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (0x3FFF & int.from_bytes(body[place : place + 2], "little") for place in (6, 8))
    return height, width


def check_scans(data: bytes) -> None:
    """Raises ImageError for a progressive JPEG of very many scans, which takes hours."""
    place, scans = 2, 0
    while (match := _NEXT_MARKER.search(data, place)) is not None and match[0] != b"\xff\xd9":
        place = match.end() + int.from_bytes(data[match.end() : match.end() + 2])
        scans += match[0] == b"\xff\xda"
        if scans > MAX_SCANS:
            detail = f"a JPEG of more than {MAX_SCANS} scans, which would take very long: save it again"
            raise ImageError(RefusalReason.UNSUPPORTED, detail)


@contextmanager
def _pillow_errors_refuse(kind: str) -> Iterator[None]:
    """Turns what Pillow raises on a bad file, which can be any exception, into an ImageError."""
    try:
        yield
    except MissingExtraError as error:
        raise ImageError(RefusalReason.UNSUPPORTED, str(error)) from error
    except DiscopatchError:
        raise
    except (MemoryError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(RefusalReason.TOO_LARGE, f"{kind} too large to decode: scale it down") from error
    except Exception as error:
        cause = type(error).__name__ if kind == "DICOM" else error  # pydicom may cite the name of a patient
        if _UNSUPPORTED.search(str(error)):
            detail = f"a kind of {kind} that cannot be read ({cause}): save it as RGB of 8 bits"
            raise ImageError(RefusalReason.UNSUPPORTED, detail) from error
        detail = f"{kind} cut short or damaged ({cause}): copy it again"
        raise ImageError(RefusalReason.TRUNCATED, detail) from error


def _upright(image: Image.Image) -> Image.Image:
    """The image turned by its EXIF orientation, or itself when there is nothing to turn."""
    orientation = orientation_of(image)
    return image.transpose(Image.Transpose[_TURNS[orientation - 2]]) if orientation in range(2, 9) else image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "F":
        deep = np.asarray(image)
        grey = _eight_bits(deep)
        if "transparency" in image.info:
            grey[deep == image.info["transparency"]] = 255
        image = Image.fromarray(grey)
    if image.mode == "I":
        raise ImageError(RefusalReason.UNSUPPORTED, NO_LEVELS)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    translucent = image if image.mode == "RGBA" else image.convert("RGBA")
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(translucent, mask=translucent)
    return canvas


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
