"""Radial spectra of patches whose spectra are known, and loss curves of real logs."""

from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

import plot_losses
from discopatch.errors import ParameterError
from discopatch.training.logging import COLUMNS, CsvLog
from paper.losses import PANELS, losses_figure, read_all_losses, read_run, thin, write_losses
from paper.spectra import radial_spectrum


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
    with pytest.raises(ParameterError):
        radial_spectrum(np.zeros(shape))


def write_run(folder: Path, steps: int) -> Path:
    path = folder / "losses.csv"
    log = CsvLog(path, step=0)
    for step in range(1, steps + 1):
        log.write(step, [1 / step] * (len(COLUMNS) - 1))
    log.close()
    return path


def test_every_panel_has_two_lines_for_each_run(tmp_path: Path) -> None:
    runs = {name: read_run(write_run(tmp_path / name, steps)) for name, steps in (("long", 120), ("short", 20))}
    figure = losses_figure(runs, window=50)
    assert [axis.get_title() for axis in figure.axes] == list(PANELS.values())
    for axis in figure.axes:
        lengths = [len(np.asarray(line.get_xdata())) for line in axis.get_lines()]
        assert lengths == [120, 71, 20, 1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["long", "short"]
    assert not losses_figure({"long": runs["long"]}).legends, "a run alone needs no legend"


def test_the_script_draws_the_curves_of_a_run(tmp_path: Path) -> None:
    plot_losses.main([write_run(tmp_path / "run", 5)], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    with pytest.raises(ParameterError, match=r"losses\.csv"):
        plot_losses.main([write_run(tmp_path / "empty", 0)], tmp_path / "curves.png")


def test_thinned_losses_are_means_of_blocks_at_their_last_step() -> None:
    lines = np.column_stack([np.arange(1, 13), np.arange(12.0), np.ones(12)])
    assert thin(lines, 4).tolist() == [[3, 1, 1], [6, 4, 1], [9, 7, 1], [12, 10, 1]]
    assert np.array_equal(thin(lines), lines)
    assert len(thin(np.ones((1954, 8)))) == 500


def test_the_losses_of_all_runs_can_be_read_again(tmp_path: Path) -> None:
    sources = {name: write_run(tmp_path / name, steps) for name, steps in (("paper-0", 30), ("natural-0", 7))}
    write_losses(tmp_path / "all.csv", sources)
    found = read_all_losses(tmp_path / "all.csv")
    assert list(found) == list(sources)
    for name, path in sources.items():
        np.testing.assert_allclose(found[name], read_run(path), rtol=1e-4)
