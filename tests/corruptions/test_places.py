"""Changes of one place: outside of the mask nothing changes, inside of it something does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt

from discopatch.corruptions.places import PLACE_CHANGES, SCRATCH_LENGTH, change_place, size_of_share
from discopatch.images import Pixels

from ..images.samples import noise


def flat(level: int, size: int = 64) -> Pixels:
    return np.full((size, size, 3), level, np.uint8)


@given(
    name=st.sampled_from(list(PLACE_CHANGES)),
    shape=st.tuples(st.integers(42, 90), st.integers(42, 90)),
    other=st.tuples(st.integers(42, 90), st.integers(42, 90)),
    size=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_only_the_masked_place_changes_and_it_has_the_size_that_was_asked_for(
    name: str, shape: tuple[int, int], other: tuple[int, int], size: int, seed: int
) -> None:
    image, donor = noise(*shape, seed=seed), noise(*other, seed=seed + 1)
    before = image.copy()
    found, again = (change_place(name, image, donor, size=size, rng=np.random.default_rng(seed)) for _ in range(2))
    assert np.array_equal(found.pixels, again.pixels)
    assert np.array_equal(image, before), "the image given stays as it is"
    assert found.pixels.dtype == np.uint8
    assert found.pixels.shape == image.shape
    assert found.mask.shape == shape
    assert np.array_equal(found.pixels[~found.mask], image[~found.mask])
    assert (found.pixels != image).any()
    if name != "scratch":
        assert max(np.ptp(places) + 1 for places in np.nonzero(found.mask)) == size


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_scratch_is_as_wide_as_asked_for_and_much_longer(width: int) -> None:
    for seed in range(20):
        mask = change_place("scratch", flat(120, 256), flat(120), size=width, rng=np.random.default_rng(seed)).mask
        depth = distance_transform_edt(np.pad(mask, 1)).max()  # from its middle to the nearest pixel outside
        assert width / 2 <= depth <= width / 2 + 1.5
        length = max(np.ptp(places) + 1 for places in np.nonzero(mask))
        assert length == SCRATCH_LENGTH * width
        assert mask.sum() >= 0.9 * width * length


@pytest.mark.parametrize("name", sorted(PLACE_CHANGES.keys() - {"paste"}))
@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_change_of_a_flat_image_can_be_seen_up_to_its_edge(name: str, level: int) -> None:
    for size in (2, 4, 32):
        found = change_place(name, flat(level), flat(level), size=size, rng=np.random.default_rng(size))
        difference = abs(found.pixels.astype(int) - level).max(2)
        assert difference[found.mask].min() >= 4


def test_a_share_is_of_the_shorter_side_and_of_a_scratch_the_length() -> None:
    sizes = {name: size_of_share(name, 0.2, np.zeros((300, 200, 3), np.uint8)) for name in PLACE_CHANGES}
    assert sizes == {"paste": 40, "scratch": 40 // SCRATCH_LENGTH, "stain": 40, "missing": 40}
    assert size_of_share("scratch", 0.1, flat(0)) == 1


def test_a_missing_part_looks_like_what_is_around_it() -> None:
    image = flat(50)
    image[20:44, 20:44] = 220
    seen = 0
    for seed in range(40):
        found = change_place("missing", image, image, size=54, rng=np.random.default_rng(seed))
        if found.mask[20:44, 20:44].all():
            seen += 1
            assert abs(found.pixels[found.mask].astype(int) - 50).max() < 2, "the border is all of level 50"
    assert seen
