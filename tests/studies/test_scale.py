"""The study of many images, in its smallest form."""

import json
from pathlib import Path

import pytest

import scale
from discopatch import Detector
from discopatch.batch import read_scores
from tests.samples import natural_detector

PAGE = "".join(f"<!-- scale {name} -->\n<!-- end -->\n" for name in ("images", "decoders", "rescore", "rounding"))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Detector:
    """In place of a fit, which is not what is measured."""
    detector = natural_detector()
    monkeypatch.setattr(Detector, "fit", lambda self, images, **options: detector)
    return detector


def test_images_are_scored_and_their_moments_kept(
    fitted: Detector, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "SHARDS", 3)
    monkeypatch.setattr(scale, "DISTINCT", 4)
    scale.images(count=7, fit=30, out=tmp_path / "scale.json", page=page)
    found = json.loads((tmp_path / "scale.json").read_text())["images"]
    assert [each["images"] for each in found["moments"]] == [3, 5, 7]
    assert found["MiB at the end"] > 0
    assert "| images | 7 |" in page.read_text()


def test_rounding_is_told_for_each_way_of_storing(fitted: Detector, page: Path, tmp_path: Path) -> None:
    scale.store("images", {"kept": 1}, tmp_path / "scale.json", None)
    scale.rounding(fit=30, count=4, heads=["components"], out=tmp_path / "scale.json", page=page)
    results = json.loads((tmp_path / "scale.json").read_text())
    assert results["images"] == {"kept": 1}
    ways = {name: each for name, each in results["rounding"]["components"].items() if isinstance(each, dict)}
    assert ways["float16, statistics from the mean"]["largest"] < 0.1
    assert ways["float32"]["largest"] < 1e-3
    assert page.read_text().count("| components |") == len(ways)


def test_made_up_rows_are_a_folder_of_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(scale, "PER_PART", 40)
    rng = np.random.default_rng(0)
    detector = Detector("natural-v2", device="cpu", false_alarm_rate=0.1).fit_features(scale.made_up(rng, 60))
    scale.write_rows(tmp_path / "scores", detector, scale.made_up(rng, 40), 100)
    assert read_scores(tmp_path / "scores").count_rows() == 100


def test_decoders_are_timed_to_parquet(
    fitted: Detector, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "DISTINCT", 20)
    scale.decoders(count=3, side=320, fit=2, out=tmp_path / "scale.json", page=page)
    found = json.loads((tmp_path / "scale.json").read_text())["decoders"]
    assert all(found[name]["images a second to Parquet"] > 0 for name in ("pillow", "scaled"))
    assert "| `scaled` |" in page.read_text()
