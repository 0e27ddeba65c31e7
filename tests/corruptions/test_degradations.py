"""Each degradation does what its name says, mildly, and leaves an image that a camera could have made."""

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from scipy.ndimage import gaussian_filter
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, degrade, gaussian
from discopatch.demo import crops, sample_photos
from discopatch.images.tensors import to_pixels, to_unit


def photos(count: int = 3, *, size: int = 64) -> Tensor:
    """(4 x count, 3, size, size) in [-1, 1]."""
    found = crops(sample_photos(("cat", "astronaut", "coffee", "temple")), count, size=size, seed=0)
    return to_unit(torch.from_numpy(np.stack([each.pixels for each in found]))).permute(0, 3, 1, 2)


def degraded(name: str, images: Tensor, *, seed: int = 0) -> Tensor:
    return degrade(images, DEGRADATIONS[name], torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", DEGRADATIONS)
@pytest.mark.parametrize(("height", "width"), [(16, 23), (65, 31)])
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
    deviations = degraded(name, torch.zeros(200, 3, 32, 32)).std((1, 2, 3))
    assert deviations.min() > 0.019
    assert deviations.max() < 0.42
    assert (deviations < 0.04).any()
    assert (deviations > 0.3).any()


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_compression_rounds_the_frequencies_of_blocks_to_steps(strength: float) -> None:
    images = photos(1)[:, :, :24, :40]
    found = DEGRADATIONS["compressed"](images, lambda low, high: torch.full((1, 1, 1, 1), strength), torch.randn)
    blocks = found.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    frequency = np.arange(8)
    steps = (1 + 0.5 * (frequency[:, None] + frequency)) * 0.08 * 10**strength
    in_steps = dctn(blocks.double().numpy(), axes=(-2, -1), norm="ortho") / steps
    np.testing.assert_allclose(in_steps, in_steps.round(), rtol=0, atol=1e-4)
