"""Formats of images by the first bytes and the name of a file: those that are read, and how to convert others."""

import io
import os

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from discopatch.errors import ImageError
from discopatch.images.image import RefusalReason

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".tif", ".tiff", ".bmp", ".gif"),
    *(".heic", ".heif", ".heics", ".heifs", ".hif", ".avif", ".avifs"),
)
SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz")
PARQUET_SUFFIXES = (".parquet", ".pq")
LIST_SUFFIXES = (".txt", ".csv")
OTHER_ARCHIVES = (".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".tar.lz4", ".tar.zstd")

_RAW = "develop it to TIFF or JPEG, the same way for all, such as with darktable-cli or rawtherapee-cli"
_CONVERT = "convert it to PNG or TIFF of 8 or 16 bits, the same way for all"
_OTHERS = {
    _RAW: ".dng .cr2 .cr3 .crw .nef .nrw .arw .srf .sr2 .raf .rw2 .orf .pef .srw .x3f .3fr .iiq .erf .mrw .dcr .kdc",
    _CONVERT: ".jp2 .j2k .j2c .jpc .jpf .jpx .jpm .jph .jhc .jxl .jxr .wdp .hdp .psd .psb .xcf .kra .ora .afphoto .svg "
    ".svgz .ai .eps .emf .wmf .cdr .dcm .dicom .dic .ima .exr .hdr .rgbe .pfm .svs .ndpi .mrxs .scn .vms .czi .lif "
    ".nd2 .lsm .ppm .pgm .pbm .pnm .pam .tga .pcx .dds .ico .icns .cur .qoi .sgi .ras .fits .fit .fts",
}
OTHER_FORMATS = {suffix: remedy for remedy, suffixes in _OTHERS.items() for suffix in suffixes.split()}
RAW_FILE = f"a camera's raw file, which is not read: {_RAW}"

_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    *((start, "TIFF") for start in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1", b"mif2")
SIGNATURE_LENGTH = 64

# These classes are called directly because Image.open warns of large images, and a warning cannot be silenced from
# several threads without disturbing the caller's filters; the package's own limit comes before any decoding.
_CLASSES: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "TIFF": TiffImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
    "WebP": WebPImageFile,
    "AVIF": AvifImageFile,
}


def identify(start: bytes, suffix: str = "") -> str:
    """The format by the first bytes; ImageError, with the remedy, where it is not read."""
    for signature, kind in _SIGNATURES:
        if start.startswith(signature):
            if kind == "TIFF" and suffix in OTHER_FORMATS:  # a raw file, whose first image is a thumbnail
                break
            return kind
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "WebP"
    if start[4:8] == b"ftyp":
        brands = [start[place : place + 4] for place in range(8, min(len(start), int.from_bytes(start[:4])), 4)]
        if b"avif" in brands or b"avis" in brands:
            return "AVIF"
        if any(brand in _HEIF_BRANDS for brand in brands):
            return "HEIF"
    if suffix in OTHER_FORMATS:
        detail = f"files of {suffix} are not read: {OTHER_FORMATS[suffix]}"
        raise ImageError(RefusalReason.UNSUPPORTED, detail)
    detail = "not a JPEG, PNG, WebP, TIFF, BMP, GIF, HEIC or AVIF file: convert it to one of these"
    raise ImageError(RefusalReason.NOT_AN_IMAGE, detail)


def open_encoded(kind: str, data: bytes) -> ImageFile:
    """The image, opened but not decoded."""
    if kind != "HEIF":
        return _CLASSES[kind](io.BytesIO(data))
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        detail = "HEIC needs pillow-heif: pip install 'discopatch[heif]'"
        raise ImageError(RefusalReason.UNSUPPORTED, detail) from None
    image: ImageFile = HeifImageFile(io.BytesIO(data))  # type: ignore[no-untyped-call]
    return image


def is_shard(name: str) -> bool:
    return name.lower().endswith(SHARD_SUFFIXES)


def is_archive(name: str) -> bool:
    """Whether a file of that name is a tar archive, of a compression that is read or of another one."""
    return name.lower().endswith((*SHARD_SUFFIXES, *OTHER_ARCHIVES))


def is_parquet(name: str) -> bool:
    return name.lower().endswith(PARQUET_SUFFIXES)


def is_image_name(name: str) -> bool:
    """Whether a file of that name is an image, of a format that is read or of another one."""
    suffix = suffix_of(name)
    return suffix in IMAGE_SUFFIXES or suffix in OTHER_FORMATS


def suffix_of(name: str) -> str:
    """The suffix as `PurePath` has it, in lower case; PurePath takes longer than reading a file."""
    last = os.path.basename(name)  # noqa: PTH119
    dot = last.rfind(".")
    return last[dot:].lower() if 0 < dot < len(last) - 1 else ""
