"""A small fitted detector in a file, and real images as files."""

from pathlib import Path

import pytest

from discopatch import Detector
from tests.samples import new_detector, one_camera, save_images, some_images


@pytest.fixture(scope="session")
def detector_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "detector.safetensors"
    new_detector(head="components").fit(one_camera(40)).save(path)
    return path


@pytest.fixture(scope="session")
def detector(detector_path: Path) -> Detector:
    return Detector.load(detector_path, device="cpu")


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight images."""
    return save_images(tmp_path_factory.mktemp("images"), some_images(4))
