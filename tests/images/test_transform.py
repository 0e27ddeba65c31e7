"""The transform: always the same square, equal to resizing and cropping by hand."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from discopatch.errors import ParameterError, TransformError
from discopatch.images import Pixels, Transform, check_same_transform, tensors
from discopatch.images.tensors import resize_batch, to_pixels, to_unit

from .samples import difference, noise, photo

FILTERS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
sides = st.integers(1, 400)


def resize_then_crop(pixels: Pixels, transform: Transform) -> Pixels:
    """The reference: resize everything, columns then rows, and cut out the centre."""
    height, width = pixels.shape[:2]
    short, size, resample = min(height, width), transform.size, FILTERS[transform.resample]
    target = round(width * size / short), round(height * size / short)
    if transform.fit == "squash":
        target = size, size
    whole = Image.fromarray(pixels).resize((target[0], height), resample).resize(target, resample)
    left, top = (target[0] - size) // 2, (target[1] - size) // 2
    return np.asarray(whole.crop((left, top, left + size, top + size)))


@given(
    sides,
    sides,
    st.sampled_from([1, 16, 64, 100]),
    st.sampled_from(["crop", "squash"]),
    st.sampled_from(sorted(FILTERS)),
)
@settings(max_examples=150, deadline=None)
def test_any_image_becomes_the_same_square_as_by_resize_then_crop(
    height: int, width: int, size: int, fit: Any, resample: Any
) -> None:
    transform = Transform(size, fit=fit, resample=resample)
    pixels = noise(height, width, seed=height)
    square = transform(pixels)
    assert square.shape == (size, size, 3)
    assert square.dtype == np.uint8
    assert square.flags.c_contiguous
    if max(height, width) * size < min(height, width) * 20_000:
        expected = resize_then_crop(pixels, transform)
        assert difference(square, expected) <= 3
        assert np.abs(square.astype(int) - expected).mean() < 0.1  # simple ratios give ties, which round either way


def test_an_image_of_the_right_size_passes_byte_for_byte() -> None:
    for fit in ("crop", "squash"):
        assert Transform(64, fit=cast(Any, fit))(noise(64, 64)).tobytes() == noise(64, 64).tobytes()


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"size": 2.5}, {"size": True}, {"fit": "pad"}, {"resample": "box"}, {"pixels": "bytes"}]
)
def test_senseless_definitions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        Transform(**options)


def test_the_digest_differs_whenever_the_definition_does() -> None:
    others = (Transform(224), Transform(fit="squash"), Transform(resample="lanczos"), Transform(pixels="unit"))
    assert len({each.digest for each in (*others, Transform(), Transform(decoder="scaled"))}) == 6
    assert Transform().digest == Transform(256, "crop", "bicubic").digest == "e3be862dbaa32499"
    with pytest.raises(TransformError, match="scaled"):
        check_same_transform(Transform(), Transform(decoder="scaled"))


def test_a_definition_survives_json_and_one_of_the_future_is_refused() -> None:
    for transform in (Transform(), Transform(224, "squash", "lanczos", "unit", "scaled")):
        assert Transform.from_dict(transform.to_dict()) == transform
    for change in ({"version": 2}, {"blur": 3}):
        with pytest.raises(TransformError):
            Transform.from_dict({**Transform().to_dict(), **change})


# Many images at once, as tensors.


@given(
    st.integers(32, 700),
    st.integers(32, 700),
    st.sampled_from([16, 64, 100, 256]),
    st.sampled_from(["crop", "squash"]),
    st.sampled_from(["bicubic", "bilinear", "lanczos"]),
)
@settings(max_examples=80, deadline=None)
def test_many_images_at_once_become_what_pillow_makes_of_each(
    height: int, width: int, size: int, fit: Any, resample: Any
) -> None:
    transform = Transform(size, fit=fit, resample=resample)
    images = np.stack([photo(height, width), noise(height, width, seed=height)])
    found = resize_batch(torch.from_numpy(images), transform).numpy()
    expected = np.stack([transform(image) for image in images])
    off = np.abs(found.astype(int) - expected)
    assert off.max() <= 2  # a sum that is nearly a half, before and after
    assert off.mean() < 0.05  # simple ratios give many ties


def test_parts_that_fit_into_memory_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.from_numpy(np.stack([noise(90, 120, seed=number) for number in range(5)]))
    whole = resize_batch(images, Transform(64))
    monkeypatch.setattr(tensors, "MOST_PIXELS", 2 * 90 * 120)
    assert torch.equal(resize_batch(images, Transform(64)), whole)


def test_all_256_values_are_found_again() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    unit = to_unit(values)
    assert unit.dtype == torch.float32
    assert unit[[0, -1]].tolist() == [-1, 1]
    assert (unit.diff() > 0).all()
    assert torch.equal(to_pixels(unit), values)
