"""Corruptions do what they are called, by the numbers of ImageNet-C, and the same every time."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from discopatch.images.corrupt import CORRUPTIONS, SEVERITIES, corrupt
from discopatch.images.corrupt.blur import gaussian_blur
from discopatch.images.corrupt.noise import gaussian_noise

from .samples import noise, photo

NOISE = {1: 0.08, 2: 0.12, 3: 0.18, 4: 0.26, 5: 0.38}
BLUR = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6}

every_corruption = pytest.mark.parametrize("name", CORRUPTIONS)
every_severity = pytest.mark.parametrize("severity", SEVERITIES)


@every_severity
def test_gaussian_noise_has_its_standard_deviation_and_no_mean(severity: int) -> None:
    grey = np.full((128, 128, 3), 0.5)
    added = gaussian_noise(grey, severity, np.random.default_rng(0)) - grey
    assert added.std() == pytest.approx(NOISE[severity], rel=0.02)
    assert abs(added.mean()) < 4 * NOISE[severity] / np.sqrt(added.size)
    kurtosis = ((added / added.std()) ** 4).mean()
    assert kurtosis == pytest.approx(3, abs=0.15), "normally distributed"


def test_noise_is_drawn_for_every_colour() -> None:
    added = gaussian_noise(np.zeros((64, 64, 3)), 3, np.random.default_rng(0)).reshape(-1, 3)
    assert np.abs(np.corrcoef(added.T) - np.eye(3)).max() < 0.1


def test_noisy_pixels_are_rounded_and_clipped_not_wrapped() -> None:
    black = np.zeros((64, 64, 3), np.uint8)
    noisy = corrupt(black, "gaussian_noise", 1, seed=0)
    assert 0.45 < (noisy == 0).mean() < 0.55, "what fell below black is black"
    assert noisy.max() < 255 * 6 * NOISE[1]


@every_severity
@pytest.mark.parametrize(("height", "width"), [(48, 64), (32, 32), (33, 100)])
def test_gaussian_blur_is_scipys(severity: int, height: int, width: int) -> None:
    x = photo(height, width) / 255.0
    sigma = BLUR[severity]
    expected = gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(gaussian_blur(x, severity, np.random.default_rng(0)), expected, rtol=0, atol=1e-12)


def test_a_picture_smaller_than_the_blur_is_blurred_too() -> None:
    x = noise(5, 7) / 255.0
    expected = gaussian_filter(x, (6, 6, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(gaussian_blur(x, 5, np.random.default_rng(0)), expected, rtol=0, atol=1e-12)


@every_corruption
def test_severity_0_is_the_picture_itself(name: str) -> None:
    picture = photo()
    assert np.array_equal(corrupt(picture, name, 0, seed=0), photo())


@every_corruption
@every_severity
def test_the_same_seed_gives_the_same_bytes(name: str, severity: int) -> None:
    first, again = (corrupt(photo(), name, severity, seed=3).tobytes() for _ in range(2))
    assert first == again


def test_another_seed_gives_other_noise() -> None:
    first, other = (corrupt(photo(), "gaussian_noise", 1, seed=seed) for seed in (3, 4))
    assert not np.array_equal(first, other)


@every_corruption
def test_more_severe_is_further_from_the_picture(name: str) -> None:
    picture = photo(96, 128).astype(float)
    away = [np.abs(corrupt(photo(96, 128), name, severity, seed=0) - picture).mean() for severity in (0, *SEVERITIES)]
    assert away == sorted(away)
    assert len(set(away)) == len(away)


@every_corruption
@pytest.mark.parametrize(("height", "width"), [(32, 32), (31, 47), (256, 256)])
def test_every_size_keeps_its_shape_and_type(name: str, height: int, width: int) -> None:
    for severity in SEVERITIES:
        corrupted = corrupt(photo(height, width), name, severity, seed=0)
        assert corrupted.shape == (height, width, 3)
        assert corrupted.dtype == np.uint8


@every_corruption
def test_the_picture_is_left_as_it_was(name: str) -> None:
    picture = photo()
    corrupt(picture, name, 3, seed=0)
    assert np.array_equal(picture, photo())


def test_the_global_random_state_is_left_alone() -> None:
    np.random.seed(1)  # noqa: NPY002 - it is what must not be touched
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    corrupt(photo(), "gaussian_noise", 3, seed=0)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


def test_an_unknown_corruption_names_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown corruption 'mud': choose one of gaussian_noise, gaussian_blur"):
        corrupt(photo(), "mud", 1, seed=0)


@pytest.mark.parametrize("severity", [-1, 6, 100])
def test_an_unknown_severity_names_the_choices(severity: int) -> None:
    with pytest.raises(ValueError, match=f"severity {severity}: choose 0 to 5"):
        corrupt(photo(), "gaussian_blur", severity, seed=0)
