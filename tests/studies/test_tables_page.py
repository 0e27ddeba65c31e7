"""The tables of docs/results.md are those of the stored results, to the digit."""

from pathlib import Path

import pytest

import tables
from discopatch.bench.methods import choose_methods
from tests.bench.bench_samples import tiny_weights

DOCS = Path("docs")


def test_the_page_shows_what_is_stored() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    assert text.count("<!-- end -->") >= 6
    assert tables.with_tables(text, DOCS / "results") == text


def test_a_figure_that_was_changed_by_hand_is_put_right() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    assert tables.with_tables(text.replace("99.8", "99.9"), DOCS / "results").count("99.8") >= 1


@pytest.mark.parametrize("name", tables.RUNS)
def test_every_run_has_methods(name: str) -> None:
    assert choose_methods(tables.RUNS[name].methods)


def test_a_run_without_places_has_the_components_head_without_them() -> None:
    patterns = ("resnet50/*", "discopatch/components:place=no", "discopatch/*")
    every, some = (tables.Run("natural", patterns, local=local).choose() for local in (True, False))
    assert {str(name) for name in every} - {str(name) for name in some} == {
        f"{encoder}/{method}" for encoder in ("resnet50", "discopatch") for method in ("local", "components")
    }
    assert {str(name) for name in some} - {str(name) for name in every} == {"resnet50/components:place=no"}
    assert len(some) == len(set(some))


def test_the_best_of_each_column_is_bold() -> None:
    rows = [["a", "90.0 [1, 2]", "1.0 [0, 1]"], ["b", "91.0 [1, 2]", "1.0 [0, 1]"]]
    assert tables.bold_best(rows, 2) == [
        ["a", "90.0 [1, 2]", "**1.0** [0, 1]"],
        ["b", "**91.0** [1, 2]", "**1.0** [0, 1]"],
    ]


def test_a_run_finds_its_images_and_is_published_as_tables_and_figures(folders: Path, tmp_path: Path) -> None:
    each = tables.Run("natural", ("natural-small-v1/logit",), {"fit": 40, "severities": (3,)})
    plan = each.plan(folders, folders / "solar", tiny_weights())
    assert (len(plan.suite.fit), plan.severities, plan.protocols) == (160, (3,), ("matched",))
    stored = DOCS / "results/brain-mri.json"
    (tmp_path / "runs/brain-mri").mkdir(parents=True)
    (tmp_path / "runs/brain-mri/results.json").write_text(stored.read_text(encoding="utf-8"), encoding="utf-8")
    tables.publish(tmp_path / "runs", tmp_path / "docs")
    assert (tmp_path / "docs/results/brain-mri.json").read_bytes() == stored.read_bytes()
    assert "our statistics head" in (tmp_path / "docs/results/brain-mri.md").read_text(encoding="utf-8")
