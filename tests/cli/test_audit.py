"""discopatch audit, and discopatch fit --exclude."""

import json
from pathlib import Path

import numpy as np
import pytest

from discopatch.images import NamedImage
from discopatch.pretrained import SMALL_WEIGHTS
from tests.cli.conftest import Run, assert_error
from tests.samples import one_camera, save_images, tiny_weights

HOSTILE = "<b>x<b>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """50 images of one camera, one of noise, a copy of it, and a broken file."""
    images = one_camera(50)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    save_images(tmp_path / "photos", [*images, NamedImage(HOSTILE, noise), NamedImage("z-noise", noise)])
    (tmp_path / "photos" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return tmp_path / "photos"


def test_the_list_of_an_audit_is_left_out_of_a_fit(folder: Path, tmp_path: Path, run: Run) -> None:
    weights, page, names = SMALL_WEIGHTS, tmp_path / "audit.html", tmp_path / "exclude.txt"
    done = run("audit", folder, "--weights", weights, "--out", page, "--exclude-list", names, "--device", "cpu")
    assert done.status == 0
    assert "53 images" in done.out
    assert HOSTILE in done.out
    listed = names.read_text().splitlines()
    assert {str(folder / f"{name}.png") for name in (HOSTILE, "z-noise", "broken")} <= set(listed)
    html = page.read_text()
    assert "<b>x" not in html
    assert "&lt;b&gt;x" in html
    assert html.count("data:image/webp;base64,") >= 3
    assert "http" not in html.replace('http-equiv="', "")

    out = tmp_path / "detector.safetensors"
    few = ("--weights", weights, "--reason-images", 0, "--detection-images", 0, "--resolution", 64, "--device", "cpu")
    fitted = run("fit", folder, "-o", out, *few, "--exclude", names)
    assert fitted.status == 0
    assert f"{len(listed)} images left out" in fitted.err
    assert "refused" not in fitted.err
    names.write_text("elsewhere/17.png\n")
    assert_error(run("fit", folder, "-o", out, *few, "--exclude", names, "--force"), "elsewhere/17.png")


def test_an_audit_prints_json(folder: Path, tmp_path: Path, run: Run) -> None:
    tiny_weights().save(tmp_path / "tiny.safetensors")
    found = json.loads(run("audit", folder, "--weights", tmp_path / "tiny.safetensors", "--json").out)
    assert found["images"] == 53
    assert found["exact_copies"] == [[str(folder / f"{HOSTILE}.png"), str(folder / "z-noise.png")]]
    assert [each["name"] for each in found["broken"]] == [str(folder / "broken.png")]


def test_an_audit_that_cannot_run_is_an_error(tmp_path: Path, run: Run) -> None:
    assert_error(run("audit", tmp_path / "nowhere"), "nowhere")
