"""The order of the images and all draws follow from the seed and the place in the run."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from discopatch.training.batches import image_order, step_generator


@given(
    images=st.integers(1, 40),
    start=st.integers(0, 300),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    seed=st.integers(0, 5),
)
def test_the_order_does_not_depend_on_where_it_was_interrupted(images, start, cuts, seed) -> None:
    whole = image_order(start, sum(cuts), images=images, seed=seed)
    places = np.cumsum([start, *cuts])
    parts = [
        image_order(int(place), count, images=images, seed=seed) for place, count in zip(places[:-1], cuts, strict=True)
    ]
    assert np.array_equal(whole, np.concatenate(parts))


@given(images=st.integers(1, 60), epoch=st.integers(0, 4))
def test_every_epoch_holds_every_image_once(images, epoch) -> None:
    order = image_order(epoch * images, images, images=images, seed=7)
    assert sorted(order) == list(range(images))


def test_epochs_and_seeds_differ() -> None:
    orders = [image_order(start, 50, images=50, seed=seed) for start, seed in ((0, 0), (50, 0), (0, 1))]
    assert len({tuple(order) for order in orders}) == 3


def test_a_batch_may_be_larger_than_the_set() -> None:
    order = image_order(0, 10, images=3, seed=0)
    assert np.bincount(order).tolist() == [3, 3, 3] or np.bincount(order).max() == 4
    assert set(order) == {0, 1, 2}


def test_every_step_and_rank_has_draws_of_its_own_and_always_the_same() -> None:
    def draw(step: int, rank: int, seed: int = 0) -> tuple[float, ...]:
        return tuple(torch.randn(4, generator=step_generator(seed, step, rank, "cpu")).tolist())

    assert draw(3, 1) == draw(3, 1)
    assert len({draw(0, 0), draw(1, 0), draw(0, 1), draw(0, 0, seed=1)}) == 4


def test_an_epoch_that_is_cut_shows_a_new_share_of_the_images_each_time() -> None:
    epochs = image_order(0, 60, images=50, seed=3, share=0.2).reshape(6, 10)
    for number, seen in enumerate(epochs):
        assert np.array_equal(seen, image_order(50 * number, 10, images=50, seed=3))
    assert len(np.unique(epochs)) > 30
