"""JPEG files that are scaled while they are decoded: nearly the same square, the same refusals, for less work."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from discopatch.errors import TransformError
from discopatch.images import (
    Limits,
    NamedImage,
    Pixels,
    Processes,
    Refusal,
    Transform,
    check_same_transform,
    open_cache,
    read_images,
)
from discopatch.images.decode import rgb_from_bytes

from .samples import as_bytes, encoded, noise, photo

SCALED, WHOLE = Transform(64, decoder="scaled"), Transform(64)


def through(transform: Transform, source: object, **limits: int) -> NamedImage | Refusal:
    (found,) = read_images([source], transform=transform, workers=1, limits=Limits(**limits))
    return found


def square(transform: Transform, source: object) -> Pixels:
    found = through(transform, source)
    assert isinstance(found, NamedImage), found
    return found.pixels


@pytest.mark.parametrize(
    ("height", "width", "decoded"),
    [
        (256, 256, (128, 128)),
        (1024, 1500, (128, 188)),
        (700, 520, (175, 130)),
        (255, 900, (255, 900)),
        (257, 259, (129, 130)),
        (4096, 130, (4096, 130)),
    ],
)
def test_no_side_is_decoded_to_less_than_twice_the_square(height: int, width: int, decoded: tuple[int, int]) -> None:
    image = rgb_from_bytes(encoded(photo(height, width), "JPEG"), Limits(), side=SCALED.decoded_side)
    assert (image.height, image.width) == decoded


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2},
        {"progressive": True},
        {"progressive": True, "subsampling": 0},
        {"restart_marker_blocks": 4},
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_any_kind_of_jpeg_becomes_nearly_the_same_square(mode: str, options: dict[str, Any], fit: Any) -> None:
    data = encoded(Image.fromarray(photo(384, 512)).convert(mode), "JPEG", quality=92, **options)
    whole, scaled = (square(Transform(64, fit=fit, decoder=each), data).astype(int) for each in ("pillow", "scaled"))
    assert 0 < np.abs(scaled - whole).mean() < 3  # another image gives more than 60
    if mode == "L":
        assert (scaled == scaled[..., :1]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_after_scaling(orientation: int) -> None:
    stored = Image.fromarray(photo(300, 400))
    stored.getexif()[ExifTags.Base.Orientation] = orientation
    data = encoded(stored, "JPEG", exif=stored.getexif(), quality=95)
    whole, scaled = square(WHOLE, data).astype(int), square(SCALED, data).astype(int)
    assert np.abs(scaled - whole).mean() < 2  # a wrong turn gives more than 60


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_other_formats_are_read_as_ever(kind: str) -> None:
    data = encoded(photo(512, 512), kind)
    assert np.array_equal(square(SCALED, data), square(WHOLE, data))


@pytest.mark.parametrize("side", [40, 64, 128, 200, 255])
def test_a_jpeg_that_would_become_too_small_is_read_as_ever(side: int) -> None:
    data = encoded(photo(side, 600), "JPEG")
    assert np.array_equal(square(SCALED, data), square(WHOLE, data))


def test_arrays_and_open_images_are_pixels_already() -> None:
    for source in (photo(512, 512), Image.fromarray(photo(512, 512))):
        assert np.array_equal(square(SCALED, source), square(WHOLE, source))


def test_a_small_square_refuses_no_image_for_what_is_left_of_it() -> None:
    found = through(Transform(4, decoder="scaled"), encoded(photo(128, 128), "JPEG"))
    assert isinstance(found, NamedImage)


@pytest.mark.parametrize("progressive", [False, True])
def test_what_is_cut_short_is_refused_alike(progressive: bool) -> None:
    data = encoded(noise(256, 256), "JPEG", progressive=progressive)
    for length in (4, 40, 300, 700, len(data) // 2, len(data) - 400, len(data) - 2):
        whole, scaled = through(WHOLE, data[:length]), through(SCALED, data[:length])
        assert isinstance(whole, Refusal)
        assert scaled == whole


@pytest.mark.parametrize("limits", [{"max_pixels": 256 * 300 - 1}, {"max_bytes": 2000}, {"min_side": 257}])
def test_limits_hold_for_the_file_not_for_what_it_is_scaled_to(limits: dict[str, int]) -> None:
    data = encoded(photo(256, 300), "JPEG")
    whole, scaled = through(WHOLE, data, **limits), through(SCALED, data, **limits)
    assert isinstance(whole, Refusal)
    assert scaled == whole


def test_threads_and_processes_scale_alike() -> None:
    files = [encoded(photo(256 + 16 * number, 300), "JPEG") for number in range(12)]
    alone = as_bytes(read_images(files, transform=SCALED, workers=1))
    for workers in (3, Processes(2)):
        assert as_bytes(read_images(files, transform=SCALED, workers=workers)) == alone


def test_a_decoder_is_part_of_the_definition() -> None:
    assert len({Transform(decoder=each).digest for each in ("pillow", "scaled", "nvimgcodec")}) == 3
    assert Transform.from_dict(SCALED.to_dict()) == SCALED
    assert "decoder" not in WHOLE.to_dict()
    with pytest.raises(TransformError, match="scaled"):
        check_same_transform(WHOLE, SCALED)


def test_a_cache_of_another_decoder_is_another_cache(tmp_path: Path) -> None:
    files = [encoded(photo(256, 256 + 8 * number), "JPEG") for number in range(3)]
    whole, scaled = (open_cache(files, each, tmp_path, workers=1) for each in (WHOLE, SCALED))
    assert scaled.transform == SCALED
    assert scaled.digest != whole.digest
