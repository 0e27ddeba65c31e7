"""The page of the studies and its figures, from made-up results and from those that are stored in docs/results/."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from PIL import Image

import paper_studies
from discopatch.errors import ParameterError
from paper.losses import read_all_losses
from paper.page import studies_page
from paper.plots import dots_figure, study_figures
from paper.results import read_results
from paper.tables import tables_by_section
from tests.studies.samples import losses_text, make_study_results

RESULTS = make_study_results()
DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ("evaluation", "batch normalisation", "patch counts", "spectra", "runs", "data")
MEASURED = SECTIONS[:-1]
FIGURES = [
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
    (found / "studies.json").write_text(json.dumps(RESULTS))
    (found / "losses.csv").write_text(losses_text())
    return found


def test_the_stored_results_give_the_tables_of_the_page() -> None:
    page = (DOCS / "studies.md").read_text(encoding="utf-8")
    again = studies_page(read_results(DOCS / "results"))
    rows = [[line for line in text.splitlines() if re.match(r"\| .*\d", line)] for text in (page, again)]
    numbers = [[re.findall(r"[\d.,+-]+", line) for line in lines] for lines in rows]
    assert len(rows[0]) > 100
    assert numbers[0] == numbers[1]


def test_the_page_holds_every_table_below_its_study() -> None:
    page = studies_page(RESULTS, {"spectra-paper-0": "images/a.png", "losses": "images/b.png"})
    sections = tables_by_section(RESULTS)
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == [*sections]
    for title, tables in sections.items():
        own = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
        assert all(f"\n### {table.title}\n" in own for table in tables)
    value, low, high = (100 * each for each in RESULTS["evaluation"]["group-0"]["groups"]["near"]["patches"])
    assert re.search(rf"\| GroupNorm \| \**{value:.1f}\** \[{low:.1f}, {high:.1f}\] \|", page)
    assert "![Spectra, paper-0](images/a.png)" in page.split("## Spectra")[1].split("## The trainings")[0]
    assert "![The trainings](images/b.png)" in page.split("## The trainings")[1]
    assert page.count("python studies/paper_studies.py run ... ") == 5, "each study says how to make it again"
    assert "{" not in page


@pytest.mark.parametrize("missing", [*SECTIONS, "all"])
def test_a_study_that_was_not_run_is_left_out(missing: str) -> None:
    gone = SECTIONS if missing == "all" else (missing,)
    results = {name: each for name, each in RESULTS.items() if name not in gone}
    count, whole = (sum(map(len, tables_by_section(each).values())) for each in (results, RESULTS))
    assert count < whole
    assert bool(count) == (missing != "all")
    page = studies_page(results)
    assert "## Provenance" in page
    assert not re.search(r"\bnan\b", page)
    empty: dict[str, Any] = {**RESULTS, **{name: {} for name in gone}}
    assert studies_page(empty) == page


def test_the_page_says_what_has_not_been_measured() -> None:
    whole = copy.deepcopy(RESULTS)
    wanted = [f"{kind}-{seed}" for kind in ("paper", "natural") for seed in range(whole["plan"]["seeds"])]
    run = whole["runs"]["paper-0"]
    whole["runs"] = dict.fromkeys((*wanted, "group-0", "instance-0", "full-0"), run)
    assert "**Not measured" not in studies_page(whole)
    del whole["runs"]["group-0"]
    assert "group-0, Batch statistics." in studies_page({**whole, "batch normalisation": {}})


def test_every_study_has_its_figure(folder: Path) -> None:
    found = dict(study_figures(RESULTS, folder / "losses.csv"))
    assert list(found) == FIGURES
    (dots,) = found["normalisation"].axes
    assert len(dots.get_yticklabels()) == 12
    assert "combined: GroupNorm" in [label.get_text() for label in dots.get_yticklabels()]
    near = next(each for each in dots.containers if isinstance(each, ErrorbarContainer))
    first = RESULTS["evaluation"]["group-0"]["groups"]["near"]["patches"][0]
    assert np.asarray(near.lines[0].get_xdata(), float)[0] == pytest.approx(first)
    run = RESULTS["batch normalisation"]["full-0"]
    pure, mixed, learned, _ = found["batchnorm-full-0"].axes[0].get_lines()
    assert y_of(pure) == pytest.approx([each["near"]["auroc"][0] for each in run["batch"].values()])
    assert y_of(mixed) == pytest.approx([each["near"]["auroc"][0] for each in run["half"].values()])
    assert set(y_of(learned)) == {run["learned"]["near"]["auroc"][0]}
    logit = found["patchcounts-released"].axes[1].get_lines()[0]
    counts = RESULTS["patch counts"]["released"]["counts"]
    assert y_of(logit) == pytest.approx([each["far"]["logit"][0] for each in counts.values()])
    (spectra,) = found["spectra-natural-0"].axes
    assert [line.get_label() for line in spectra.get_lines()] == ["real", "reconstructed", "generated"]
    assert spectra.get_yscale() == "log"
    (legend,) = found["losses"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["paper-0", "natural-0"]


def y_of(line: Any) -> np.ndarray:
    return np.asarray(line.get_ydata(), float)


def test_dots_stand_on_the_line_of_their_label_and_do_not_meet() -> None:
    dots = [(label, group, 0.9, 0.88, 0.93) for label in ("GroupNorm", "BatchNorm") for group in ("near", "far")]
    (axis,) = dots_figure(dots[:-1]).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["GroupNorm", "BatchNorm"]
    near, far = (each for each in axis.containers if isinstance(each, ErrorbarContainer))
    heights = [y_of(each.lines[0]) for each in (near, far)]
    assert [np.rint(each).tolist() for each in heights] == [[0, 1], [0]]
    assert heights[0][0] != heights[1][0]
    (bars,) = near.lines[2]
    assert bars.get_segments()[0][:, 0] == pytest.approx([0.88, 0.93])


def test_what_was_not_studied_is_not_drawn(tmp_path: Path) -> None:
    part = {name: RESULTS[name] for name in ("plan", "made", "spectra")}
    assert [name for name, _ in study_figures(part)] == ["spectra-paper-0", "spectra-natural-0"]
    path = tmp_path / "losses.csv"
    path.write_text(losses_text(runs=()))
    assert list(study_figures({"plan": RESULTS["plan"]}, path)) == []
    path.write_text(losses_text(runs=("group-0",)))
    assert [name for name, _ in study_figures({"plan": RESULTS["plan"]}, path)] == ["losses"]


def test_a_folder_or_the_json_in_it_can_be_read(folder: Path) -> None:
    for path in (folder, folder / "studies.json"):
        assert read_results(path) == json.loads(json.dumps(RESULTS))


@pytest.mark.parametrize("text", [None, "{", '{"format": 1}', '{"format": 0, "plan": {}, "made": {}}', "[]"])
def test_a_folder_without_studies_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "studies.json").write_text(text)
    with pytest.raises(ParameterError, match=r"studies\.json"):
        read_results(tmp_path)


def test_parts_that_ran_side_by_side_join_to_the_whole(folder: Path, tmp_path: Path) -> None:
    """Every run of every section is in one of two parts; together they have the lines of the page."""
    own = set(sorted(RESULTS["evaluation"])[::2])
    for place in (0, 1):
        part = dict(RESULTS)
        for section in MEASURED:
            part[section] = {name: run for name, run in RESULTS[section].items() if (name in own) == (place == 0)}
        (tmp_path / str(place)).mkdir()
        (tmp_path / str(place) / "studies.json").write_text(json.dumps(part))
        (tmp_path / str(place) / "losses.csv").write_text(losses_text(runs=(f"paper-{place}",)))
    paper_studies.join([tmp_path / "0", tmp_path / "1"], out=tmp_path / "all")
    joined, whole = (studies_page(read_results(path)).splitlines() for path in (tmp_path / "all", folder))
    assert sorted(joined) == sorted(whole)
    assert [*read_all_losses(tmp_path / "all" / "losses.csv")] == ["paper-0", "paper-1"]


def test_parts_of_different_plans_do_not_join(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "studies.json").write_text(json.dumps({**RESULTS, "plan": {**RESULTS["plan"], "fit": 1}}))
    with pytest.raises(ParameterError, match="the plan of the studies differs"):
        paper_studies.join([folder, tmp_path], out=tmp_path / "all")


def test_the_script_writes_the_page_and_the_figures_that_it_shows(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "docs" / "studies.md"
    paper_studies.page(folder, out=out, latex=tmp_path / "studies.tex")
    text = out.read_text(encoding="utf-8")
    for name in FIGURES:
        assert f"](images/studies/{name}.png)" in text
        with Image.open(out.parent / "images" / "studies" / f"{name}.png") as image:
            assert np.asarray(image.convert("L")).std() > 5
    assert len(list((out.parent / "images" / "studies").iterdir())) == len(FIGURES)
    assert r"\label{tab:study-seeds}" in (tmp_path / "studies.tex").read_text(encoding="utf-8")


def test_figures_may_lie_elsewhere(tmp_path: Path) -> None:
    part = {name: RESULTS[name] for name in ("format", "plan", "made", "spectra")}
    (tmp_path / "studies.json").write_text(json.dumps(part))
    out = tmp_path / "docs" / "studies.md"
    paper_studies.page(tmp_path / "studies.json", out=out, figures=tmp_path / "elsewhere")
    assert "](../elsewhere/spectra-paper-0.png)" in out.read_text(encoding="utf-8")
