"""Tones: brightness, contrast and colours of the pixels."""

import numpy as np
import torch

from discopatch.encoders import N_TONES, measure_tones

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 32, 48, 3), dtype=np.uint8)


def test_tones_are_the_means_and_log_variances_of_every_other_pixel() -> None:
    pixels = IMAGES[:, ::2, ::2].reshape(3, -1, 3) / 255
    red, green, blue = np.moveaxis(pixels, 2, 0)
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    largest, smallest = pixels.max(2), pixels.min(2)
    saturation = (largest - smallest) / (largest + 0.02)
    maps = [luminance, red - luminance, blue - luminance, largest, smallest, saturation]
    means, variances = (np.stack([of(each, axis=1) for each in maps], 1) for of in (np.mean, np.var))
    expected = np.concatenate((means, np.log(variances + 1e-6), np.log(pixels.mean(1) + 0.02)), 1)
    found = measure_tones(torch.from_numpy(IMAGES))
    assert found.shape == (3, N_TONES)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_tones_of_black_and_of_one_colour_are_finite() -> None:
    flat = np.stack([np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), (255, 0, 0), np.uint8)])
    assert bool(measure_tones(torch.from_numpy(flat)).isfinite().all())
