"""AUROC by the number of patches."""

import numpy as np
import pytest

from discopatch.benchmark.figures.patchcounts import counted, patch_figure

from ..report_samples import make_report, only, without

REPORT = make_report(0)


def test_every_head_has_a_line_in_every_panel_with_a_tick_at_each_count() -> None:
    line = {"4": [0.7, 0.65, 0.75], "512": [0.9, 0.88, 0.92], "64": [0.8, 0.78, 0.83]}
    figure = patch_figure({"near": {"logit": line, "combined": {"4": [0.6, 0.5, 0.7]}}, "far": {"combined": line}})
    near, far = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["near-OOD", "far-OOD"]
    logit, combined, _ = near.get_lines()
    np.testing.assert_allclose(np.asarray(logit.get_xdata(), float), [4, 64, 512])
    np.testing.assert_allclose(np.asarray(logit.get_ydata(), float), [0.7, 0.8, 0.9])
    band = np.asarray(near.collections[0].get_paths()[0].vertices)
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.65, 0.92))
    assert near.get_xscale() == "log"
    assert [label.get_text() for label in near.get_xticklabels()] == ["4", "64", "512"]
    assert far.get_lines()[0].get_color() == combined.get_color(), "a head has one colour"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["logit", "combined"]


def test_a_benchmark_with_several_numbers_of_patches_can_be_drawn() -> None:
    found = counted(REPORT, "matched")
    assert list(found) == ["near", "far", "covariate"]
    means = REPORT["protocols"]["matched"]["means"]
    for group, heads in found.items():
        assert heads == {"logit": {str(n): means[group][f"discopatch-{n}/logit"]["auroc"] for n in (64, 4, 16)}}


def test_one_number_of_patches_is_no_line() -> None:
    assert counted(only(REPORT, ["discopatch/combined", "discopatch-64/logit", "resnet50/knn"]), "matched") == {}
    assert "near" not in counted(without(REPORT, ["near"]), "paper")
