"""Files of any content: one error that names the file, or a load that is sound; and little memory."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from discopatch import Detector, Weights
from discopatch.errors import DiscopatchError, WeightsError
from discopatch.model.weights import HEADER, MAX_BYTES, MAX_HEADER_BYTES, write_safetensors
from tests.samples import new_detector, one_camera, tiny_weights, with_header

ROOM = 300 * 2**20  # bytes that a refusal may take


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "camera.safetensors"
    new_detector().fit(one_camera(40)).save(path)
    return path.read_bytes()


@pytest.fixture
def detector(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "camera.safetensors"
    path.write_bytes(content)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    tiny_weights().save(path)
    return path


@pytest.fixture
def little_memory() -> Iterator[None]:
    """More memory than this is an error, whether it is used or not."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.nightly)])
def test_changed_files_are_refused_in_little_memory(detector: Path, content: bytes, count: int) -> None:
    random = np.random.default_rng(0)
    for number in range(count):
        changed = bytearray(content)
        place = int(random.integers(len(content) if number % 2 else 2000))
        changed[place] ^= 1 << int(random.integers(8))
        detector.write_bytes(changed[: int(random.integers(len(content)))] if number % 5 == 0 else changed)
        with pytest.raises(WeightsError, match="camera"):
            Detector.load(detector)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"images": "41"}, "images"),
        ({"patches": 10**9}, "patches"),
        ({"precision": "float8"}, "precision"),
        ({"false_alarm_rate": 0.001}, "calibration"),
        ({"probes": ["blur", "blur"]}, "twice"),
        ({"refusals": {"accepted": -1}}, "refusals"),
        ({"transform": 7}, "transform"),
        ({"architecture": None}, "custom"),
    ],
)
def test_a_field_of_another_type_or_range_is_named(detector: Path, changes: dict[str, Any], named: str) -> None:
    with_header(detector, lambda header: header.update(changes))
    with pytest.raises(WeightsError, match=named):
        Detector.load(detector)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("hidden", [[16384, 16384], [8, 2**40], [8] * 10_000])
def test_an_inflated_architecture_takes_no_memory(detector: Path, weights: Path, hidden: list[int]) -> None:
    for path, load in ((detector, Detector.load), (weights, Weights.load)):
        with_header(path, lambda header: header["architecture"].update(hidden=hidden))
        with pytest.raises(WeightsError, match=path.name):
            load(path)


@pytest.mark.usefixtures("little_memory")
def test_large_files_and_long_headers_are_refused_before_they_are_parsed(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.truncate(10**11)
    with pytest.raises(WeightsError, match="bytes"):
        Weights.load(weights)
    save_file({"a": torch.zeros(1)}, weights, {HEADER: "[" + "[]," * (MAX_HEADER_BYTES // 3) + "[]]"})
    with pytest.raises(WeightsError, match="header"):
        Weights.load(weights)


def test_a_file_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for header in ({"note": "x" * MAX_HEADER_BYTES}, {"note": float("nan")}):
        with pytest.raises(DiscopatchError):
            write_safetensors(path, {"a": torch.zeros(1)}, kind="discriminator", header=header)
    with pytest.raises(WeightsError, match="bytes"):
        write_safetensors(path, {"a": torch.zeros(MAX_BYTES["detector"] // 4 + 1)}, kind="detector", header={})
    assert list(tmp_path.iterdir()) == []
