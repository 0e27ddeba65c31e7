"""The transform: always the same square, equal to resizing and cropping by hand."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from discopatch.errors import ParameterError, TransformError
from discopatch.images import Pixels, Transform, check_same_transform

from .samples import difference, noise

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
    changes: Any = (
        {},
        {"size": 224},
        {"fit": "squash"},
        {"resample": "lanczos"},
        {"pixels": "unit"},
        {"decoder": "scaled"},
    )
    assert len({Transform(**change).digest for change in changes}) == 6
    with pytest.raises(TransformError, match="scaled"):
        check_same_transform(Transform(), Transform(decoder="scaled"))
    assert Transform().digest == Transform(256, "crop", "bicubic").digest


def test_the_digest_of_the_default_never_changes() -> None:
    assert Transform().digest == "e3be862dbaa32499"


@pytest.mark.parametrize("pixels", ["unit", "symmetric"])
def test_a_definition_survives_json(pixels: Any) -> None:
    transform = Transform(224, fit="squash", resample="lanczos", pixels=pixels)
    assert Transform.from_dict(transform.to_dict()) == transform


@pytest.mark.parametrize("change", [{"version": 2}, {"blur": 3}])
def test_definitions_of_the_future_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(TransformError):
        Transform.from_dict({**Transform().to_dict(), **change})
