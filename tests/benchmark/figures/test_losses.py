"""Loss curves of real logs."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.benchmark.figures.losses import PANELS, losses_figure, running_mean
from discopatch.training.log import COLUMNS, CsvLog


def write_run(folder: Path, steps: int) -> Path:
    path = folder / "losses.csv"
    log = CsvLog(path, step=0)
    for step in range(1, steps + 1):
        log.write(step, [1 / step] * (len(COLUMNS) - 1))
    log.close()
    return path


def test_every_panel_has_two_lines_for_each_run(tmp_path: Path) -> None:
    runs = {name: write_run(tmp_path / name, steps) for name, steps in (("long", 120), ("short", 20))}
    figure = losses_figure(runs, window=50)
    assert [axis.get_title() for axis in figure.axes] == list(PANELS.values())
    for axis in figure.axes:
        lengths = [len(np.asarray(line.get_xdata())) for line in axis.get_lines()]
        assert lengths == [120, 71, 20, 1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["long", "short"]


def test_a_run_alone_needs_no_legend(tmp_path: Path) -> None:
    assert not losses_figure({"run": write_run(tmp_path, 5)}).legends


def test_a_file_without_losses_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no losses .*losses\.csv"):
        losses_figure({"run": write_run(tmp_path, 0)})


def test_the_running_mean_is_that_of_successive_values() -> None:
    np.testing.assert_allclose(running_mean(np.arange(6.0), 3), [1, 2, 3, 4])
    np.testing.assert_allclose(running_mean(np.arange(2.0), 3), [0.5])
