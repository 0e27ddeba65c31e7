"""Every format and pixel type becomes the RGB that a viewer would show, or is refused with its reason."""

import io
import os
import struct
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from discopatch.images import Limits, NamedImage, Pixels, Refusal, RefusalReason, Transform, read_images
from discopatch.images.decode import rgb_from_bytes

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
def test_exif_orientation_is_applied(orientation: int) -> None:
    stored = Image.fromarray(photo(40, 60))
    stored.getexif()[ExifTags.Base.Orientation] = orientation
    expected = np.asarray(ImageOps.exif_transpose(stored))
    for kind in ("JPEG", "TIFF", "AVIF"):
        read = pixels_of(encoded(stored, kind, exif=stored.getexif(), quality=95))
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


def test_transparency_becomes_white() -> None:
    for mode, value in (("RGBA", (0, 0, 0, 128)), ("LA", (0, 128))):
        image = Image.new(mode, (48, 48), value)
        assert difference(pixels_of(encoded(image, "PNG")), np.full((48, 48, 3), 127, np.uint8)) <= 1
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


@pytest.mark.parametrize("name", ["a.jpg", "a.tar"])
def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for source in (tmp_path, [tmp_path / name]):
        assert refusal_of(source).reason is RefusalReason.UNREADABLE


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


def test_an_image_with_a_short_side_is_refused_as_too_small() -> None:
    for image in (photo(31, 64), photo(64, 31)):
        assert refusal_of(encoded(image, "PNG")).reason is RefusalReason.TOO_SMALL
        assert isinstance(read_one(image, Limits(min_side=31)), NamedImage)


def test_pixels_whose_range_is_unknown_are_refused_as_unsupported() -> None:
    deep = Image.fromarray(np.full((48, 48), 70_000, np.int32))
    sources: list[Any] = [deep, encoded(deep, "TIFF")]
    for value in (-0.1, 255.0, np.nan):
        array = np.full((48, 48), 0.5, np.float32)
        array[3, 4] = value
        sources += [array, Image.fromarray(array), encoded(Image.fromarray(array), "TIFF")]
    sources += [np.zeros((48, 48), dtype) for dtype in ("int8", "uint32", "complex64", "S3")]
    sources += [np.zeros(shape, np.uint8) for shape in ((), (3, 48, 48), (48, 48, 2), (2, 2, 48, 48, 3))]
    for source in sources:
        assert refusal_of(source).reason is RefusalReason.UNSUPPORTED


# Other formats.


def heic(pixels: Pixels) -> bytes:
    pillow_heif, buffer = pytest.importorskip("pillow_heif"), io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(buffer, quality=95)
    return buffer.getvalue()


def test_heic_is_read_as_all_others_and_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = heic(photo())
    assert np.abs(pixels_of(data).astype(int) - photo()).mean() < 6
    for each in (data, encoded(photo(), "AVIF")):
        assert refusal_of(each, Limits(max_pixels=2000)).reason is RefusalReason.TOO_LARGE
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    refusal = refusal_of(data)
    assert refusal.reason is RefusalReason.UNSUPPORTED
    assert "pip install 'discopatch[heif]'" in refusal.detail


@pytest.mark.parametrize("suffix", [".dng", ".psd"])
def test_formats_that_are_not_read_are_refused_unless_the_content_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix.upper()}"
    path.write_bytes(b"\0\1\2 something else" * 10)
    for source in (tmp_path, [path], f"{tmp_path}/*"):
        refusal = refusal_of(source)
        assert refusal.reason is RefusalReason.UNSUPPORTED
        assert suffix in refusal.detail
    path.write_bytes(encoded(photo(), "PNG"))
    assert np.array_equal(pixels_of(tmp_path), photo())


def test_the_thumbnail_of_a_raw_file_is_not_taken_for_the_image(tmp_path: Path) -> None:
    tiff = encoded(photo(), "TIFF", tiffinfo={50706: b"\1\4\0\0"})  # DNGVersion
    assert refusal_of(tiff).reason is RefusalReason.UNSUPPORTED
    plain = encoded(photo(), "TIFF")
    (tmp_path / "a.nef").write_bytes(plain)
    assert refusal_of(tmp_path).reason is RefusalReason.UNSUPPORTED
    canon = plain[:4] + struct.pack("<L", 16) + b"CR\2\0" + b"\0" * 4 + b"\0" * 100
    assert refusal_of(canon).reason in (RefusalReason.UNSUPPORTED, RefusalReason.TRUNCATED)


# JPEG files that are scaled while they are decoded.


def through(decoder: Any, source: object, **limits: int) -> NamedImage | Refusal:
    transform = Transform(64, decoder=decoder)
    (found,) = read_images([source], transform=transform, workers=1, limits=Limits(**limits))
    return found


@pytest.mark.parametrize(
    ("height", "width", "decoded"),
    [(256, 256, (128, 128)), (1024, 1500, (128, 188)), (255, 900, (255, 900)), (257, 259, (129, 130))],
)
def test_no_side_is_decoded_to_less_than_twice_the_square(height: int, width: int, decoded: tuple[int, int]) -> None:
    side = Transform(64, decoder="scaled").decoded_side
    image = rgb_from_bytes(encoded(photo(height, width), "JPEG"), Limits(), side=side)
    assert (image.height, image.width) == decoded


@pytest.mark.parametrize(
    ("mode", "orientation", "options"),
    [("RGB", 6, {"subsampling": 2}), ("L", 1, {"progressive": True}), ("CMYK", 1, {"subsampling": 0})],
)
def test_a_scaled_jpeg_becomes_nearly_the_same_square(mode: str, orientation: int, options: dict[str, Any]) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = encoded(Image.fromarray(photo(384, 512)).convert(mode), "JPEG", quality=92, exif=exif, **options)
    whole, scaled = through("pillow", data), through("scaled", data)
    assert isinstance(whole, NamedImage)
    assert isinstance(scaled, NamedImage)
    assert 0 < np.abs(scaled.pixels.astype(int) - whole.pixels).mean() < 3  # another image, or a wrong turn, gives 60


@pytest.mark.parametrize("limits", [{"max_pixels": 256 * 300 - 1}, {"max_bytes": 2000}, {"min_side": 257}])
def test_limits_hold_for_the_file_not_for_what_it_is_scaled_to(limits: dict[str, int]) -> None:
    data = encoded(photo(256, 300), "JPEG")
    whole = through("pillow", data, **limits)
    assert isinstance(whole, Refusal)
    assert through("scaled", data, **limits) == whole
