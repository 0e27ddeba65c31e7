"""Changes of one place: outside of the mask nothing changes, inside of it something does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.corruptions.places import PLACE_CHANGES, SMALLEST_PLACE, change_place
from discopatch.images import Pixels

from ..images.samples import noise


def flat(level: int, size: int = 64) -> Pixels:
    return np.full((size, size, 3), level, np.uint8)


@given(
    name=st.sampled_from(list(PLACE_CHANGES)),
    shape=st.tuples(st.integers(32, 90), st.integers(32, 90)),
    other=st.tuples(st.integers(32, 90), st.integers(32, 90)),
    size=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None)
def test_only_the_masked_place_changes_and_it_is_no_larger_than_asked(
    name: str, shape: tuple[int, int], other: tuple[int, int], size: float, seed: int
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
    side = max(SMALLEST_PLACE, round(size * min(*shape, *other)))
    rows, columns = np.nonzero(found.mask)
    assert np.ptp(rows) < side
    assert np.ptp(columns) < side


def test_a_missing_part_looks_like_what_is_around_it() -> None:
    image = flat(50)
    image[20:44, 20:44] = 220
    seen = 0
    for seed in range(40):
        found = change_place("missing", image, image, size=0.9, rng=np.random.default_rng(seed))
        if found.mask[20:44, 20:44].all():
            seen += 1
            assert abs(found.pixels[found.mask].astype(int) - 50).max() < 2, "the border is all of level 50"
    assert seen
