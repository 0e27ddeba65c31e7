"""Exports of the tiny detector that several tests read."""

from pathlib import Path

import pytest

from discopatch.export import Exported, export_detector
from tests.export.samples import tiny_detector
from tests.samples import one_camera


@pytest.fixture(scope="session")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "onnx"
    export_detector(tiny_detector(), folder)
    return folder


@pytest.fixture(scope="session")
def openvino_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "openvino"
    export_detector(tiny_detector(), folder, format="openvino", reference=one_camera(8, seed=5))
    return folder


@pytest.fixture(scope="session")
def int8_export(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """An export in 8 bits that is calibrated anew, on 39 images."""
    folder, new = tmp_path_factory.mktemp("exports") / "int8", one_camera(87, seed=5)
    return folder, export_detector(tiny_detector(), folder, int8=True, reference=new[:48], calibration=new[48:])
