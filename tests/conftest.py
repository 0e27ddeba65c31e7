"""Fixtures of all tests: one small fitted detector and its export, made once and shared by all test processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import discopatch
from discopatch import Detector
from discopatch.export import export_detector
from discopatch.pretrained import SMALL_WEIGHTS
from discopatch.utils import locked
from tests.postgres import Server, server
from tests.samples import one_camera


@pytest.fixture(scope="session", autouse=True)
def daft_by_itself() -> Iterator[None]:
    """Keeps Daft from computing on a cluster that Ray's tests started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAFT_RUNNER", "native")
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server that runs before and after each test."""
    with server() as started:
        yield started


@pytest.fixture(scope="session")
def detector_file(shared_folder: Path) -> Path:
    """The file of a detector with released weights, fitted on images of one camera."""
    path = shared_folder / "shared.safetensors"
    with locked(shared_folder / "shared.lock"):
        if not path.exists():
            fitted = Detector(
                SMALL_WEIGHTS, false_alarm_rate=0.1, reason_images=4, detection_images=2, resolution=128, device="cpu"
            )
            fitted.fit(one_camera(30, size=256)).save(path)
    return path


@pytest.fixture(scope="session")
def detector(detector_file: Path) -> Detector:
    return Detector.load(detector_file, device="cpu")


@pytest.fixture(scope="session")
def export_folder(shared_folder: Path, detector: Detector) -> Path:
    """The ONNX export of the detector."""
    folder = shared_folder / "shared-export"
    with locked(shared_folder / "shared-export.lock"):
        if not folder.exists():
            export_detector(detector, folder)
    return folder


@pytest.fixture(scope="session")
def runtime(export_folder: Path) -> discopatch.Runtime:
    """The export, loaded."""
    return discopatch.Runtime.load(export_folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs files with slow tests first, so that no process is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("nightly")}
    items.sort(key=lambda item: item.path not in slow)
