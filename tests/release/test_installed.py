"""The wheel in an empty environment. It takes minutes, most of them for torch: `make check-dist` runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import discopatch
from discopatch.export import export_detector
from tests.deploy.dockerfile import ROOT
from tests.export.samples import tiny_detector
from tests.samples import one_camera, save_images

WHEELS = os.environ.get("DISCOPATCH_WHEELS")  # the folder of `make dist`
PYTHONS = os.environ.get("DISCOPATCH_PYTHONS", sys.executable).split()
EXTRAS = "demo,export,serve"
# What docs/how-to/edge-box.md installs.
WITHOUT_TORCH = ["numpy", "Pillow", "onnxruntime", "msgspec", "typer", "rich", "jinja2", "packaging"]
INDEX = "https://download.pytorch.org/whl/cpu"  # where the configured one does not have the CPU build of torch


class Installed:
    """A new environment with the wheel alone, and a folder in which its commands are run."""

    def __init__(self, python: str, folder: Path) -> None:
        self.bin, self.folder = folder / "environment" / "bin", folder / "away"
        self.folder.mkdir()
        subprocess.run([python, "-m", "venv", folder / "environment"], check=True, env=clean())

    def install(self, *arguments: str) -> None:
        """With the CPU build of torch where it is needed, from its own index if the configured one has none."""
        install = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["--constraint", str(ROOT / "constraints" / "cpu.txt"), *arguments]
        if subprocess.run(install, cwd=self.folder, env=clean(), check=False, capture_output=True).returncode:
            subprocess.run([*install, "--extra-index-url", INDEX], cwd=self.folder, env=clean(), check=True)

    def run(self, *arguments: str, status: int = 0) -> str:
        """What the command prints."""
        command = [str(self.bin / "discopatch"), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=clean(), capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout


def clean() -> dict[str, str]:
    """The environment without what could lead to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    found: str | None = shutil.which(request.param)
    if found is None:
        pytest.skip(f"no {request.param} here")
    return found


@pytest.fixture
def wheel() -> str:
    if WHEELS is None:
        pytest.skip("takes minutes: make check-dist")
    (found,) = Path(WHEELS).glob("*.whl")
    return str(found)


@pytest.mark.nightly
def test_the_commands_work_from_another_folder(python: str, wheel: str, tmp_path: Path) -> None:
    installed = Installed(python, tmp_path)
    try:
        installed.install(f"{wheel}[{EXTRAS}]")
        assert installed.run("--version").strip() == discopatch.__version__
        assert "report.html" in installed.run("demo", "--out", "demo")
        assert (installed.folder / "demo" / "report.html").stat().st_size > 100_000
        images = one_camera(45, size=256)
        save_images(installed.folder / "normal", images[:40])
        save_images(installed.folder / "incoming", images[40:])
        (installed.folder / "incoming" / "broken.png").write_bytes(b"no image")
        installed.run("fit", "normal", "-o", "camera", "--weights", "natural-small-v2", "--head", "combined")
        by_detector = json.loads(installed.run("score", "incoming", "--detector", "camera", "--json"))
        assert sum(each["error"] is None for each in by_detector) == 5
        installed.run("export", "camera", "--format", "onnx", "-o", "camera-onnx", "--reference", "normal")
        by_export = json.loads(installed.run("score", "incoming", "--detector", "camera-onnx", "--json"))
        for one, other in zip(by_detector, by_export, strict=True):
            assert one["name"] == other["name"]
            assert other.get("score") == (None if one.get("score") is None else pytest.approx(one["score"], abs=0.01))
        assert "--port" in installed.run("serve", "--help")
    finally:
        shutil.rmtree(tmp_path / "environment")  # more than a gigabyte


@pytest.mark.nightly
def test_an_export_runs_without_torch(python: str, wheel: str, tmp_path: Path) -> None:
    installed = Installed(python, tmp_path)
    installed.install(*WITHOUT_TORCH)
    installed.install("--no-deps", wheel)
    images = one_camera(9, size=64)
    export_detector(tiny_detector(), installed.folder / "camera-onnx", reference=images)
    save_images(installed.folder / "incoming", images)
    scored = json.loads(installed.run("score", "incoming", "--detector", "camera-onnx", "--json"))
    assert len(scored) == len(images)
    assert all(each["p_value"] > 0 for each in scored)
    report = json.loads(installed.run("doctor", "--no-test", "--json"))
    assert "not installed" in report["devices"]["torch"]
    assert report["versions"]["discopatch"] == discopatch.__version__
