"""Pixels as they are stored in TIFF, in PNG of 16 bits, in DICOM and in memory."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import OPEN_INFO, TiffImageFile

from discopatch.errors import ImageError
from discopatch.images.image import Limits, RefusalReason, check_pixels
from discopatch.images.levels import Values
from discopatch.utils import require

MOST_BYTES = 8  # of a decoded image, for each pixel that is allowed
_GREY = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # modes of Pillow that keep more than 8 bits
_BITS, _PHOTOMETRIC, _ORDER, _SAMPLES, _FORMAT = 258, 262, 266, 277, 339  # tags of TIFF
_TILE_WIDTH, _TILE_LENGTH, _SUBFILE, _SUB_IMAGES, _DNG = 322, 323, 254, 330, 50706
_BOUNDED = (1, 5, 8, 32946, 32773, 34925, 50000)  # compressions: none, LZW, deflate, packbits, LZMA, Zstandard

_DEFLATED = b"1.2.840.10008.1.2.1.99"  # a transfer syntax that may expand without limit
_DICOM_TAGS: list[Any] = [  # all that is read of a DICOM file: nothing of the patient
    *("Rows", "Columns", "SamplesPerPixel", "PlanarConfiguration", "NumberOfFrames", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope", "RescaleIntercept"),
    *("ModalityLUTSequence", "VOILUTFunction", "WindowCenter", "WindowWidth", "PixelData", "FloatPixelData"),
    *("DoubleFloatPixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths"),
]


def unsupported(detail: str) -> ImageError:
    return ImageError(RefusalReason.UNSUPPORTED, detail)


def check_size(height: int, width: int, bands: int, itemsize: int, limits: Limits) -> None:
    """Raises ImageError where an image has too few or too many pixels, or too many bytes after decoding."""
    check_pixels(height, width, limits)
    if height * width * bands * itemsize > MOST_BYTES * limits.max_pixels:
        detail = f"{width} x {height} pixels of {bands} bands: store fewer bands or raise max_pixels (--max-pixels)"
        raise ImageError(RefusalReason.TOO_LARGE, detail)


def from_array(array: NDArray[Any], limits: Limits, *, kind: str | None = None) -> Values:
    """The values of (H, W) or (H, W, bands), of any type of real numbers."""
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or not array.shape[2] or array.dtype.kind not in "buif":
        raise unsupported(f"{array.dtype} of shape {array.shape}: give real numbers of shape (H, W) or (H, W, bands)")
    check_size(array.shape[0], array.shape[1], array.shape[2], array.itemsize, limits)
    fixed = array.dtype in (np.uint8, np.bool_)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise unsupported("values that are not finite numbers: replace them, the same way for all images")
        fixed = low >= 0 and high <= 1
    return Values(array, kind or array.dtype.name, deep=not (fixed and array.shape[2] in (1, 3, 4)))


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation; 1 where the metadata are broken, which is no reason to refuse an image."""
    try:
        return int(image.getexif().get(274, 1))
    except Exception:
        return 1


def turned(array: NDArray[Any], image: Image.Image) -> NDArray[Any]:
    """The pixels (H, W) or (H, W, bands) of an image, turned by its EXIF orientation."""
    orientation = orientation_of(image)
    array = array.swapaxes(0, 1) if orientation in range(5, 9) else array
    return {1: array[:, ::-1], 2: array[::-1, ::-1], 3: array[::-1]}.get((orientation - 1) % 4, array)


def from_png(data: bytes, limits: Limits) -> Values | None:
    """The values of a PNG of 16 bits without transparency; None for any other PNG."""
    if data[24] != 16 or data[25] not in (0, 2) or "transparency" in (image := PngImageFile(io.BytesIO(data))).info:
        return None
    check_size(image.height, image.width, len(image.getbands()), 2, limits)
    if data[25] == 0:
        return from_array(turned(np.asarray(image).astype(np.uint16), image), limits)
    halves = []
    for order in ("RGB;16B", "RGB;16L"):  # Pillow keeps the upper byte, in the wrong order the lower one
        image = PngImageFile(io.BytesIO(data))
        image.tile = [tile._replace(args=order) for tile in image.tile]
        halves.append(np.asarray(image).astype(np.uint16))
    return from_array(turned(halves[0] << 8 | halves[1], image), limits)


class TiffHeader(TiffImageFile):
    """The tags of a TIFF, also of pixels that Pillow does not read."""

    def _setup(self) -> None:
        self._mode, self._size = "L", (self.tag_v2[256], self.tag_v2[257])


def check_tiff(image: TiffImageFile, data: bytes, limits: Limits) -> None:
    """Raises ImageError for a raw file, whose image is a thumbnail, and for tiles of too many pixels."""
    tags = image.tag_v2
    if data[8:10] == b"CR" or _DNG in tags or (_SUB_IMAGES in tags and tags.get(_SUBFILE, 0) & 1):
        detail = "a raw file of a camera is not read: develop it to TIFF or JPEG, the same way for all"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    check_pixels(tags.get(_TILE_LENGTH, 1), tags.get(_TILE_WIDTH, 1), limits, min_side=0)


def from_tiff(data: bytes, limits: Limits) -> Values | None:
    """The values of the first page of a TIFF; None where they have 8 bits and are grey or a colour."""
    header = TiffHeader(io.BytesIO(data))
    tags = header.tag_v2
    kind, bits, bands, photometric = (
        tags.get(tag, usual) for tag, usual in ((_FORMAT, (1,)), (_BITS, (1,)), (_SAMPLES, 1), (_PHOTOMETRIC, 0))
    )
    if max(bits) <= 8 and set(kind) == {1} and (photometric > 1 or bands < 3):
        return None
    check_tiff(header, data, limits)
    check_size(header.height, header.width, bands, max(bits) // 8, limits)
    key = (tags.prefix, photometric, kind, tags.get(_ORDER, 1), bits, ())
    if OPEN_INFO.get(key, ("",))[0] in _GREY and (kind, bits) != ((1,), (32,)):  # which Pillow takes for signed
        values = np.asarray(TiffImageFile(io.BytesIO(data))).astype(f"{'uif'[kind[0] - 1]}{max(*bits, 16) // 8}")
        return from_array(turned(values, header), limits)
    require("tifffile", extra="tiff")
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:  # which need not read the same tags
        page = file.pages.first
        check_size(page.imagelength, page.imagewidth, 1, page.nbytes // (page.imagelength * page.imagewidth), limits)
        check_pixels(page.tilelength or 1, page.tilewidth or 1, limits, min_side=0)
        if page.compression not in _BOUNDED:
            raise unsupported(f"TIFF of {bands} bands with compression {page.compression}: save it with deflate or LZW")
        if page.compression != 1:
            require("imagecodecs", extra="tiff")
        if max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True))) > len(data):  # or zeros are read
            raise ImageError(RefusalReason.TRUNCATED, "TIFF cut short or damaged: copy it again")
        array = page.asarray(maxworkers=1)
        array = np.moveaxis(array, 0, -1) if page.axes.startswith("S") else array
    return from_array(turned(array, header), limits)._replace(deep=True)


def dicom_header(data: bytes) -> Any:
    """What is needed of a DICOM file, not decoded."""
    require("pydicom", extra="dicom")
    import pydicom

    if _DEFLATED in data:
        raise unsupported("DICOM in the deflated transfer syntax: save it as Explicit VR Little Endian")
    header = pydicom.dcmread(io.BytesIO(data), specific_tags=_DICOM_TAGS)
    if "Rows" not in header or (header.get("NumberOfFrames") or 1) > 1 or "PALETTE" in header.PhotometricInterpretation:
        raise unsupported("DICOM without an image, with a palette, or of several frames: save one RGB or grey frame")
    if header.get("BitsAllocated") == 1:
        raise unsupported("DICOM of one bit, which is a mask: give the image")
    return header


def from_dicom(data: bytes, limits: Limits) -> Values:
    """The values of a DICOM file: rescaled, and inverted for MONOCHROME1."""
    header = dicom_header(data)
    from pydicom.pixels.processing import apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    check_size(header.Rows, header.Columns, header.SamplesPerPixel, -(-header.BitsAllocated // 8), limits)
    try:
        values = pixel_array(header, index=0)
    except RuntimeError as error:
        if not any(word in str(error) for word in ("missing", "not support")):
            raise
        syntax, packages = header.file_meta.TransferSyntaxUID.name, "pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
        raise unsupported(f"DICOM in {syntax}: pip install {packages}, or save it without compression") from None
    first = -(2 ** (header.BitsStored - 1)) * header.PixelRepresentation if values.dtype.kind in "ui" else 0
    ends = np.array([first, first + 2**header.BitsStored - 1])
    if "ModalityLUTSequence" in header or (header.get("RescaleSlope", 1), header.get("RescaleIntercept", 0)) != (1, 0):
        values, ends = apply_modality_lut(values, header), apply_modality_lut(ends, header)
    if inverted := header.PhotometricInterpretation == "MONOCHROME1":
        values = (ends.sum() - values).astype(np.uint8 if values.dtype == np.uint8 else np.float64)
    window = None
    if {"WindowCenter", "WindowWidth"} <= set(header.dir()) and header.get("VOILUTFunction", "LINEAR") == "LINEAR":
        centre, width = (np.atleast_1d(header[f"Window{each}"].value)[0] for each in ("Center", "Width"))
        centre = ends.sum() - centre + 0.5 if inverted else centre - 0.5
        window = (float(centre - (width - 1) / 2), float(centre + (width - 1) / 2))
    is_plain = values.dtype == np.uint8 and header.BitsStored == 8
    return from_array(values, limits, kind="uint8" if is_plain else "DICOM")._replace(deep=not is_plain, window=window)


READERS: dict[str, Callable[[bytes, Limits], Values | None]] = {"PNG": from_png, "TIFF": from_tiff, "DICOM": from_dicom}
