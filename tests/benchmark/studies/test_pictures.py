"""The figures of the studies, their folder, and the script that writes the page."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image

from discopatch.benchmark.studies.pictures import study_figures
from discopatch.benchmark.studies.stored import Stored
from tests.benchmark.studies.report_samples import losses_text, make_studies_report

REPORT = make_studies_report()
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "studies.py"
NAMES = [
    "normalisation",
    "batchnorm-full-0",
    "patchcounts-paper-0",
    "patchcounts-natural-0",
    "patchcounts-released",
    "spectra-paper-0",
    "spectra-natural-0",
    "losses",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("studies")
    (found / "studies.json").write_text(json.dumps(REPORT))
    (found / "losses.csv").write_text(losses_text())
    return found


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("studies_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_study_has_its_figure(folder: Path) -> None:
    found = dict(study_figures(REPORT, folder / "losses.csv"))
    assert list(found) == NAMES
    (dots,) = found["normalisation"].axes
    assert len(dots.get_yticklabels()) == 12
    assert "combined: GroupNorm" in [label.get_text() for label in dots.get_yticklabels()]
    near = next(each for each in dots.containers if isinstance(each, ErrorbarContainer))
    first = REPORT["evaluation"]["group-0"]["groups"]["near"]["patches"][0]
    assert np.asarray(near.lines[0].get_xdata(), float)[0] == pytest.approx(first)
    pure = found["batchnorm-full-0"].axes[0].get_lines()[0]
    batches = REPORT["batch normalisation"]["full-0"]["batch"]
    assert np.asarray(pure.get_ydata(), float) == pytest.approx([each["near"]["auroc"][0] for each in batches.values()])
    logit = found["patchcounts-released"].axes[1].get_lines()[0]
    counts = REPORT["patch counts"]["released"]["counts"]
    assert np.asarray(logit.get_ydata(), float) == pytest.approx([each["far"]["logit"][0] for each in counts.values()])
    (spectra,) = found["spectra-natural-0"].axes
    assert [line.get_label() for line in spectra.get_lines()] == ["real", "reconstructed", "generated"]
    (legend,) = found["losses"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["paper-0", "natural-0"]


def test_what_was_not_studied_is_not_drawn(tmp_path: Path) -> None:
    part = {name: REPORT[name] for name in ("plan", "made", "spectra")}
    assert [name for name, _ in study_figures(part)] == ["spectra-paper-0", "spectra-natural-0"]
    path = tmp_path / "losses.csv"
    path.write_text(losses_text(runs=()))
    assert list(study_figures({"plan": REPORT["plan"]}, path)) == []
    path.write_text(losses_text(runs=("group-0",)))
    assert [name for name, _ in study_figures({"plan": REPORT["plan"]}, path)] == ["losses"]


def test_a_folder_or_the_json_in_it_can_be_read(folder: Path, tmp_path: Path) -> None:
    for place in (folder, folder / "studies.json"):
        found = Stored.read(place)
        assert found.report == json.loads(json.dumps(REPORT))
        assert found.losses == folder / "losses.csv"
    alone = tmp_path / "studies.json"
    alone.write_text(json.dumps(REPORT))
    assert Stored.read(tmp_path).losses is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, r"no studies in .*studies\.json: give the folder that `python benchmarks/studies\.py run"),
        ("{", "is no JSON"),
        ('{"format": 1}', "holds no studies of this version"),
        ('{"format": 0, "plan": {}, "made": {}}', "holds no studies of this version"),
        ("[]", "holds no studies of this version"),
    ],
)
def test_a_folder_without_studies_says_what_is_wrong(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "studies.json").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        Stored.read(tmp_path)


def test_the_script_writes_the_page_and_the_pictures_that_it_shows(
    script: ModuleType, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "docs" / "studies.md"
    script.page(folder, out=out, figures=None)
    text = out.read_text(encoding="utf-8")
    for name in NAMES:
        assert f"](images/studies/{name}.png)" in text
        with Image.open(out.parent / "images" / "studies" / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 5
    assert len(list((out.parent / "images" / "studies").iterdir())) == len(NAMES)
    script.page(folder / "studies.json", out=out, figures=tmp_path / "elsewhere")
    assert "](../elsewhere/normalisation.png)" in out.read_text(encoding="utf-8")
