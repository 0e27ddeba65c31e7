"""Each defect does what its name says, mildly, and leaves a picture that a camera could have made."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from scipy.ndimage import gaussian_filter
from torch import Tensor

from discopatch.defects import DEFECTS, RESEMBLED, compressed, dirty, gaussian, on_levels, spoil, warped
from discopatch.images.corrupt import CORRUPTIONS
from discopatch.images.samples import crops, sample_photos
from discopatch.patches import to_pixels, to_unit

COUNT = len(DEFECTS)
ROUNDING = 1 / 127.5  # one level of 256


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(count: int = 3, *, size: int = 64) -> Tensor:
    """(4 x count, 3, size, size) in [-1, 1]."""
    found = crops(sample_photos(("cat", "astronaut", "coffee", "temple")), count, size=size, seed=0)
    return to_unit(torch.from_numpy(np.stack([each.pixels for each in found]))).permute(0, 3, 1, 2)


def flat(value: float, count: int = 16, *, size: int = 64) -> Tensor:
    return torch.full((count, 3, size, size), value)


def spoiled(name: str, pictures: Tensor, *, seed: int = 0) -> Tensor:
    return spoil(pictures, DEFECTS[name], seeded(seed))


def detail(pictures: Tensor) -> Tensor:
    """(B,): how much neighbours differ."""
    return pictures.diff(dim=3).abs().mean((1, 2, 3)) + pictures.diff(dim=2).abs().mean((1, 2, 3))


def neighbours_alike(noise: Tensor) -> Tensor:
    """(B,): correlation of each value with the one beside it."""
    one, other = (part - part.mean((2, 3), keepdim=True) for part in (noise[..., :-1], noise[..., 1:]))
    return (one * other).mean((1, 2, 3)) / (one.square().mean((1, 2, 3)) * other.square().mean((1, 2, 3))).sqrt()


def fixed(value: float) -> Callable[[float, float], Tensor]:
    """A draw that always comes out the same share between its bounds."""
    return lambda low, high: torch.full((1, 1, 1, 1), low + (high - low) * value)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_spoiled_picture_is_still_a_picture_of_8_bits(name: str) -> None:
    pictures = photos()
    found = spoiled(name, pictures)
    assert found.shape == pictures.shape
    assert found.dtype == torch.float32
    assert torch.equal(found, to_unit(to_pixels(found)))
    assert not torch.equal(found, pictures)
    assert torch.equal(pictures, photos()), "the picture itself stays as it was"


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize(("height", "width"), [(16, 16), (17, 23), (40, 16), (65, 31)])
def test_any_size_from_16_pixels_can_be_spoiled(name: str, height: int, width: int) -> None:
    pictures = photos(1, size=72)[..., :height, :width]
    found = spoiled(name, pictures)
    assert found.shape == pictures.shape
    assert found.isfinite().all()
    assert found.min() >= -1
    assert found.max() <= 1


@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_a_picture_of_one_shade_does_no_harm(name: str, value: float) -> None:
    assert spoiled(name, flat(value, 4, size=32)).isfinite().all()


@pytest.mark.parametrize("name", DEFECTS)
def test_the_generator_decides_and_nothing_else(name: str) -> None:
    before = torch.get_rng_state()
    pictures = photos()
    assert torch.equal(spoiled(name, pictures, seed=1), spoiled(name, pictures, seed=1))
    assert not torch.equal(spoiled(name, pictures, seed=1), spoiled(name, pictures, seed=2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", DEFECTS)
def test_each_picture_is_spoiled_at_a_strength_of_its_own(name: str) -> None:
    found = spoiled(name, photos(1)[:1].expand(8, -1, -1, -1))
    assert len({each.numpy().tobytes() for each in found}) == 8


def test_blurred_pictures_have_less_detail_and_the_same_level() -> None:
    pictures = photos()
    found = spoiled("blurred", pictures)
    assert (detail(found) < detail(pictures)).all()
    torch.testing.assert_close(found.mean((1, 2, 3)), pictures.mean((1, 2, 3)), rtol=0, atol=0.03)


@pytest.mark.parametrize(("rows", "columns"), [(0.5, 0.5), (1.5, 0.7), (2.5, 2.5)])
def test_the_blur_is_scipys_gaussian(rows: float, columns: float) -> None:
    picture = photos(1)[:1]
    found = gaussian(picture, torch.full((1, 1, 1, 1), rows), torch.full((1, 1, 1, 1), columns))
    expected = gaussian_filter(picture[0].numpy(), (0, rows, columns), truncate=8)
    inside = slice(16, -16)  # they differ in what they take to lie beyond the border
    np.testing.assert_allclose(found[0, :, inside, inside], expected[:, inside, inside], rtol=0, atol=1e-4)


def test_sharpened_pictures_have_more_detail() -> None:
    pictures = photos()
    assert (detail(spoiled("sharpened", pictures)) > 1.05 * detail(pictures)).all()


@pytest.mark.parametrize("name", ["noisy", "grainy"])
def test_noise_has_the_strength_that_it_says(name: str) -> None:
    """0.01 to 0.2 of the range, which is 2."""
    deviations = spoiled(name, flat(0.0, 200, size=32)).std((1, 2, 3))
    assert deviations.min() > 0.019
    assert deviations.max() < 0.42
    assert (deviations < 0.04).any()
    assert (deviations > 0.3).any()


def test_noise_is_white_and_grain_is_not() -> None:
    assert neighbours_alike(spoiled("noisy", flat(0.0))).abs().max() < 0.1
    assert neighbours_alike(spoiled("grainy", flat(0.0))).median() > 0.3


def test_noise_is_coloured_or_grey() -> None:
    grey = (spoiled("noisy", flat(0.0, 60)).diff(dim=1) == 0).all(3).all(2).all(1)
    assert 15 < int(grey.sum()) < 45


def test_blocky_pictures_repeat_their_pixels() -> None:
    """At 0.3 to 0.8 of the resolution 0.2 to 0.7 of all rows and columns only say again what the one before said."""
    pictures = torch.rand(16, 3, 64, 64, generator=seeded()) * 2 - 1
    found = spoiled("blocky", pictures)
    for axis in (2, 3):
        others = tuple(each for each in (1, 2, 3) if each != axis)
        assert not (pictures.diff(dim=axis) == 0).all(others[1]).all(others[0]).any()
        repeated = (found.diff(dim=axis) == 0).float().amin(others).mean(1)
        assert repeated.min() > 0.15
        assert repeated.max() < 0.75


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_compression_rounds_the_frequencies_of_blocks_to_steps(strength: float) -> None:
    pictures = photos(1)[:, :, :24, :40]
    found = compressed(pictures, fixed(strength), torch.randn)
    blocks = found.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    frequency = np.arange(8)
    steps = (1 + 0.5 * (frequency[:, None] + frequency)) * 0.08 * 10**strength
    in_steps = dctn(blocks.double().numpy(), axes=(-2, -1), norm="ortho") / steps
    np.testing.assert_allclose(in_steps, in_steps.round(), rtol=0, atol=1e-4)


def test_compression_keeps_the_level_of_each_block_and_loses_what_is_fine() -> None:
    pictures = 0.8 * photos()
    found = spoiled("compressed", pictures)
    before, after = (
        dctn(each.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4).numpy(), axes=(-2, -1), norm="ortho")
        for each in (pictures, found)
    )
    assert np.abs(after[..., 0, 0] - before[..., 0, 0]).max() / 8 < 0.8 / 2 / 8 + ROUNDING
    high = np.add.outer(np.arange(8), np.arange(8)) >= 8
    energy = [np.square(each[..., high]).sum((1, 2, 3, 4)) for each in (before, after)]
    assert (energy[1] < energy[0]).mean() > 0.9
    nothing = [(np.abs(each[..., high]) < 0.02).mean() for each in (before, after)]
    assert nothing[0] < 0.75
    assert nothing[1] > 0.95


def test_compression_leaves_the_rest_of_a_size_that_is_no_multiple_of_8() -> None:
    pictures = photos(1)[:, :, :37, :50]
    found = spoiled("compressed", pictures)
    assert torch.equal(found[:, :, 32:], pictures[:, :, 32:])
    assert torch.equal(found[..., 48:], pictures[..., 48:])
    assert not torch.equal(found[:, :, :32, :48], pictures[:, :, :32, :48])


def test_warped_pictures_hold_the_same_values_elsewhere() -> None:
    pictures = photos()
    found = spoiled("warped", pictures)
    moved = (found - pictures).abs().mean((1, 2, 3))
    histogram = (found.flatten(2).sort(2).values - pictures.flatten(2).sort(2).values).abs().mean((1, 2))
    assert (histogram < 0.05).all()
    assert histogram.mean() < 0.25 * moved.mean()


def test_nothing_is_warped_where_nothing_pulls() -> None:
    pictures = photos(1)

    def nowhere(low: float, high: float) -> Tensor:
        return torch.full((1, 1, 1, 1), 0.0 if (low, high) == (0.5, 2.5) else low)

    torch.testing.assert_close(warped(pictures, nowhere, torch.randn), pictures, rtol=0, atol=1e-4)


def test_discoloured_pictures_keep_their_luminance() -> None:
    pictures = 0.3 * photos()  # so that no colour is too strong to be shown
    found = spoiled("discoloured", pictures)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    before, after = ((each * weights).sum(1) for each in (pictures, found))
    torch.testing.assert_close(after, before, rtol=0, atol=ROUNDING)
    colourful = found.std(1).mean((1, 2)) / pictures.std(1).mean((1, 2))
    assert ((colourful < 0.65) | (colourful > 1.4)).all()
    assert colourful.min() < 1 < colourful.max()


def test_grey_pictures_have_no_colour_to_lose() -> None:
    grey = on_levels(photos().mean(1, keepdim=True).expand(-1, 3, -1, -1))
    assert torch.equal(spoiled("discoloured", grey), grey)


def test_haze_raises_black_unevenly_and_draws_all_towards_pale() -> None:
    black, white = spoiled("hazy", flat(-1.0)), spoiled("hazy", flat(1.0))
    assert (black.mean((1, 2, 3)) > -0.9).all()
    assert (black.std((2, 3)) > 0.02).all()
    assert white.min() > 0.4
    photo = photos()
    assert (spoiled("hazy", photo).std((1, 2, 3)) < photo.std((1, 2, 3)) + 0.05).all()


def test_dirt_leaves_most_of_the_picture() -> None:
    pictures = photos(8)
    change = (spoiled("dirty", pictures) - pictures).abs().amax(1)
    untouched = (change < 0.1).float().mean((1, 2))
    assert untouched.mean() > 0.6
    assert (change.amax((1, 2)) > 0.1).float().mean() > 0.9


def test_dirt_has_one_shade() -> None:
    """Wherever it lies, on black or on white; here it covers all that lies under it."""
    pictures = flat(-1.0, 1)
    pictures[..., 32:] = 1.0
    drawn = {(0, 1): 0.5, (0.8, 2.2): 0.8, (2, 12): 12.0, (-1, 1): 0.2, (0.4, 1): 1.0}
    found = dirty(
        pictures, lambda low, high: torch.full((1, 1, 1, 1), drawn[low, high]), partial(torch.randn, generator=seeded())
    )
    assert torch.equal(found, found[:, :1].expand_as(found))
    assert found[..., :32].max() == pytest.approx(0.2, abs=0.01)
    assert found[..., 32:].min() == pytest.approx(0.2, abs=0.01)
    assert (found[..., :32] < -0.99).float().mean() > 0.5


def test_levels_are_those_that_real_pictures_have() -> None:
    x = torch.linspace(-1.5, 1.5, 5000)
    assert torch.equal(on_levels(x), to_unit(to_pixels(x)))
    assert len(on_levels(x).unique()) == 256


def test_what_defects_resemble_are_corruptions_that_exist_and_each_but_once() -> None:
    assert RESEMBLED.keys() <= DEFECTS.keys()
    named = [name for names in RESEMBLED.values() for name in names]
    assert set(named) <= CORRUPTIONS.keys()
    assert len(set(named)) == len(named)
    assert len(named) < len(CORRUPTIONS), "some have to be a test of the unknown"
