"""Radial spectra of patches whose spectra are known."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from discopatch.benchmark.figures.spectra import radial_spectrum, spectra_figure


@pytest.mark.parametrize("cycles", [4, 9, 20])
@pytest.mark.parametrize("direction", [(1.0, 0.0), (0.0, 1.0)])
def test_a_sinusoid_peaks_at_its_frequency(cycles: int, direction: tuple[float, float]) -> None:
    y, x = np.mgrid[:64, :64]
    wave = np.sin(2 * np.pi * cycles / 64 * (direction[0] * x + direction[1] * y))[None]
    frequencies, power = radial_spectrum(wave)
    assert frequencies[power.argmax()] == pytest.approx(cycles / 64)


def test_white_noise_is_flat_at_its_variance() -> None:
    noise = np.random.default_rng(0).normal(5, 3, size=(400, 32, 32))
    frequencies, power = radial_spectrum(noise)
    np.testing.assert_allclose(power, 9, rtol=0.1)
    np.testing.assert_allclose(frequencies, np.arange(1, 17) / 32)


def test_blur_loses_what_is_fine_and_keeps_what_is_coarse() -> None:
    noise = np.random.default_rng(1).normal(size=(50, 64, 64))
    _, sharp = radial_spectrum(noise)
    _, blurred = radial_spectrum(gaussian_filter(noise, (0, 1.5, 1.5), mode="wrap"))
    ratio = blurred / sharp
    expected = np.exp(-((2 * np.pi * 1.5 * np.arange(1, 33) / 64) ** 2))  # the filter's own response, squared
    np.testing.assert_allclose(ratio[:12], expected[:12], atol=0.08)
    assert ratio[-1] < 1e-3


def test_colours_are_averaged_and_sides_may_differ() -> None:
    grey = np.random.default_rng(2).random((5, 24, 40))
    _, power = radial_spectrum(grey)
    _, colour = radial_spectrum(np.repeat(grey[..., None], 3, axis=3))
    np.testing.assert_allclose(power, colour)
    assert len(power) == 12


def test_half_of_the_columns_stand_for_all() -> None:
    patches = np.random.default_rng(3).random((4, 33, 33))
    for turned in (patches.transpose(0, 2, 1), patches[:, ::-1]):
        np.testing.assert_allclose(radial_spectrum(patches)[1], radial_spectrum(turned)[1])


@pytest.mark.parametrize("shape", [(64, 64), (0, 64, 64), (5, 2, 64)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"give \(N, H, W\)"):
        radial_spectrum(np.zeros(shape))


def test_the_figure_has_a_line_for_each_kind() -> None:
    found: dict[str, list[float]] = {
        "frequencies": [0.1, 0.2, 0.3],
        "real": [3.0, 2, 1],
        "reconstructed": [3, 1, 0.1],
        "generated": [3, 2, 2],
    }
    (axis,) = spectra_figure(found).axes
    assert [line.get_label() for line in axis.get_lines()] == ["real", "reconstructed", "generated"]
    assert axis.get_yscale() == "log"
