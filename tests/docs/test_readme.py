"""What the README says in figures is what was measured, or what the code does."""

import json
import re
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import discopatch
from discopatch.bench.baselines import BASELINES
from discopatch.calibration import choose_rate
from discopatch.fitting import MIN_FIT_IMAGES, MIN_IMAGES
from discopatch.heads import HEADS
from discopatch.pretrained import PRETRAINED
from tests.docs.blocks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
OURS, RESNET, PAPERS = "discopatch/components", "resnet50/components", "paper-v1-64/sigmoid"
ROWS = {  # of the table for research: run, group, methods
    "photos, 19 corruptions": ("natural", "covariate", "resnet50/vim"),
    "solar cells, 19 corruptions": ("solar", "covariate", "resnet50/knn"),
    "textures and cartoons": ("natural", "near", "resnet50/vim"),
    "solar cells with real defects": ("solar", "near", "resnet50/local"),
}


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())
    return found


def measured(run: str, group: str, method: str) -> float:
    means = results(run)["protocols"]["matched"]["means"][group]
    found = means.get(method) or means[f"{method}:place=no"]  # on photos the head does without places
    return float(found["auroc"][0])


def row(start: str) -> list[str]:
    """The cells of the table's row that begins so."""
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def figure(cell: str) -> float:
    match = re.search(r"0\.\d{3}", cell)
    assert match, cell
    return float(match[0])


@pytest.mark.parametrize("start", ROWS)
def test_the_table_for_research_has_the_published_results(start: str) -> None:
    run, group, literature = ROWS[start]
    figures = [figure(cell) for cell in row(start)[1:]]
    expected = [measured(run, group, method) for method in (OURS, RESNET, literature, PAPERS)]
    assert figures == pytest.approx(expected, abs=0.0006)


def test_no_other_method_of_the_literature_is_better_than_the_one_that_is_named() -> None:
    for run, group, literature in ROWS.values():
        rivals = [f"{encoder}/{name}" for encoder in ("resnet50", "efficientnet-lite0") for name in BASELINES]
        means = results(run)["protocols"]["matched"]["means"][group]
        best = max(means[name]["auroc"][0] for name in rivals if name in means)
        assert measured(run, group, literature) == pytest.approx(best, abs=0.001)


def test_the_figures_beside_others_are_measured_ones() -> None:
    ours, _, vim, *_ = row("AUROC, corrupted photos")[1:]
    assert figure(ours) == pytest.approx(measured("natural", "covariate", OURS), abs=0.0006)
    assert figure(vim) == pytest.approx(measured("natural", "covariate", "resnet50/vim"), abs=0.0006)
    ours, local, knn, *_ = row("AUROC, defective solar cells")[1:]
    expected = [measured("solar", "near", name) for name in (OURS, "resnet50/local", "resnet50/knn")]
    assert [figure(cell) for cell in (ours, local, knn)] == pytest.approx(expected, abs=0.0006)


def test_the_packages_of_others_have_the_figures_of_the_study() -> None:
    study = results("peers")
    means = {name: fmean(each["3"].values()) for name, each in study["auroc"].items()}
    pyod, _, cleanvision = row("AUROC, corrupted photos")[-3:]
    assert figure(pyod) == pytest.approx(max(means[name] for name in means if name.startswith("PyOD")), abs=0.0006)
    assert figure(cleanvision) == pytest.approx(means["cleanvision"], abs=0.0006)
    (said,) = re.findall(r"ours has (0\.\d{3}) there", README)
    assert float(said) == pytest.approx(means["discopatch, as it comes"], abs=0.0006)
    head = row("| discopatch")
    assert f"PyOD {study['versions']['pyod'].rpartition('.')[0]}" in head
    assert f"cleanvision {study['versions']['cleanvision'].rpartition('.')[0]}" in head


def test_heads_baselines_version_and_size_of_the_weights_are_counted() -> None:
    assert f"{len(HEADS)} heads on any network, {len(BASELINES)} baselines" in README
    assert f"discopatch {discopatch.__version__.rpartition('.')[0]}" in README
    folder = ROOT / "src" / "discopatch" / "pretrained"
    size = sum((folder / f"{name}.safetensors").stat().st_size for name in PRETRAINED)
    assert f"part of the package, {size / 1e6:.0f} MB" in README


def test_so_many_images_allow_the_rates_that_are_said() -> None:
    said = {30: 0.1, 39: 0.05, 98: 0.02, 198: 0.01}
    assert "With 30 images at most 10 %" in README
    assert re.search(r"with 39 at most\s+5 %, with 98 2 %, with 198 1 %", README)
    for images, rate in said.items():
        assert choose_rate("auto", np.arange(images), min_fit=MIN_FIT_IMAGES) == rate
        if images > MIN_IMAGES:
            assert choose_rate("auto", np.arange(images - 1), min_fit=MIN_FIT_IMAGES) > rate


def test_the_recording_shows_the_tutorials_commands() -> None:
    from record_terminal import tutorial_steps

    _, commands = tutorial_steps((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    recording = (ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", recording)
    assert len(commands) >= 3
    for command in commands:
        assert command in shown
