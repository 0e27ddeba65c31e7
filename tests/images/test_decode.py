"""Every format and pixel type becomes the RGB that a viewer would show, or is refused with its reason."""

import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from discopatch.images import Limits, NamedImage, RefusalReason

from .samples import difference, encoded, noise, photo, pixels_of, read_one, refusal_of

KINDS = ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"]
OTHER_FILES = [b"hello", b"%PDF-1.7 ...", b"RIFF\x10\0\0\0WAVEfmt ", b"\0" * 100, encoded(photo(), "PPM")]


def png_that_claims(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("TIFF", {"compression": "tiff_lzw"}), ("BMP", {}), ("WEBP", {"lossless": True})],
)
def test_lossless_formats_give_the_pixels_that_were_saved(kind: str, options: dict[str, Any]) -> None:
    assert np.array_equal(pixels_of(encoded(photo(), kind, **options)), photo())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    stored = Image.fromarray(photo(40, 60))
    stored.getexif()[ExifTags.Base.Orientation] = orientation
    data = encoded(stored, kind, exif=stored.getexif(), quality=100, lossless=True)
    expected = np.asarray(ImageOps.exif_transpose(stored))
    read = pixels_of(data)
    assert read.shape == expected.shape
    assert np.abs(read.astype(int) - expected).mean() < 15  # a wrong turn gives more than 60


def test_orientation_of_an_open_pil_image_is_applied_and_the_image_stays_as_it_was() -> None:
    image = Image.fromarray(photo(40, 60))
    image.getexif()[ExifTags.Base.Orientation] = 6
    image.info["comment"] = "kept"
    for _ in range(2):
        assert np.array_equal(pixels_of(image), np.rot90(photo(40, 60), -1))
    assert image.size == (60, 40)
    assert image.info == {"comment": "kept"}
    assert image.getexif()[ExifTags.Base.Orientation] == 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_of_16_bits_is_divided_by_257_whatever_the_content(kind: str) -> None:
    ramp = np.linspace(0, 20_000, 48 * 64).astype(np.uint16).reshape(48, 64)
    expected = np.rint(ramp / 257).astype(np.uint8)
    read = pixels_of(encoded(Image.fromarray(ramp), kind))
    assert np.array_equal(read, np.repeat(expected[:, :, None], 3, axis=2))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composited_on_white(mode: str) -> None:
    image = Image.new(mode, (48, 48), (0, 128) if mode == "LA" else (0, 0, 0, 128))
    assert difference(pixels_of(encoded(image, "PNG")), np.full((48, 48, 3), 127, np.uint8)) <= 1


def test_a_transparent_palette_entry_becomes_white() -> None:
    palette = Image.new("P", (48, 48), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.paste(0, (0, 0, 24, 48))
    for transparency in (1, b"\xff\x00"):
        read = pixels_of(encoded(palette, "PNG", transparency=transparency))
        assert (read[:, :24] == (255, 0, 0)).all()
        assert (read[:, 24:] == 255).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_truncated_files_are_refused_as_truncated(kind: str, share: float) -> None:
    data = encoded(noise(80, 80), kind)
    assert refusal_of(data[: max(12, int(len(data) * share))]).reason is RefusalReason.TRUNCATED


@pytest.mark.parametrize("data", OTHER_FILES)
def test_other_files_are_refused_as_not_an_image(data: bytes) -> None:
    assert refusal_of(data).reason is RefusalReason.NOT_AN_IMAGE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_refused_as_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(photo(), "PNG"))
    path.chmod(0)
    assert refusal_of(path).reason is RefusalReason.UNREADABLE


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    assert refusal_of(tmp_path).reason is RefusalReason.UNREADABLE


def test_a_declared_size_beyond_the_limit_is_refused_before_decoding() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refusal = refusal_of(png_that_claims(60_000, 60_000))
    assert refusal.reason is RefusalReason.TOO_LARGE
    assert "max_pixels" in refusal.detail


def test_a_file_of_too_many_bytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(photo(), "PNG"))
    os.truncate(path, 2**40)
    refusal = refusal_of(path)
    assert refusal.reason is RefusalReason.TOO_LARGE
    assert "max_bytes" in refusal.detail


@pytest.mark.parametrize(("height", "width"), [(31, 64), (64, 31)])
def test_an_image_with_a_short_side_is_refused_as_too_small(height: int, width: int) -> None:
    assert refusal_of(encoded(photo(height, width), "PNG")).reason is RefusalReason.TOO_SMALL
    assert isinstance(read_one(photo(height, width), Limits(min_side=31)), NamedImage)


def test_integers_of_32_bits_are_refused_as_unsupported() -> None:
    image = Image.fromarray(np.full((48, 48), 70_000, np.int32))
    for source in (image, encoded(image, "TIFF")):
        assert refusal_of(source).reason is RefusalReason.UNSUPPORTED


@pytest.mark.parametrize("value", [-0.1, 255.0, np.nan])
def test_floats_outside_0_and_1_are_refused_as_unsupported(value: float) -> None:
    array = np.full((48, 48), 0.5, np.float32)
    array[3, 4] = value
    for source in (array, Image.fromarray(array), encoded(Image.fromarray(array), "TIFF")):
        assert refusal_of(source).reason is RefusalReason.UNSUPPORTED


@pytest.mark.parametrize("dtype", ["int8", "uint32", "complex64", "S3"])
def test_arrays_whose_range_is_unknown_are_refused_as_unsupported(dtype: str) -> None:
    assert refusal_of(np.zeros((48, 48), dtype)).reason is RefusalReason.UNSUPPORTED


@pytest.mark.parametrize("shape", [(), (3, 48, 48), (48, 48, 2), (2, 2, 48, 48, 3)])
def test_arrays_of_odd_shape_are_refused_as_unsupported(shape: tuple[int, ...]) -> None:
    assert refusal_of(np.zeros(shape, np.uint8)).reason is RefusalReason.UNSUPPORTED
