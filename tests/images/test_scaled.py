"""JPEG files that are scaled while they are decoded: nearly the same square, the same refusals, for less work."""

from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from discopatch.images import (
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    Transform,
    read_images,
)
from discopatch.images.decode import rgb_from_bytes

from .samples import encoded, photo

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
    [(256, 256, (128, 128)), (1024, 1500, (128, 188)), (255, 900, (255, 900)), (257, 259, (129, 130))],
)
def test_no_side_is_decoded_to_less_than_twice_the_square(height: int, width: int, decoded: tuple[int, int]) -> None:
    image = rgb_from_bytes(encoded(photo(height, width), "JPEG"), Limits(), side=SCALED.decoded_side)
    assert (image.height, image.width) == decoded


@pytest.mark.parametrize(
    ("mode", "options"), [("RGB", {"subsampling": 2}), ("L", {"progressive": True}), ("CMYK", {"subsampling": 0})]
)
def test_any_kind_of_jpeg_becomes_nearly_the_same_square(mode: str, options: dict[str, Any]) -> None:
    data = encoded(Image.fromarray(photo(384, 512)).convert(mode), "JPEG", quality=92, **options)
    whole, scaled = (square(Transform(64, decoder=each), data).astype(int) for each in ("pillow", "scaled"))
    assert 0 < np.abs(scaled - whole).mean() < 3  # another image gives more than 60
    if mode == "L":
        assert (scaled == scaled[..., :1]).all()


@pytest.mark.parametrize("orientation", [1, 6])
def test_exif_orientation_is_applied_after_scaling(orientation: int) -> None:
    stored = Image.fromarray(photo(300, 400))
    stored.getexif()[ExifTags.Base.Orientation] = orientation
    data = encoded(stored, "JPEG", exif=stored.getexif(), quality=95)
    whole, scaled = square(WHOLE, data).astype(int), square(SCALED, data).astype(int)
    assert np.abs(scaled - whole).mean() < 2  # a wrong turn gives more than 60


@pytest.mark.parametrize("limits", [{"max_pixels": 256 * 300 - 1}, {"max_bytes": 2000}, {"min_side": 257}])
def test_limits_hold_for_the_file_not_for_what_it_is_scaled_to(limits: dict[str, int]) -> None:
    data = encoded(photo(256, 300), "JPEG")
    whole, scaled = through(WHOLE, data, **limits), through(SCALED, data, **limits)
    assert isinstance(whole, Refusal)
    assert scaled == whole
