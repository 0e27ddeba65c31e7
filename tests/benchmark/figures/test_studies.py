"""Figures of the studies."""

from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from discopatch.benchmark.figures.batchnorm import batchnorm_figure
from discopatch.benchmark.figures.dots import dots_figure


def test_batches_have_a_line_each_and_learned_statistics_are_level() -> None:
    sizes = {"1": [0.65, 0.6, 0.7], "16": [0.9, 0.88, 0.92], "256": [1.0, 0.99, 1.0]}
    study: dict[str, dict[str, Any]] = {
        "near": {"pure": sizes, "mixed": {"1": [0.65, 0.6, 0.7]}, "learned": [0.38, 0.35, 0.4]},
        "far": {"pure": sizes},
    }
    near, far = batchnorm_figure(study).axes
    pure, mixed, learned, _ = near.get_lines()
    np.testing.assert_allclose(np.asarray(pure.get_xdata(), float), [1, 16, 256])
    np.testing.assert_allclose(np.asarray(pure.get_ydata(), float), [0.65, 0.9, 1.0])
    assert len(np.asarray(mixed.get_xdata())) == 1
    assert set(np.asarray(learned.get_ydata(), float)) == {0.38}
    assert len(far.get_lines()) == 2
    assert [label.get_text() for label in near.get_xticklabels()] == ["1", "16", "256"]


def test_dots_stand_on_the_line_of_their_label_and_do_not_meet() -> None:
    rows = [(label, group, 0.9, 0.88, 0.93) for label in ("GroupNorm", "BatchNorm") for group in ("near", "far")]
    (axis,) = dots_figure(rows[:-1]).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["GroupNorm", "BatchNorm"]
    near, far = (each for each in axis.containers if isinstance(each, ErrorbarContainer))
    heights = [np.asarray(each.lines[0].get_ydata(), float) for each in (near, far)]
    assert [np.rint(each).tolist() for each in heights] == [[0, 1], [0]]
    assert heights[0][0] != heights[1][0]
    (bars,) = near.lines[2]
    assert bars.get_segments()[0][:, 0] == pytest.approx([0.88, 0.93])
