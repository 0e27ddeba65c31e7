"""Tables and plots show the figures of the results, in every format."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discopatch.bench.dataset import CorruptionPool, Suite
from discopatch.bench.plots import write_plots
from discopatch.bench.tables import (
    encoder_label,
    method_label,
    result_tables,
    results_frame,
    set_label,
    split_discriminator,
    write_tables,
)
from tests.bench.bench_samples import METHODS, make_plan, make_run

KNN = "thumbnail/knn"


@pytest.fixture(scope="module")
def folder(suite: Suite, pool: CorruptionPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with two seeds."""
    methods = [*METHODS[1:], "thumbnail/mds"]  # without the head that takes long to fit
    plan = make_plan(suite, seeds=(0, 1), fit=20)
    run = make_run(plan, tmp_path_factory.mktemp("run"), pool, methods=methods, optional=methods)
    run.run()
    return run.folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_every_figure_of_the_results_is_a_row_of_the_frame(results: dict[str, Any]) -> None:
    frame = results_frame(results).set_index(["method", "protocol", "set", "group", "metric"])
    assert not frame.index.duplicated().any()
    for protocol, found in results["protocols"].items():
        coins, mean = found["sets"]["coins"]["methods"][KNN], found["means"]["covariate"][KNN]
        assert frame.loc[KNN, protocol, "coins", "far", "fpr95"].tolist() == coins["fpr95"]
        assert frame.loc[KNN, protocol, "mean", "covariate", "auroc"].tolist() == mean["auroc"]
        level = found["corruptions"]["contrast"]["5"][KNN]["auroc"]
        assert frame.loc[KNN, protocol, "contrast/5", "covariate", "auroc"].tolist() == level
        spread = found["seeds"]["far"][KNN]["auroc"][1]
        assert frame.loc[KNN, protocol, "mean", "far", "auroc_seed_std"]["value"] == spread
    assert frame.loc[KNN, "", "", "cost", "milliseconds"]["value"] == results["methods"][KNN]["milliseconds"]


def test_tables_have_the_figures_as_percentages_and_the_best_in_bold(results: dict[str, Any], tmp_path: Path) -> None:
    tables = result_tables(results)
    found = results["protocols"]["matched"]
    row = list(results["methods"]).index(KNN)
    figures = (found["sets"]["coins"]["methods"][KNN][metric] for metric in ("auroc", "fpr95"))
    auroc, fpr95 = ("{:.1f} [{:.1f}, {:.1f}]".format(*(100 * each for each in figure)) for figure in figures)
    cells = tables["AUROC/FPR95 of each set, matched"]["Coins (far, n=5)"]
    assert cells[row].replace("**", "") == f"{auroc} / {fpr95}"
    best = max(each["auroc"][0] for each in found["means"]["covariate"].values())
    bold = [cell for cell in tables["Group means, matched"]["covariate shift (n=24), AUROC"] if cell.startswith("**")]
    assert bold
    assert {cell[2:].partition("**")[0] for cell in bold} == {f"{100 * best:.1f}"}
    levels = [found["corruptions"]["contrast"][severity][KNN]["auroc"][0] for severity in "15"]
    corruptions = tables["AUROC of each corruption, mean over severities, matched"]
    assert corruptions["Contrast (n=12)"][row].startswith(f"{100 * np.mean(levels):.1f} [")
    write_tables(tmp_path, results)
    page, latex = (tmp_path / "tables.md").read_text(), (tmp_path / "tables.tex").read_text()
    assert page.count("\n## ") == latex.count(r"\begin{table}") == len(tables)
    assert f"| {method_label(KNN)} |" in page
    assert "Left out: MDS" in page
    assert f"\\textbf{{{100 * best:.1f}}}" in latex
    with (tmp_path / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(results_frame(results))


@pytest.mark.slow
def test_every_plot_is_written_twice_and_is_not_blank(results: dict[str, Any], tmp_path: Path) -> None:
    write_plots(tmp_path, results)
    names = {"protocols", "corruptions-matched", "corruptions-paper"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    for path in tmp_path.glob("*.png"):
        assert np.asarray(Image.open(path).convert("L")).std() > 5, path.name


def test_labels_are_names_of_the_field() -> None:
    assert method_label("resnet50/energy") == "Energy (ResNet-50)"
    assert method_label("discopatch-64/logit") == "DisCoPatch-64, mean logit (the paper's scoring rule)"
    assert (encoder_label("dinov2=/a/b"), set_label("chest-xray")) == ("dinov2", "Chest X-ray")
    assert split_discriminator("paper-v1-64") == ("paper-v1", 64)
    assert split_discriminator("natural-v2") == ("natural-v2", None)
    assert split_discriminator("resnet50") is None
