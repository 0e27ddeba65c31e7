"""Plots of results hold what they should."""

import sys
from operator import le
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Annotation, Text
from PIL import Image

from discopatch.bench.labels import is_ours, short_label, split_method
from discopatch.bench.plots import latency, main_methods, write_plots
from discopatch.bench.plots.latency import latency_plot
from discopatch.bench.plots.metric_plots import corruption_plot, patch_count_plot, patch_counts, protocol_plot
from discopatch.bench.plots.score_plots import GRID, histogram_plot, mean_roc, roc_curve, roc_plot
from discopatch.bench.plots.style import DPI, TWO_COLUMNS, new_figure, plot_style, save_figure
from discopatch.bench.store import ScoreStore
from discopatch.bench.tables import results_frame
from discopatch.errors import MissingExtraError, ParameterError
from discopatch.metrics import auroc
from tests.bench.sample_results import REFERENCE, SETS, SampleScores, make_results, only, without

METHODS = [REFERENCE, "discopatch-64/logit", "resnet50/energy", "resnet50/knn"]
ALL = make_results(0)
RESULTS = only(ALL, METHODS)
FRAME = results_frame(RESULTS)
SCORES = SampleScores(RESULTS)
SHIFTED = [name for name, group in SETS.items() if group != "control"]


def circles(axis) -> np.ndarray:
    """Milliseconds, AUROC and area of each."""
    (found,) = [each for each in axis.collections if isinstance(each, PathCollection)]
    return np.column_stack([np.asarray(found.get_offsets()), found.get_sizes()])


def test_the_main_methods_begin_with_ours_and_the_papers() -> None:
    chosen = main_methods(ALL)
    assert chosen[:2] == [REFERENCE, "discopatch-64/logit"]
    assert len(chosen) == len(set(chosen)) == 4
    assert len({split_method(name)[0] for name in chosen[1:]}) == 3
    assert main_methods(only(ALL, ["resnet50/msp"])) == ["resnet50/msp"]


def test_latency_has_a_circle_and_a_label_for_each_method_in_each_panel() -> None:
    figure = latency_plot(FRAME, "matched")
    assert [axis.get_title() for axis in figure.axes] == ["near-OOD", "far-OOD", "covariate shift"]
    for axis, group in zip(figure.axes, ("near", "far", "covariate"), strict=True):
        assert axis.get_xscale() == "log"
        labels = [text.get_text() for text in axis.texts if isinstance(text, Annotation)]
        assert labels == ["combined", "64: logit", "Energy", "kNN"]
        means = RESULTS["protocols"]["matched"]["means"][group]
        found = {(milliseconds, value) for milliseconds, value, _ in circles(axis).tolist()}
        assert found == {(RESULTS["methods"][name]["milliseconds"], means[name]["auroc"][0]) for name in METHODS}


def test_of_many_methods_one_that_its_network_beats_has_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "MAX_LABELS", 3)
    means = RESULTS["protocols"]["matched"]["means"]
    for axis, group in zip(latency_plot(FRAME, "matched").axes, ("near", "far", "covariate"), strict=True):
        cost = {name: (RESULTS["methods"][name]["milliseconds"], -means[group][name]["auroc"][0]) for name in METHODS}
        beaten = [
            name
            for name in METHODS
            if any(
                is_ours(other) == is_ours(name) and cost[other] != cost[name] and all(map(le, cost[other], cost[name]))
                for other in METHODS
            )
        ]
        labels = {text.get_text() for text in axis.texts if isinstance(text, Annotation)}
        every = dict(zip(METHODS, ["combined", "64: logit", "Energy", "kNN"], strict=True))
        assert labels == {label for name, label in every.items() if name not in beaten}
        assert len(circles(axis)) == len(METHODS)


def test_the_area_of_a_circle_is_the_number_of_parameters() -> None:
    ours, _, backbone, _ = circles(latency_plot(FRAME, "matched").axes[0])[:, 2]
    assert backbone / ours == pytest.approx(25_557_032 / 6_218_753)


def test_labels_of_methods_do_not_overlap() -> None:
    frame = results_frame(make_results(1))
    for axis in latency_plot(frame[frame["group"].isin(["near", "cost"])], "matched").axes:
        boxes = [Text.get_window_extent(text).shrunk(1, 0.75) for text in axis.texts]
        pairs = [(a, b) for place, a in enumerate(boxes) for b in boxes[:place]]
        assert not any(a.overlaps(b) for a, b in pairs)


def test_a_roc_has_the_area_of_its_auroc() -> None:
    rng = np.random.default_rng(0)
    normal, other = rng.normal(size=200).round(1), rng.normal(1, size=150).round(1)
    assert np.trapezoid(*roc_curve(normal, other)[::-1]) == pytest.approx(auroc(normal, other))
    mean = (auroc(normal, other) + 0.5) / 2
    assert np.trapezoid(mean_roc(normal, [other, normal]), GRID) == pytest.approx(mean, abs=0.01)


def test_roc_has_a_line_for_each_method_in_each_panel() -> None:
    figure = roc_plot(FRAME, SCORES, "matched", METHODS)
    shown = [short_label(name) for name in METHODS]
    for axis in figure.axes:
        assert [label for line in axis.get_lines() if (label := line.get_label()) in shown] == shown
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(METHODS) + 1


def test_histograms_have_a_row_for_each_set_and_a_column_for_each_method() -> None:
    figure = histogram_plot(FRAME, SCORES, "matched", METHODS[:2])
    assert len(figure.axes) == (len(SHIFTED) + 3) * 2
    assert [axis.get_ylabel() for axis in figure.axes[::2]][-3:] == [f"Corrupted, severity {n}" for n in (1, 3, 5)]
    for axis in figure.axes:
        assert len(axis.patches) == 2
        for patch in axis.patches:
            assert isinstance(patch, StepPatch)
            assert np.sum(patch.get_data()[0]) == pytest.approx(1)


def test_heatmaps_show_every_corruption_and_the_means() -> None:
    panels = corruption_plot(FRAME, "matched", METHODS[:3]).axes[:3]
    found = RESULTS["protocols"]["matched"]["corruptions"]
    for axis, method in zip(panels, METHODS, strict=False):
        cells = np.asarray(axis.get_images()[0].get_array())
        expected = np.array([[found[name][severity][method]["auroc"][0] for severity in "12345"] for name in found])
        np.testing.assert_allclose(cells[:-1, :-1], expected)
        np.testing.assert_allclose(cells[:-1, -1], expected.mean(1))
        np.testing.assert_allclose(cells[-1], [*expected.mean(0), expected.mean()])
    assert [label.get_text() for label in panels[0].get_yticklabels()][-1] == "mean"
    assert len(panels[0].get_yticklabels()) == 20


def test_protocols_have_two_dots_and_a_bar_for_each_set() -> None:
    figure = protocol_plot(FRAME, METHODS[:2])
    for axis, method in zip(figure.axes, METHODS, strict=False):
        dots = [line for line in axis.get_lines() if line.get_marker() == "o"]
        for line, protocol in zip(dots, ("paper", "matched"), strict=True):
            found = RESULTS["protocols"][protocol]
            expected = [found["sets"][name]["methods"][method]["auroc"][0] for name in SHIFTED]
            expected.append(found["means"]["covariate"][method]["auroc"][0])
            assert np.asarray(line.get_xdata()).tolist() == expected
        found = RESULTS["protocols"]["paper"]
        controls = [found["sets"][name]["methods"][method]["control"][0] for name in SHIFTED]
        bars = [bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle)]
        assert bars == pytest.approx([control - 0.5 for control in (*controls, found["control"][method][0])])


def test_every_head_has_a_line_in_every_panel_with_a_tick_at_each_patch_count() -> None:
    line = {"4": [0.7, 0.65, 0.75], "512": [0.9, 0.88, 0.92], "64": [0.8, 0.78, 0.83]}
    figure = patch_count_plot({"near": {"logit": line, "combined": {"4": [0.6, 0.5, 0.7]}}, "far": {"combined": line}})
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


def test_several_patch_counts_of_a_head_are_a_line_and_one_is_none() -> None:
    frame, means = results_frame(ALL), ALL["protocols"]["matched"]["means"]
    found = patch_counts(frame, "matched")
    assert list(found) == ["near", "far", "covariate"]
    for group, heads in found.items():
        expected = {str(n): tuple(means[group][f"discopatch-{n}/logit"]["auroc"]) for n in (64, 4, 16)}
        assert heads == {"logit": expected}
    assert patch_counts(FRAME, "matched") == {}
    assert "near" not in patch_counts(frame[frame["group"] != "near"], "paper")


def test_what_was_not_measured_is_left_out() -> None:
    results = without(RESULTS, ["near", "fog"])
    for protocol in results["protocols"].values():
        protocol["sets"] = {name: each for name, each in protocol["sets"].items() if each["group"] != "near"}
        del protocol["corruptions"]["snow"]["3"]["resnet50/knn"]
        del protocol["means"]["far"]["resnet50/knn"]
    frame, scores = results_frame(results), SampleScores(results)
    assert [len(circles(axis)) for axis in latency_plot(frame, "matched").axes] == [3, 4]
    (panel, *_) = corruption_plot(frame, "matched", ["resnet50/knn"]).axes
    cells = np.asarray(panel.get_images()[0].get_array())
    assert np.isnan(cells).sum() == 1
    assert len(histogram_plot(frame, scores, "matched", METHODS[:1]).axes) == 4 + 3
    assert len(roc_plot(frame, scores, "matched", METHODS).axes) == 2


def test_all_are_written_as_png_and_pdf_at_the_size_of_print(tmp_path: Path) -> None:
    counts = [f"discopatch-{count}/logit" for count in (4, 64)]
    corrupted = [name for name in ALL["protocols"]["matched"]["corruptions"] if name not in ("fog", "snow")]
    results = without(only(ALL, [REFERENCE, *counts]), ["paper", *SHIFTED[1:], *corrupted])
    store = ScoreStore(tmp_path / "scores")
    for name in ("test", SHIFTED[0], "fog/1", "fog/5", "snow/1", "snow/5"):
        scores = SampleScores(results).read("matched", name)
        store.add("matched", name, scores, dict.fromkeys(scores, "key"))
    paths = write_plots(tmp_path / "plots", results, store)
    stems = [f"{name}-matched" for name in ("latency", "roc", "histograms", "corruptions", "patches")]
    assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")]
    for path in paths:
        assert path.stat().st_size > 5_000
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width == TWO_COLUMNS * DPI
                assert np.asarray(image.convert("L")).std() > 5


def test_the_same_figure_gives_the_same_bytes_and_unknown_kinds_are_refused(tmp_path: Path) -> None:
    with plot_style():
        figure, _ = new_figure(2, 2)
    first, second = (save_figure(figure, tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    with pytest.raises(ParameterError, match="gif"):
        save_figure(figure, tmp_path / "third", ["gif"])


def test_nothing_is_left_of_the_style_and_pyplot_is_not_used() -> None:
    before = dict(matplotlib.rcParams)
    protocol_plot(FRAME, METHODS[:1])
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="bench"):
        protocol_plot(FRAME, METHODS[:1])
