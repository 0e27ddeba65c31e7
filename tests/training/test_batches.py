"""Images, draws and degradations of a step follow from the seed and the place in the run alone."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.corruptions.degradations import DEGRADATIONS, Degradation
from discopatch.demo import crops, sample_photos
from discopatch.images.tensors import to_pixels, to_unit
from discopatch.training.batches import (
    AT_ONCE,
    Batch,
    TrainingImages,
    degrade_by_chains,
    draw_batches,
    draw_chains,
    mixing_mask,
    random_crops,
    shrink,
    step_generator,
    whole_images,
)
from tests.training.tiny import crop_config, seeded, squares, tiny_config

NAMES = list(DEGRADATIONS)


def stream(count: int, *, seed: int = 0, share: float = 1.0) -> TrainingImages:
    """Images of one pixel, whose value is their number."""
    pixels = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1)
    cache = cast(Any, SimpleNamespace(pixels=pixels))
    return TrainingImages(cache, torch.device("cpu"), tiny_config(seed=seed, epoch_share=share))


@settings(deadline=None)
@given(count=st.integers(1, 200), seed=st.integers(0, 3))
def test_every_epoch_holds_every_image_once_and_in_an_order_of_its_own(count: int, seed: int) -> None:
    images = stream(count, seed=seed)
    epochs = [images.take(epoch * count, count).flatten().tolist() for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(count))] * 3
    if count > 20:
        assert len({tuple(epoch) for epoch in epochs}) == 3


@settings(deadline=None)
@given(
    count=st.integers(1, 200),
    start=st.integers(0, 200),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    share=st.sampled_from([0.2, 1.0]),
)
def test_the_order_does_not_depend_on_where_it_was_interrupted(count, start, cuts, share) -> None:
    places = np.cumsum([start, *cuts])
    whole = stream(count, share=share).take(start, sum(cuts))
    parts = [stream(count, share=share).take(int(place), cut) for place, cut in zip(places, cuts, strict=False)]
    assert torch.equal(whole, torch.cat(parts))


def test_seeds_differ_and_an_epoch_that_is_cut_shows_a_new_share_each_time() -> None:
    first, second = (stream(200, seed=seed).take(0, 200) for seed in (0, 1))
    assert not torch.equal(first, second)
    shares = stream(200, share=0.2).take(0, 6 * 40).view(6, 40)
    assert all(len(set(each.tolist())) == 40 for each in shares)
    assert len(shares.unique()) > 120


def test_every_step_and_rank_has_draws_of_its_own_and_always_the_same() -> None:
    def draw(step: int, rank: int, seed: int = 0) -> tuple[float, ...]:
        return tuple(torch.randn(4, generator=step_generator(seed, step, rank, "cpu")).tolist())

    assert draw(3, 1) == draw(3, 1)
    assert len({draw(0, 0), draw(1, 0), draw(0, 1), draw(0, 0, seed=1)}) == 4


@pytest.mark.parametrize(("size", "min_scale"), [(64, 0.9), (100, 1.0), (256, 0.55)])
def test_shrunk_images_lie_between_the_smallest_scale_and_their_own_size(size: int, min_scale: float) -> None:
    photo = torch.from_numpy(crops(sample_photos(["cat"]), 1, size=size, seed=0)[0].pixels.copy())[None]
    sizes = set()
    for seed in range(20):
        found = shrink(photo, min_scale, seeded(seed))
        assert found.dtype == torch.uint8
        assert found.shape[1] == found.shape[2]
        sizes.add(found.shape[1])
        assert abs(float(found.float().mean() - photo.float().mean())) < 3, "the same image"
    assert min(sizes) >= min_scale * size
    assert max(sizes) <= size
    assert len(sizes) > 1 or size == 64 or min_scale > 0.55


# Chains of degradations


@settings(deadline=None)
@given(count=st.integers(1, 300), step=st.integers(0, 10**6), left_out=st.sampled_from([None, *NAMES]))
def test_first_degradations_take_turns_and_chains_follow_the_order_of_a_camera(count, step, left_out) -> None:
    names = [name for name in NAMES if name != left_out]
    chains = draw_chains(count, seeded(step), step, left_out)
    assert len(chains) == max(1, min(AT_ONCE, count // 2))
    for number, chain in enumerate(chains):
        assert names[(len(chains) * step + number) % len(names)] in chain
        assert list(chain) == [name for name in names if name in chain], "in order, once, and without what is left out"
    assert chains == draw_chains(count, seeded(step), step, left_out)


def test_each_part_of_a_batch_has_the_degradations_and_classes_of_its_chain_in_order(monkeypatch) -> None:
    def digit(number: int) -> Degradation:
        return lambda x, draw, normal: (10 * to_pixels(x).float() + number) / 127.5 - 1

    monkeypatch.setattr("discopatch.training.batches.DEGRADATIONS", {name: digit(n) for n, name in enumerate("abcd")})
    found = degrade_by_chains(torch.full((7, 3, 4, 4), -1.0), [("b",), ("b", "d"), ("c", "d")], seeded())
    assert to_pixels(found.images)[:, 0, 0, 0].tolist() == [1, 1, 1, 13, 13, 23, 23]
    assert found.classes.tolist() == [[0, 0, 1, 0, 0]] * 3 + [[0, 0, 0.5, 0, 0.5]] * 2 + [[0, 0, 0, 0.5, 0.5]] * 2


def test_images_of_one_recipe_are_degraded_equally_and_others_are_not() -> None:
    images = torch.cat([whole_images(squares(1))] * 11)
    chains = [("exposed", "contrasted"), ("defocused", "tinted"), ("discoloured",)]  # of four, four and three images
    found = degrade_by_chains(images, chains, seeded())
    assert len(found.recipes.unique()) == 2 + 2 + 3
    differences = (found.images[:, None] - found.images).abs().mean((2, 3, 4))
    assert torch.equal(differences < 1e-3, found.recipes[:, None] == found.recipes)


# Whole images and degraded copies


def test_the_images_stand_beside_their_degraded_copies() -> None:
    images = squares(8)
    intact, degraded = draw_batches(images, seeded(), 3, tiny_config())
    assert torch.equal(intact.images, to_unit(images).permute(0, 3, 1, 2))
    assert intact.targets is None
    assert (intact.real, degraded.real) == (True, False)
    assert intact.classes[:, 0].tolist() == [1] * 8
    assert (intact.recipes == 0).all()
    assert ((degraded.images - intact.images).abs().mean((1, 2, 3)) > 0).all()
    again, other = (draw_batches(images, seeded(seed), 3, tiny_config())[1].images for seed in (0, 1))
    assert torch.equal(again, degraded.images)
    assert not torch.equal(other, degraded.images)


# Crops


def drawn(step: int = 2, **changes) -> Batch:
    (batch,) = draw_batches(squares(), seeded(), step, crop_config(**changes))
    return batch


@pytest.mark.parametrize(("side", "size"), [(64, 48), (48, 48), (40, 64)])
def test_a_crop_is_a_part_of_the_image_or_of_the_image_and_its_mirror_image(side: int, size: int) -> None:
    images = squares(4)[:, :side, :side]
    found = random_crops(images, size, seeded()).numpy()
    assert found.shape == (4, size, size, 3)
    beyond = max(size - side, 0)
    margins = ((beyond, beyond), (beyond, beyond), (0, 0))
    for image, crop in zip(images.numpy(), found, strict=True):
        padded = np.pad(image, margins, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(0, 1))
        assert (windows == crop.transpose(2, 0, 1)).all((2, 3, 4)).any()


def test_crops_stand_before_their_degraded_copies() -> None:
    batch = drawn(step=1, left_out="contrasted")  # otherwise of this step
    taken = whole_images(random_crops(squares(), 48, seeded()))
    assert torch.equal(batch.images[:22], taken)
    assert ((batch.images[22:] - taken).abs().mean((1, 2, 3)) > 0).all()
    assert isinstance(batch.real, torch.Tensor)
    for labels in (batch.real[:, 0, 0, 0], batch.classes[:, 0], (batch.recipes == 0).float()):
        assert torch.equal(labels, torch.tensor([1.0] * 22 + [0.0] * 22))
    torch.testing.assert_close(batch.classes.sum(1), torch.ones(44))
    assert not batch.classes[:, 1 + NAMES.index("contrasted")].any()


def test_grey_crops_have_no_colours_and_those_that_lost_colours_stay_as_they_are() -> None:
    discoloured = drawn(1).classes[22:, 1 + NAMES.index("discoloured")] > 0
    assert 0 < discoloured.sum() < 22
    coloured, grey = drawn(1).images[:22], drawn(1, grey=1.0).images[:22]
    assert (grey.amax(1) - grey.amin(1))[~discoloured].max() < 1e-6
    assert torch.equal(grey[discoloured], coloured[discoloured])


def test_a_mixed_crop_has_the_pixels_labels_and_classes_of_both() -> None:
    plain, mixed = drawn(), drawn(cut_mix=1.0)
    assert isinstance(plain.real, torch.Tensor)
    assert isinstance(mixed.real, torch.Tensor)
    mask, shift = mixing_mask(plain.images, 1.0, seeded())
    assert mask.shape == (44, 1, 48, 48)
    for place in range(44):
        partner = (place - shift) % 44
        taken = (mixed.images[place] != plain.images[place]).any(0)
        assert torch.equal(mixed.images[place][:, taken], plain.images[partner][:, taken])
        rows, columns = taken.any(1).nonzero()[:, 0], taken.any(0).nonzero()[:, 0]
        box = torch.zeros(48, 48)
        box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = 1
        expected = torch.lerp(plain.real[place, 0], plain.real[partner, 0], box)
        assert (mixed.real[place, 0] - expected).abs().mean() < 0.01, "a border pixel may be alike in both"
        classes = torch.lerp(plain.classes[place], plain.classes[partner], box.mean())
        torch.testing.assert_close(mixed.classes[place], classes, rtol=0, atol=0.05)
    some = drawn(cut_mix=0.5)
    alone = (some.images == plain.images).flatten(1).all(1)
    assert torch.equal(some.recipes, torch.where(alone, plain.recipes, -1))
    sizes = mask.float().mean((1, 2, 3))
    assert sizes.min() < 0.2
    assert sizes.max() > 0.4
