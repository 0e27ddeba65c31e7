"""Each degradation does what its name says and leaves an image that a camera could have made."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.fft import dctn
from scipy.ndimage import gaussian_filter
from torch import Tensor

from discopatch.corruptions import degradations
from discopatch.corruptions.degradations import DEGRADATIONS, degrade, gaussian, to_light, without_colours
from discopatch.demo import crops, sample_photos
from discopatch.images.tensors import to_pixels, to_unit


def photos(count: int = 3, *, size: int = 64) -> Tensor:
    """(4 x count, 3, size, size) in [-1, 1]."""
    found = crops(sample_photos(("cat", "astronaut", "coffee", "temple")), count, size=size, seed=0)
    return to_unit(torch.from_numpy(np.stack([each.pixels for each in found]))).permute(0, 3, 1, 2)


def degraded(name: str, images: Tensor, *, seed: int = 0, twins: int = 1) -> Tensor:
    return degrade(images, DEGRADATIONS[name], torch.Generator().manual_seed(seed), twins=twins)


def number(value: float) -> Tensor:
    return torch.full((1, 1, 1, 1), value)


def drawn_at(name: str, images: Tensor, place: float) -> Tensor:
    """The images, degraded with every draw at that place between its bounds, and not rounded to levels."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda low, high: number(low + (high - low) * place)  # noqa: E731
    return DEGRADATIONS[name](images, draw, lambda shape: torch.randn(shape, generator=generator))


@pytest.mark.parametrize("name", DEGRADATIONS)
@pytest.mark.parametrize(("height", "width"), [(17, 23), (65, 31)])
def test_a_degraded_image_is_still_an_image_of_8_bits(name: str, height: int, width: int) -> None:
    before = torch.get_rng_state()
    images = photos(1, size=72)[..., :height, :width]
    given = images.clone()
    found = degraded(name, images)
    assert torch.equal(found, degraded(name, images)), "the generator decides, and nothing else"
    assert torch.equal(torch.get_rng_state(), before)
    assert found.min() >= -1
    assert found.max() <= 1
    assert found.shape == images.shape
    assert found.dtype == torch.float32
    assert torch.equal(found, to_unit(to_pixels(found)))
    assert not torch.equal(found, images)
    assert torch.equal(images, given), "the image itself stays as it was"


@pytest.mark.parametrize("name", DEGRADATIONS)
def test_twins_of_equal_noise_are_degraded_equally_and_other_images_are_not(name: str) -> None:
    images = photos(1, size=32).repeat(2, 1, 1, 1)
    for twins in (1, 2):
        draw, normal = degradations.random_numbers(8, torch.Generator().manual_seed(0), twins=twins)
        found = DEGRADATIONS[name](images, draw, lambda shape, n=normal: n((4, *shape[1:])).repeat(2, 1, 1, 1))
        assert bool((found[:4] - found[4:]).abs().mean() < 1e-3) == (twins == 2)


@pytest.mark.parametrize(("rows", "columns"), [(0.5, 0.5), (2.5, 0.7)])
def test_the_blur_is_scipys_gaussian(rows: float, columns: float) -> None:
    image = photos(1)[:1]
    found = gaussian(image, torch.full((1, 1, 1, 1), rows), torch.full((1, 1, 1, 1), columns))
    expected = gaussian_filter(image[0].numpy(), (0, rows, columns), truncate=8)
    inside = slice(16, -16)  # they differ in what they take to lie beyond the border
    np.testing.assert_allclose(found[0, :, inside, inside], expected[:, inside, inside], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["noisy", "grainy"])
def test_noise_has_the_strength_that_it_says(name: str) -> None:
    """0.01 to 0.2 of the range, which is 2."""
    deviations = degraded(name, torch.zeros(200, 3, 32, 32), twins=2).std((1, 2, 3))
    assert deviations.min() > 0.019
    assert deviations.max() < 0.42
    assert (deviations < 0.04).any()
    assert (deviations > 0.3).any()
    torch.testing.assert_close(deviations[:100], deviations[100:], rtol=0.2, atol=0)


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_compression_rounds_the_frequencies_of_blocks_to_steps(strength: float) -> None:
    images = photos(1)[:, :, :24, :40]
    found = degradations.rounded_frequencies(images, number(0.08 * 10**strength))
    blocks = found.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    frequency = np.arange(8)
    steps = (1 + 0.5 * (frequency[:, None] + frequency)) * 0.08 * 10**strength
    in_steps = dctn(blocks.double().numpy(), axes=(-2, -1), norm="ortho") / steps
    np.testing.assert_allclose(in_steps, in_steps.round(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("quality", [20, 50, 80])
def test_jpeg_loses_as_much_of_the_luminance_as_pillow(quality: int) -> None:
    images, files = photos(), []
    for each in to_pixels(images).permute(0, 2, 3, 1).numpy():
        Image.fromarray(each).save(file := io.BytesIO(), "JPEG", quality=quality, subsampling="4:2:0")
        files.append(np.array(Image.open(file)))
    theirs = to_unit(torch.from_numpy(np.stack(files))).permute(0, 3, 1, 2)
    ours = degradations.jpeg(images, number(100 / quality if quality < 50 else 4 - quality / 25))
    lost, lost_by_pillow = (without_colours(each - images).square().mean((1, 2, 3)) for each in (ours, theirs))
    assert (10 * torch.log10(lost / lost_by_pillow)).mean().abs() < 1, "decibels"
    finest = degradations.jpeg(images, number(0.02)) - images
    assert without_colours(finest).abs().max() < 0.01
    assert finest.abs().mean() < 0.02, "colours have half the resolution"


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_blurs_of_a_lens_keep_the_sum_of_light_and_rescaling_keeps_places(place: float) -> None:
    """A shift by half a pixel would move the slope by 0.016."""
    constant = torch.linspace(-0.9, 1, 5).view(5, 1, 1, 1).expand(5, 3, 40, 31)
    for name in ("defocused", "shaken", "rescaled"):
        torch.testing.assert_close(drawn_at(name, constant, place), constant, rtol=0, atol=1e-3)
    images = torch.full((4, 3, 80, 80), -1.0)
    images[..., 32:48, 32:48] = photos(1, size=16)
    for name in ("defocused", "shaken"):
        before, after = to_light(images), to_light(drawn_at(name, images, place))
        torch.testing.assert_close(after.sum((2, 3)), before.sum((2, 3)), rtol=0.01, atol=0.02)
        assert after.amax() < before.amax()
    turned = drawn_at("defocused", images.rot90(2, (2, 3)), place).rot90(2, (2, 3))
    torch.testing.assert_close(turned, drawn_at("defocused", images, place), rtol=0, atol=0.005)
    slope, inside = torch.linspace(-1, 1, 64).expand(1, 3, 64, 64), slice(8, -8)
    found = drawn_at("rescaled", slope, place)
    torch.testing.assert_close(found[..., inside], slope[..., inside], rtol=0, atol=0.005)


def test_the_noise_of_a_sensor_has_the_variance_of_photons_and_of_reading() -> None:
    """The interpolation of colours leaves about half of it at every brightness."""
    light = torch.tensor([0.02, 0.1, 0.2, 0.4])
    images = degradations.from_light(light.view(4, 1, 1, 1).expand(4, 3, 128, 128))
    share = to_light(drawn_at("sensor_noise", images, 0.5)).var((1, 2, 3)) / (3e-3 * light + 2e-5)
    torch.testing.assert_close(share, share.mean().expand(4), rtol=0.1, atol=0)
    assert 0.4 < share.mean() < 0.65
