"""The transform: squares as by resizing and cropping by hand, or whole images, with pixels that are ignored."""

from dataclasses import replace
from pathlib import Path
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
from discopatch.images.transform import make_mask

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


# Whole images.

multiples = st.integers(2, 8).map(lambda count: 32 * count)


@given(st.integers(32, 700), st.integers(32, 700), multiples, st.floats(0.3, 3))
@settings(max_examples=100, deadline=None)
def test_a_whole_image_keeps_its_aspect_ratio_and_passes_again_unchanged(
    height: int, width: int, size: int, aspect: float
) -> None:
    transform = Transform.whole(aspect, size)
    assert transform.shape is not None
    found = transform(noise(height, width, seed=height))
    rows, columns = found.shape[:2]
    scale = min(transform.shape[0] / height, transform.shape[1] / width)
    for side, before, most in zip((rows, columns), (height, width), transform.shape, strict=True):
        assert side % 32 == 0
        assert side <= most
        assert abs(side - before * scale) <= 16 or side == 64
    assert transform(found).tobytes() == found.tobytes()


def test_the_shape_of_whole_images_is_that_of_most() -> None:
    assert Transform.whole(4 / 3, 256).shape == (256, 352)
    assert Transform.whole(3 / 4, 256).shape == (352, 256)
    assert Transform.whole(100, 64).shape == (64, 256), "at most four times the short side"
    assert Transform.whole(3, 8192).shape == (8192, 16384), "and no longer than 16,384 pixels"
    assert Transform.whole(1, 256).shape_of(100, 1600) == (64, 256), "no smaller than a patch of the paper's network"
    assert Transform.from_dict(Transform.whole(4 / 3).to_dict()) == Transform.whole(4 / 3)
    with pytest.raises(ParameterError, match="shape"):
        Transform(64, fit="whole")


RECTANGLES = [(10, 20, 31, 17), (90, 0, 300, 9)]  # left, top, width, height


def mask_of(height: int, width: int) -> np.ndarray:
    mask = np.zeros((height, width), bool)
    for left, top, across, down in RECTANGLES:
        mask[top : top + down, left : left + across] = True
    return mask


def ignoring(height: int, width: int, size: int = 64) -> Transform:
    transform = Transform.whole(width / height, size)
    return replace(transform, ignore=make_mask(RECTANGLES, (height, width), transform.shape_of(height, width)))


@given(st.integers(60, 300), st.integers(100, 300), multiples)
@settings(max_examples=40, deadline=None)
def test_pixels_under_the_mask_change_nothing_and_others_do(height: int, width: int, size: int) -> None:
    transform, mask = ignoring(height, width, size), mask_of(height, width)
    pixels = noise(height, width)
    changed = np.where(mask[..., None], noise(height, width, seed=1), pixels)
    found = transform(pixels)
    assert found.tobytes() == transform(changed).tobytes()
    assert transform(found).tobytes() == found.tobytes()
    batch = resize_batch(torch.from_numpy(np.stack([pixels, changed])), transform).numpy()
    assert np.array_equal(batch[0], batch[1])
    assert difference(batch[0], found) <= 2
    changed[50:58, 50:80] ^= 255
    assert found.tobytes() != transform(changed).tobytes()


def test_a_mask_file_an_array_and_rectangles_give_the_same_transform(tmp_path: Path) -> None:
    Image.fromarray(mask_of(120, 160)).save(tmp_path / "mask.png")
    given: list[Any] = [RECTANGLES, mask_of(120, 160), 7 * mask_of(120, 160).astype(np.uint8), tmp_path / "mask.png"]
    assert len({make_mask(each, (120, 160), (64, 96)) for each in [*given, str(tmp_path / "mask.png")]}) == 1
    assert Transform.from_dict(ignoring(120, 160).to_dict()) == ignoring(120, 160)


def test_bad_masks_are_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    for wrong in (
        *(tmp_path / "text.png", tmp_path / "missing.png", [(1, 2, 3)], [7], [(500, 0, 9, 9)], [(0, 0, 160, 120)]),
        *(np.zeros((120, 160)), np.ones((120, 160)), mask_of(120, 160)[..., None], mask_of(160, 120)),
    ):
        with pytest.raises(ParameterError, match=r": (give|mark)"):
            make_mask(wrong, (120, 160), (64, 96))  # type: ignore[arg-type]
    with pytest.raises(TransformError, match="fit again"):
        replace(Transform.whole(1, 64), ignore="AAAA")(noise(64, 64))


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
