"""Every format and pixel type becomes the RGB that a viewer would show."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile, ImageOps

from discopatch.images import Limits

from .samples import difference, encoded, noise, photo, pixels_of


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_lossless_formats_give_the_pixels_that_were_saved(kind: str) -> None:
    assert np.array_equal(pixels_of(encoded(photo(), kind)), photo())


def test_lossless_webp_gives_the_pixels_that_were_saved() -> None:
    assert np.array_equal(pixels_of(encoded(photo(), "WEBP", lossless=True)), photo())


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "packbits"])
def test_compressed_tiff_gives_the_pixels_that_were_saved(compression: str) -> None:
    assert np.array_equal(pixels_of(encoded(photo(), "TIFF", compression=compression)), photo())


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_agree_with_pillow(kind: str) -> None:
    data = encoded(photo(), kind, quality=90)
    assert np.abs(pixels_of(data).astype(int) - photo()).mean() < 6


def test_only_the_first_frame_of_a_gif_is_taken() -> None:
    first, second = (Image.new("RGB", (48, 48), colour) for colour in ("red", "blue"))
    animation = encoded(first, "GIF", save_all=True, append_images=[second])
    assert (pixels_of(animation) == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    stored = Image.fromarray(photo(40, 60))
    stored.getexif()[ExifTags.Base.Orientation] = orientation
    data = encoded(stored, kind, exif=stored.getexif(), quality=100, lossless=True)
    expected = np.asarray(ImageOps.exif_transpose(stored))
    read = pixels_of(data)
    assert read.shape == expected.shape
    assert np.abs(read.astype(int) - expected).mean() < 15  # a wrong turn gives more than 60


def test_orientation_of_an_open_pil_image_is_applied_too() -> None:
    image = Image.fromarray(photo(40, 60))
    image.getexif()[ExifTags.Base.Orientation] = 6
    assert pixels_of(image).shape == (60, 40, 3)


def test_broken_exif_does_not_lose_the_picture() -> None:
    data = encoded(photo(), "PNG", exif=b"Exif\0\0II*\0" + b"\xff" * 7)
    assert np.array_equal(pixels_of(data), photo())


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_of_16_bits_is_divided_by_257_whatever_the_content(kind: str) -> None:
    ramp = np.linspace(0, 20_000, 48 * 64).astype(np.uint16).reshape(48, 64)
    expected = np.rint(ramp / 257).astype(np.uint8)
    read = pixels_of(encoded(Image.fromarray(ramp), kind))
    assert np.array_equal(read, np.repeat(expected[:, :, None], 3, axis=2))


def test_the_ends_of_the_16_bit_range_are_the_ends_of_the_8_bit_range() -> None:
    ends = np.zeros((48, 64), np.uint16)
    ends[24:] = 65535
    assert set(np.unique(pixels_of(encoded(Image.fromarray(ends), "PNG")))) == {0, 255}


def test_a_transparent_grey_of_16_bits_becomes_white() -> None:
    ramp = np.full((48, 64), 1000, np.uint16)
    assert (pixels_of(encoded(Image.fromarray(ramp), "PNG", transparency=1000)) == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composited_on_white(mode: str) -> None:
    image = Image.new(mode, (48, 48), (0, 128) if mode == "LA" else (0, 0, 0, 128))
    assert difference(pixels_of(encoded(image, "PNG")), np.full((48, 48, 3), 127, np.uint8)) <= 1


def test_full_transparency_is_white_and_full_opacity_is_exact() -> None:
    alpha = np.zeros((48, 64, 1), np.uint8)
    alpha[:, 32:] = 255
    read = pixels_of(encoded(np.concatenate([photo(), alpha], axis=2), "PNG"))
    assert (read[:, :32] == 255).all()
    assert np.array_equal(read[:, 32:], photo()[:, 32:])


def test_a_palette_gives_its_colours() -> None:
    palette = Image.fromarray(photo()).quantize(16)
    for kind in ("PNG", "GIF", "BMP"):
        assert np.array_equal(pixels_of(encoded(palette, kind)), np.asarray(palette.convert("RGB")))


def test_a_transparent_palette_entry_becomes_white() -> None:
    palette = Image.new("P", (48, 48), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.paste(0, (0, 0, 24, 48))
    for transparency in (1, b"\xff\x00"):
        read = pixels_of(encoded(palette, "PNG", transparency=transparency))
        assert (read[:, :24] == (255, 0, 0)).all()
        assert (read[:, 24:] == 255).all()


def test_cmyk_becomes_rgb() -> None:
    image = Image.new("CMYK", (48, 48), (0, 255, 255, 0))
    for kind in ("JPEG", "TIFF"):
        assert difference(pixels_of(encoded(image, kind)), np.full((48, 48, 3), (255, 0, 0), np.uint8)) <= 3


def test_grey_and_one_bit_are_repeated_over_the_channels() -> None:
    grey = Image.fromarray(photo()).convert("L")
    for image in (grey, grey.convert("1")):
        for kind in ("PNG", "TIFF", "BMP"):
            expected = np.asarray(image.convert("L"))
            assert np.array_equal(pixels_of(encoded(image, kind)), np.repeat(expected[:, :, None], 3, axis=2))


def test_a_float_tiff_within_0_and_1_is_scaled() -> None:
    ramp = np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
    assert np.array_equal(pixels_of(encoded(Image.fromarray(ramp), "TIFF"))[:, :, 0], np.rint(ramp * 255))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16", "F"])
def test_pil_images_of_every_mode_are_read(mode: str) -> None:
    image = Image.new(mode, (48, 40))
    assert pixels_of(image).shape == (40, 48, 3)


def test_an_encoded_image_reads_the_same_from_file_bytes_and_pil(tmp_path: Path) -> None:
    data = encoded(photo(), "JPEG")
    (tmp_path / "a").write_bytes(data)
    assert np.array_equal(pixels_of(data), pixels_of(tmp_path / "a"))
    assert np.array_equal(pixels_of(data), pixels_of(Image.open(io.BytesIO(data))))


def test_pillows_global_settings_stay_as_they_were() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    pixels_of(encoded(noise(), "PNG"))
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_a_large_picture_is_read_without_a_warning(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(photo(50, 60), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert pixels_of(data).shape == (50, 60, 3)
    assert caught == []


def test_what_the_default_limit_lets_pass_pillow_does_not_warn_of() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert Limits().max_pixels <= Image.MAX_IMAGE_PIXELS
