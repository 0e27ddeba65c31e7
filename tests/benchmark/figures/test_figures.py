"""Figures of a report hold what they should."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Annotation
from PIL import Image

from discopatch.benchmark.figures import write_figures
from discopatch.benchmark.figures.choose import main_methods
from discopatch.benchmark.figures.corruptions import corruption_figure
from discopatch.benchmark.figures.histograms import histogram_figure
from discopatch.benchmark.figures.latency import latency_figure
from discopatch.benchmark.figures.protocols import protocol_figure
from discopatch.benchmark.figures.roc import GRID, mean_roc, roc, roc_figure
from discopatch.benchmark.figures.style import DPI, TWO_COLUMNS
from discopatch.benchmark.metrics import auroc
from discopatch.benchmark.scorestore import ScoreStore
from discopatch.benchmark.tables.labels import short_label

from ..report_samples import REFERENCE, SETS, SampleScores, make_report, only, without
from ..studies.report_samples import losses_text, make_studies_report

METHODS = [REFERENCE, "discopatch-64/logit", "resnet50/energy", "resnet50/knn"]
REPORT = only(make_report(0), METHODS)
SCORES = SampleScores(REPORT)
STRANGE = [name for name, group in SETS.items() if group != "control"]


def marks(axis) -> list[PathCollection]:
    return [each for each in axis.collections if isinstance(each, PathCollection)]


def test_the_main_methods_begin_with_ours_and_the_papers() -> None:
    chosen = main_methods(make_report(0))
    assert chosen[:2] == [REFERENCE, "discopatch-64/logit"]
    assert len(chosen) == len(set(chosen)) == 4
    assert main_methods(only(make_report(0), ["resnet50/msp"])) == ["resnet50/msp"]


def test_latency_has_a_circle_and_a_label_for_each_method_in_each_panel() -> None:
    figure = latency_figure(REPORT, "matched")
    assert [axis.get_title() for axis in figure.axes] == ["near-OOD", "far-OOD", "covariate shift"]
    for axis, group in zip(figure.axes, ("near", "far", "covariate"), strict=True):
        assert axis.get_xscale() == "log"
        labels = [text.get_text() for text in axis.texts if isinstance(text, Annotation)]
        assert sorted(labels) == sorted(["combined", "64: logit", "Energy", "kNN"])
        found = {tuple(np.asarray(mark.get_offsets())[0]) for mark in marks(axis)}
        means = REPORT["protocols"]["matched"]["means"][group]
        assert found == {(REPORT["methods"][name]["milliseconds"], means[name]["auroc"][0]) for name in METHODS}


def test_the_area_of_a_circle_is_the_number_of_parameters() -> None:
    ours, _, backbone, _ = (mark.get_sizes()[0] for mark in marks(latency_figure(REPORT, "matched").axes[0]))
    assert backbone / ours == pytest.approx(25_557_032 / 6_218_753)


def test_labels_of_methods_do_not_overlap() -> None:
    figure = latency_figure(make_report(1), "matched")
    for axis in figure.axes:
        boxes = [text.get_window_extent().shrunk(1, 0.75) for text in axis.texts]
        pairs = [(a, b) for place, a in enumerate(boxes) for b in boxes[:place]]
        assert not any(a.overlaps(b) for a, b in pairs)


def test_a_roc_has_the_area_of_its_auroc() -> None:
    rng = np.random.default_rng(0)
    normal, other = rng.normal(size=200).round(1), rng.normal(1, size=150).round(1)
    assert np.trapezoid(*roc(normal, other)[::-1]) == pytest.approx(auroc(normal, other))
    assert np.trapezoid(mean_roc(normal, [other, normal]), GRID) == pytest.approx(
        (auroc(normal, other) + 0.5) / 2, abs=0.01
    )


def test_roc_has_a_line_for_each_method_in_each_panel() -> None:
    figure = roc_figure(REPORT, SCORES, "matched", METHODS)
    for axis in figure.axes:
        labels = [str(line.get_label()) for line in axis.get_lines()]
        assert [label for label in labels if label in map(short_label, METHODS)] == [
            short_label(name) for name in METHODS
        ]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(METHODS) + 1


def test_histograms_have_a_row_for_each_set_and_a_column_for_each_method() -> None:
    figure = histogram_figure(REPORT, SCORES, "matched", METHODS[:2])
    rows = len(STRANGE) + 3
    assert len(figure.axes) == rows * 2
    assert [axis.get_ylabel() for axis in figure.axes[::2]][-3:] == [f"Corrupted, severity {n}" for n in (1, 3, 5)]
    for axis in figure.axes:
        assert len(axis.patches) == 2
        for patch in axis.patches:
            assert isinstance(patch, StepPatch)
            assert np.sum(patch.get_data()[0]) == pytest.approx(1)


def test_heat_shows_every_corruption_and_the_means() -> None:
    figure = corruption_figure(REPORT, "matched", METHODS[:3])
    panels = figure.axes[:3]
    for axis, method in zip(panels, METHODS, strict=False):
        cells = np.asarray(axis.get_images()[0].get_array())
        found = REPORT["protocols"]["matched"]["corruptions"]
        expected = [[found[name][severity][method]["auroc"][0] for severity in "12345"] for name in found]
        np.testing.assert_allclose(cells[:-1, :-1], expected)
        assert cells[-1, -1] == pytest.approx(np.mean(expected))
    assert [label.get_text() for label in panels[0].get_yticklabels()][-1] == "mean"
    assert len(panels[0].get_yticklabels()) == 20


def test_protocols_have_three_signs_for_each_set() -> None:
    figure = protocol_figure(REPORT, METHODS[:2])
    for axis in figure.axes:
        dots = [line for line in axis.get_lines() if line.get_marker() == "o"]
        assert len(dots) == 2 * (len(STRANGE) + 1)
        assert len(axis.patches) == len(STRANGE) + 1
    control = REPORT["protocols"]["paper"]["sets"]["textures"]["methods"][REFERENCE]["control"][0]
    bar = figure.axes[0].patches[0]
    assert isinstance(bar, Rectangle)
    assert bar.get_width() == pytest.approx(control - 0.5)


def test_what_was_not_measured_is_left_out() -> None:
    report = without(REPORT, ["near", "fog"])
    for protocol in report["protocols"].values():
        protocol["sets"] = {name: each for name, each in protocol["sets"].items() if each["group"] != "near"}
        del protocol["corruptions"]["snow"]["3"]["resnet50/knn"]
        del protocol["means"]["far"]["resnet50/knn"]
    assert [len(marks(axis)) for axis in latency_figure(report, "matched").axes] == [3, 4]
    (panel, *_) = corruption_figure(report, "matched", ["resnet50/knn"]).axes
    cells = np.asarray(panel.get_images()[0].get_array())
    assert np.isnan(cells).sum() == 1
    assert len(histogram_figure(report, SampleScores(report), "matched", METHODS[:1]).axes) == 4 + 3
    assert len(roc_figure(report, SampleScores(report), "matched", METHODS).axes) == 2


def test_all_are_written_as_png_and_pdf_at_the_size_of_print(tmp_path: Path) -> None:
    corrupted = [name for name in REPORT["protocols"]["matched"]["corruptions"] if name not in ("fog", "snow")]
    report = without(only(REPORT, METHODS[:3]), ["paper", *STRANGE[1:], *corrupted])
    store = ScoreStore(tmp_path / "scores")
    names = ["test", STRANGE[0], *(f"{name}/{severity}" for name in ("fog", "snow") for severity in "15")]
    for name in names:
        scores = SCORES.read("matched", name)
        store.add("matched", name, scores, dict.fromkeys(scores, "made up"))
    paths = write_figures(tmp_path / "figures", report, store)
    stems = ["latency-matched", "roc-matched", "histograms-matched", "corruptions-matched"]
    assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")]
    for path in paths:
        assert path.stat().st_size > 5_000
        if path.suffix == ".png":
            with Image.open(path) as picture:
                assert picture.width == TWO_COLUMNS * DPI
                assert np.asarray(picture.convert("L")).std() > 5


def test_patch_counts_and_studies_are_drawn_beside_the_benchmark(tmp_path: Path) -> None:
    counts = [f"discopatch-{count}/logit" for count in (4, 64)]
    report = without(only(make_report(0), [*METHODS[:1], *counts]), ["paper", "corruptions", "covariate"])
    studies = make_studies_report()
    part = {name: studies[name] for name in ("plan", "made", "spectra", "batch normalisation")}
    (tmp_path / "losses.csv").write_text(losses_text())
    paths = write_figures(
        tmp_path / "figures", report, SampleScores(make_report(0)), studies=part, losses=tmp_path / "losses.csv"
    )
    stems = ["latency-matched", "roc-matched", "histograms-matched", "patches-matched"]
    stems += ["batchnorm-full-0", "spectra-paper-0", "spectra-natural-0", "losses"]
    assert [path.name for path in paths] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")]
    assert all(path.stat().st_size > 5_000 for path in paths)


def test_nothing_is_left_of_the_style_and_pyplot_is_not_used() -> None:
    import sys

    import matplotlib

    before = dict(matplotlib.rcParams)
    protocol_figure(REPORT, METHODS[:1])
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'discopatch\[bench\]'"):
        protocol_figure(REPORT, METHODS[:1])
