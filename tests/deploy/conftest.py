"""Exports that several tests look at; each takes seconds to make."""

from pathlib import Path

import pytest

from discopatch.deploy.export import Exported, export
from tests.deploy.samples import tiny_detector
from tests.scoring.samples import of_one_camera


@pytest.fixture(scope="session")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "onnx"
    export(tiny_detector(), folder, format="onnx")
    return folder


@pytest.fixture(scope="session")
def openvino_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "openvino"
    export(tiny_detector(), folder, format="openvino", reference=of_one_camera(8, seed=5))
    return folder


@pytest.fixture(scope="session")
def torch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "torch"
    export(tiny_detector(), folder, format="torch-export", reference=of_one_camera(8, seed=5))
    return folder


@pytest.fixture(scope="session")
def int8_export(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    folder = tmp_path_factory.mktemp("exports") / "int8"
    return folder, export(tiny_detector(), folder, int8=True, reference=of_one_camera(96, seed=5))
