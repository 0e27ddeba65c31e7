"""Tables and plots show the figures of the results, in every format."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as reference_curve

from discopatch.bench import runner as runner_module
from discopatch.bench.dataset import CorruptionPool
from discopatch.bench.labels import encoder_label, method_label, set_label, split_discriminator
from discopatch.bench.methods import MethodName
from discopatch.bench.plots import GRID, bin_edges, main_methods, mean_roc, roc_curve, shares, write_plots
from discopatch.bench.runner import run_bench
from discopatch.bench.store import ScoreStore
from discopatch.bench.suites import Suite
from discopatch.bench.tables import by_method, result_tables, results_frame, write_tables
from tests.bench.bench_samples import METHODS, make_encoders, make_plan, tiny_weights

KNN = "thumbnail/knn"


@pytest.fixture(scope="module")
def folder(suite: Suite, pool: CorruptionPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with two seeds."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "load_encoder", lambda name, *args, **options: make_encoders()[name])
        methods = [*METHODS, MethodName("thumbnail", "mds")]
        run_bench(make_plan(suite, seeds=(0, 1), fit=20), methods, folder, tiny_weights(), pool, optional=methods)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_every_figure_of_the_results_is_a_row_of_the_frame(results: dict[str, Any]) -> None:
    frame = results_frame(results)
    assert not frame.duplicated(["protocol", "set", "group", "method", "metric"]).any()
    wide = by_method(frame)
    for protocol, found in results["protocols"].items():
        coins, mean = found["sets"]["coins"]["methods"][KNN], found["means"]["covariate"][KNN]
        for place, part in enumerate(("value", "low", "high")):
            assert wide.loc[KNN, (part, protocol, "coins", "far", "fpr95")] == coins["fpr95"][place]
            assert wide.loc[KNN, (part, protocol, "mean", "covariate", "auroc")] == mean["auroc"][place]
        level = found["corruptions"]["contrast"]["5"][KNN]["auroc"][0]
        assert wide.loc[KNN, ("value", protocol, "contrast/5", "covariate", "auroc")] == level
        spread = found["seeds"]["far"][KNN]["auroc"][1]
        assert wide.loc[KNN, ("value", protocol, "mean", "far", "auroc_seed_std")] == spread
    assert wide.loc[KNN, ("value", "", "", "cost", "milliseconds")] == results["methods"][KNN]["milliseconds"]


def test_tables_have_the_figures_as_percentages_and_the_best_in_bold(results: dict[str, Any], tmp_path: Path) -> None:
    tables = result_tables(results)
    found = results["protocols"]["matched"]
    row = list(results["methods"]).index(KNN)
    auroc, fpr95 = (100 * found["sets"]["coins"]["methods"][KNN][metric][0] for metric in ("auroc", "fpr95"))
    cells = tables["AUROC/FPR95 of each set, matched"]["Coins (far)"]
    assert cells[row].replace("**", "") == f"{auroc:.1f}/{fpr95:.1f}"
    best = max(each["auroc"][0] for each in found["means"]["covariate"].values())
    bold = [cell for cell in tables["Group means, matched"]["covariate shift, AUROC"] if cell.startswith("**")]
    assert bold
    assert {cell[2:].partition("**")[0] for cell in bold} == {f"{100 * best:.1f}"}
    levels = [found["corruptions"]["contrast"][severity][KNN]["auroc"][0] for severity in "15"]
    corruptions = tables["AUROC of each corruption, mean over severities, matched"]
    assert corruptions["Contrast"][row] == f"{100 * np.mean(levels):.1f}"
    write_tables(tmp_path, results)
    page, latex = (tmp_path / "tables.md").read_text(), (tmp_path / "tables.tex").read_text()
    assert page.count("\n## ") == latex.count(r"\begin{table}") == len(tables)
    assert f"| {method_label(KNN)} |" in page
    assert "Left out: MDS" in page
    assert f"\\textbf{{{100 * best:.1f}}}" in latex
    with (tmp_path / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(results_frame(results))


@pytest.mark.slow
def test_every_plot_is_written_twice_and_is_not_blank(results: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    paths = write_plots(tmp_path, results, ScoreStore(folder / "scores"))
    names = {path.stem for path in paths}
    kinds = ("latency", "roc", "histograms", "corruptions")
    assert names == {"protocols", *(f"{kind}-{protocol}" for kind in kinds for protocol in ("matched", "paper"))}
    assert {path.suffix for path in paths} == {".png", ".pdf"}
    for path in paths:
        if path.suffix == ".png":
            assert np.asarray(Image.open(path).convert("L")).std() > 5, path.name


def test_the_plotted_methods_are_the_reference_the_papers_score_and_the_best_rival(results: dict[str, Any]) -> None:
    rivals = [name for name in results["methods"] if name.startswith("thumbnail")]
    chosen = main_methods(results, 3)
    assert chosen[:2] == [results["protocols"]["matched"]["reference"], "discopatch-4/logit"]
    assert chosen[2] in rivals


def test_roc_curves_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    normal, other = rng.normal(size=200).round(1), rng.normal(1, size=150).round(1)
    labels, scores = np.repeat([0, 1], [200, 150]), np.concatenate([normal, other])
    false, true, _ = reference_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(roc_curve(normal, other), [false, true])
    area = np.trapezoid(mean_roc(normal, [other]), GRID)
    assert area == pytest.approx(roc_auc_score(labels, scores), abs=2e-3)


def test_histograms_count_every_image() -> None:
    normal, far = np.random.default_rng(0).normal(size=300), np.full(50, 1e6)
    edges = bin_edges([normal, far])
    assert edges[-1] < 1e3
    assert shares(far, edges).sum() == shares(normal, edges).sum() == pytest.approx(1)


def test_labels_are_names_of_the_field() -> None:
    assert method_label("resnet50/energy") == "Energy (ResNet-50)"
    assert method_label("discopatch-64/logit") == "DisCoPatch-64, mean logit (the paper's scoring rule)"
    assert (encoder_label("dinov2=/a/b"), set_label("chest-xray")) == ("dinov2", "Chest X-ray")
    assert split_discriminator("paper-v1-64") == ("paper-v1", 64)
    assert split_discriminator("natural-v2") == ("natural-v2", None)
    assert split_discriminator("resnet50") is None
