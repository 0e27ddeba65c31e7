"""Every noise has its distribution."""

import numpy as np
import pytest

from discopatch.corruptions.imagenet_c.filters import Floats
from discopatch.corruptions.imagenet_c.noise import gaussian_noise, shot_noise, speckle_noise

from .samples import every_severity, rng

NOISE = {1: 0.08, 2: 0.12, 3: 0.18, 4: 0.26, 5: 0.38}
PHOTONS = {1: 60, 2: 25, 3: 12, 4: 5, 5: 3}
SPECKLES = {1: 0.15, 2: 0.2, 3: 0.35, 4: 0.45, 5: 0.6}

every_level = pytest.mark.parametrize("level", [0.1, 0.9])


def flat(level: float) -> Floats:
    return np.full((128, 128, 3), level)


@every_severity
def test_gaussian_noise_has_its_standard_deviation_and_no_mean(severity: int) -> None:
    added = gaussian_noise(flat(0.5), severity, rng()) - 0.5
    assert added.std() == pytest.approx(NOISE[severity], rel=0.02)
    assert abs(added.mean()) < 4 * NOISE[severity] / np.sqrt(added.size)
    kurtosis = ((added / added.std()) ** 4).mean()
    assert kurtosis == pytest.approx(3, abs=0.15), "normally distributed"


@every_severity
@every_level
def test_shot_noise_counts_photons(severity: int, level: float) -> None:
    noisy = shot_noise(flat(level), severity, rng())
    photons = noisy * PHOTONS[severity]
    np.testing.assert_allclose(photons, np.rint(photons), rtol=0, atol=1e-9)
    expected = level * PHOTONS[severity]
    assert photons.mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / photons.size))
    assert photons.var() == pytest.approx(expected, rel=0.06), "a Poisson variable's variance is its mean"


@every_severity
@every_level
def test_speckle_noise_grows_with_the_light(severity: int, level: float) -> None:
    added = speckle_noise(flat(level), severity, rng()) - level
    assert added.std() == pytest.approx(level * SPECKLES[severity], rel=0.02)
    assert abs(added.mean()) < 4 * level * SPECKLES[severity] / np.sqrt(added.size)
