"""`discopatch export` of a detector of components, and what `score` and `explain` say with its folder."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discopatch.results import COMPONENT_WORDS
from tests.export.samples import run_without_torch
from tests.samples import one_camera, save_images
from tests.test_components_detector import place_detector

from .conftest import Run

COLUMNS = ["acquisition", "content", "place"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, and new images of which one is noise and one is broken."""
    folder = tmp_path_factory.mktemp("camera")
    place_detector().save(folder / "camera-3.safetensors")
    save_images(folder / "new", one_camera(4, size=80, seed=1))
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "new" / "noise.png")
    (folder / "new" / "broken.png").write_bytes(b"nothing")
    return folder


@pytest.fixture
def exported(folder: Path, run: Run) -> Path:
    export = folder / "camera-3-onnx"
    if not export.exists():
        save_images(folder / "references", one_camera(8, size=80, seed=5))
        references = ("--reference", folder / "references")
        status, _, err = run("export", folder / "camera-3.safetensors", "--format", "onnx", *references)
        assert status == 0, err
        assert "components" in err
    return export


def test_score_prints_the_columns_of_the_detector(exported: Path, folder: Path, run: Run) -> None:
    def rows(detector: Path) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(run("score", folder / "new", "--detector", detector, "--csv").out)))

    found, expected = rows(exported), rows(folder / "camera-3.safetensors")
    assert list(found[0]) == list(expected[0])
    assert set(COLUMNS) < set(found[0])
    for one, other in zip(found, expected, strict=True):
        assert [one[name] for name in ("name", "p_value", "significant", "error")] == [
            other[name] for name in ("name", "p_value", "significant", "error")
        ]
        if not one["error"]:
            z, due = ([float(row[name]) for name in COLUMNS] for row in (one, other))
            assert z == pytest.approx(due, abs=1e-3)


def test_json_has_them_where_there_is_no_torch(exported: Path, folder: Path) -> None:
    arguments = ["discopatch", "score", str(folder / "new"), "--detector", str(exported), "--json"]
    printed = run_without_torch(f"sys.argv = {arguments!r}\nfrom discopatch.cli import main\nmain()\n")
    scored = [each for each in json.loads(printed) if "error" not in each]
    assert len(scored) == 5
    assert all(set(COLUMNS) < set(each) for each in scored)


def test_explain_prints_what_stands_out(exported: Path, folder: Path, run: Run, tmp_path: Path) -> None:
    heard = []
    for number, detector in enumerate((exported, folder / "camera-3.safetensors")):
        heatmap = tmp_path / f"{number}.png"
        out = run("explain", folder / "new" / "noise.png", "--detector", detector, "-o", heatmap).out
        heard.append([word for word in COMPONENT_WORDS.values() if f"  {word}" in out])
        assert heatmap.exists()
    assert heard[0] == heard[1] != []
