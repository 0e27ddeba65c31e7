"""Pixels as tensors: floats that are exact, and many images resized at once as `Transform.resize` does."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.images import Transform
from discopatch.images import tensors as resampling
from discopatch.images.tensors import resize_batch, to_pixels, to_unit

from .samples import difference, noise, photo

sides = st.integers(32, 700)


@given(
    sides,
    sides,
    st.sampled_from([16, 64, 100, 256]),
    st.sampled_from(["crop", "squash"]),
    st.sampled_from(["bicubic", "bilinear", "lanczos"]),
)
@settings(max_examples=80, deadline=None)
def test_any_size_becomes_what_pillow_makes_of_it(height: int, width: int, size: int, fit: Any, resample: Any) -> None:
    transform = Transform(size, fit=fit, resample=resample)
    images = np.stack([photo(height, width), noise(height, width, seed=height)])
    found = resize_batch(torch.from_numpy(images), transform).numpy()
    expected = np.stack([transform(image) for image in images])
    off = np.abs(found.astype(int) - expected)
    assert off.max() <= 2  # a sum that is nearly a half, before and after
    assert off.mean() < 0.05  # simple ratios give many ties


@pytest.mark.parametrize("side", [512, 1024])
def test_halves_and_quarters_are_equal_to_the_bit(side: int) -> None:
    image = noise(side, side, seed=1)
    found = resize_batch(torch.from_numpy(image)[None], Transform()).numpy()[0]
    inside = np.s_[2:-2, 2:-2]  # where no weight is rounded
    assert np.array_equal(found[inside], Transform()(image)[inside])
    assert difference(found, Transform()(image)) <= 1


def test_parts_that_fit_into_memory_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.from_numpy(np.stack([noise(90, 120, seed=number) for number in range(5)]))
    whole = resize_batch(images, Transform(64))
    monkeypatch.setattr(resampling, "MOST_PIXELS", 2 * 90 * 120)
    assert torch.equal(resize_batch(images, Transform(64)), whole)


def test_all_256_values_are_found_again() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    unit = to_unit(values)
    assert unit.dtype == torch.float32
    assert unit[[0, -1]].tolist() == [-1, 1]
    assert (unit.diff() > 0).all()
    assert torch.equal(to_pixels(unit), values)
