"""A tiny fitted detector, which scores ten times as many images per second as the shared one, and real images."""

from pathlib import Path

import pytest

from discopatch import Detector
from tests.samples import new_detector, one_camera, save_images, some_images


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "detector.safetensors"
    new_detector(head="components").fit(one_camera(40)).save(path)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file: Path) -> Detector:
    return Detector.load(tiny_file, device="cpu")


@pytest.fixture(scope="session")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight images."""
    return save_images(tmp_path_factory.mktemp("images"), some_images(4))
