import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discopatch.benchmark.studies.batches import Places, first_scores, mixed_batches, pure_batches


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def all_different(places: Places) -> bool:
    return all(len(set(batch)) == len(batch) for batch in places.tolist())


@given(images=st.integers(1, 60), batch=st.integers(1, 60))
def test_every_image_is_in_a_batch_of_just_that_size_and_in_none_twice(images: int, batch: int) -> None:
    if images < batch:
        with pytest.raises(ValueError, match="too few"):
            pure_batches(images, batch, rng())
        return
    places = pure_batches(images, batch, rng())
    assert places.shape == (-(-images // batch), batch)
    assert set(places.ravel()) == set(range(images))
    assert all_different(places)


@given(normal=st.integers(8, 40), strange=st.integers(4, 40), half=st.booleans())
def test_mixed_batches_hold_so_many_of_each_kind_and_every_image_is_in_one(
    normal: int, strange: int, half: bool
) -> None:
    batch = 8
    strange_each = batch // 2 if half else 1
    places = mixed_batches(normal, strange, batch, strange_each=strange_each, rng=rng())
    assert ((places >= normal).sum(1) == strange_each).all()
    assert places.shape[1] == batch
    assert set(places.ravel()) == set(range(normal + strange))
    assert all_different(places)


@pytest.mark.parametrize("strange_each", [0, 4])
def test_a_batch_of_one_kind_is_not_mixed(strange_each: int) -> None:
    with pytest.raises(ValueError, match="some of both kinds"):
        mixed_batches(9, 9, 4, strange_each=strange_each, rng=rng())


def test_the_first_score_of_an_image_counts() -> None:
    places = np.array([[2, 0], [1, 2]])
    assert first_scores(places, np.array([[0.2, 0.0], [0.1, 9.0]]), 4)[:3].tolist() == [0.0, 0.1, 0.2]
    assert np.isnan(first_scores(places, np.zeros((2, 2)), 4)[3])


def test_the_same_seed_draws_the_same_batches() -> None:
    assert np.array_equal(pure_batches(20, 6, rng()), pure_batches(20, 6, rng()))
