"""Files from anyone: one error that names the file and the remedy, or a load that is sound; and little memory."""

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz_files
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from discopatch import Detector, Weights
from discopatch.errors import DiscopatchError, WeightsError
from discopatch.model.weights import HEADER, MAX_BYTES, MAX_HEADER_BYTES, write_safetensors
from discopatch.training import TrainingConfig, get_preset
from discopatch.training.checkpoint import RunFolder
from tests.samples import one_camera, tiny_weights, with_header, with_tensors

QUICK = 150


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "camera.safetensors"
    fuzz_files.tiny_detector().save(path)
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
    """300 MB beyond what the process has: more is an error, whether it is used or not."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (fuzz_files.memory("VmSize") + fuzz_files.MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


# Many random changes


@pytest.mark.parametrize("kind", ["detector", "weights", "checkpoint"])
def test_changed_files_are_refused_with_one_error_or_load_and_are_sound(kind: str) -> None:
    found = fuzz_files.fuzz(kind, QUICK, seed=1)
    assert found.other == []
    assert sum(found.counts.values()) == QUICK
    assert found.most_bytes < fuzz_files.MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("kind", fuzz_files.KINDS)
def test_changed_files_are_refused_or_sound_in_little_memory(kind: str) -> None:
    found = fuzz_files.in_process(kind, 100, seed=2)
    assert found["other"] == []
    assert sum(found["counts"].values()) == 100
    assert found["most_bytes"] < fuzz_files.MOST_BYTES


# A detector


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"images": "41"}, "header.images"),
        ({"images": True}, "header.images"),
        ({"seed": -1}, "header.seed"),
        ({"patches": 10**9}, "header.patches"),
        ({"patches": "many"}, "header.patches"),
        ({"precision": "float8"}, "header.precision"),
        ({"false_alarm_rate": 0}, "header.false_alarm_rate"),
        ({"false_alarm_rate": "0.1"}, "header.false_alarm_rate"),
        ({"false_alarm_rate": 0.001}, "calibration"),
        ({"probes": "blur"}, "header.probes"),
        ({"probes": ["blur", "blur"]}, "twice"),
        ({"probes": []}, "filters"),
        ({"refusals": {"accepted": 1}}, "refusals lacks"),
        ({"refusals": {"accepted": 1, "refused": {"empty": 1}, "examples": {}}}, "refusals"),
        ({"transform": 7}, "transform"),
        ({"cautions": "beware"}, "header.cautions"),
        ({"groups": 3}, "header.groups"),
        ({"architecture": None}, "custom"),
    ],
)
def test_a_field_of_another_type_or_range_is_named(detector: Path, changes: dict[str, Any], named: str) -> None:
    with_header(detector, lambda header: header.update(changes))
    with pytest.raises(WeightsError, match=rf"camera\.safetensors.*{named}"):
        Detector.load(detector)


@pytest.mark.parametrize("missing", ["head", "images", "weights_digest", "refusals", "discopatch"])
def test_a_missing_field_is_named(detector: Path, missing: str) -> None:
    with_header(detector, lambda header: header.pop(missing))
    with pytest.raises(WeightsError, match=f"lacks {missing}"):
        Detector.load(detector)


def test_fields_that_are_not_known_are_ignored_and_some_may_be_missing(detector: Path) -> None:
    before = Detector.load(detector, device="cpu").score(one_camera(2, seed=1))

    def change(header: dict[str, Any]) -> None:
        for name in ("groups", "n_groups", "cautions"):
            header.pop(name, None)
        header["future"] = {"a": [1]}

    after = Detector.load(with_header(detector, change), device="cpu").score(one_camera(2, seed=1))
    assert np.array_equal(before, after)


CALIBRATION, SPREADS = "calibration/scores", "head/spreads"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (CALIBRATION, lambda values: values.flip(0).contiguous()),
        (CALIBRATION, lambda values: values[:3].clone()),
        (CALIBRATION, lambda values: values[None].clone()),
        (CALIBRATION, lambda values: torch.full_like(values, torch.nan)),
        (SPREADS, torch.zeros_like),
        (SPREADS, lambda values: -values),
        (SPREADS, lambda values: values[:-1].clone()),
        (SPREADS, lambda values: values.half()),
        ("head/counts", torch.zeros_like),
        ("head/early.axes", lambda values: values[:, :-1].contiguous()),
        ("head/early.axes", lambda values: torch.ones(600, values.shape[1])),
        ("head/early.rest", lambda values: values[None].clone()),
        ("head/memory.vectors", lambda values: values[:, :-1].contiguous()),
        ("regions/maximum", torch.zeros_like),
        ("regions/statistics.gaussian.axes", lambda values: values[:, :-1].contiguous()),
        ("regions/threshold", lambda values: values * torch.inf),
        ("weights/head.weight", lambda values: values[:, :-1].contiguous()),
        ("weights/head.weight", lambda values: values * 1e9),
    ],
)
def test_a_tensor_of_another_shape_type_or_range_is_refused(
    detector: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with_tensors(detector, lambda tensors: tensors.update({name: change(tensors[name])}))
    with pytest.raises(WeightsError, match=r"camera\.safetensors.*fit again"):
        Detector.load(detector)


def test_a_tensor_that_belongs_to_nothing_is_refused(detector: Path) -> None:
    with_tensors(detector, lambda tensors: tensors.update(extra=torch.zeros(3)))
    with pytest.raises(WeightsError, match="extra"):
        Detector.load(detector)


def test_every_bit_of_a_file_counts(detector: Path, content: bytes) -> None:
    for place in np.random.default_rng(0).integers(0, len(content), 40):
        changed = bytearray(content)
        changed[place] ^= 1
        detector.write_bytes(changed)
        with pytest.raises(WeightsError):
            Detector.load(detector)


# Sizes before memory


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("hidden", [[8, 16384], [16384, 16384], [16384] * 5, [8, 2**40], [8] * 10_000])
def test_an_inflated_architecture_takes_no_memory(detector: Path, weights: Path, hidden: list[int]) -> None:
    for path, load in ((detector, Detector.load), (weights, Weights.load)):
        with_header(path, lambda header: header["architecture"].update(hidden=hidden))
        with pytest.raises(WeightsError, match=path.name):
            load(path)


@pytest.mark.usefixtures("little_memory")
def test_the_config_of_a_run_cannot_ask_for_larger_networks_than_its_checkpoint_has(tmp_path: Path) -> None:
    fuzz_files.make_run(tmp_path)
    run = RunFolder(tmp_path / "run")
    description = json.loads(run.description.read_text())
    description["config"]["architecture"]["hidden"] = [16384, 16384]
    run.description.write_text(json.dumps(description))
    with pytest.raises(DiscopatchError, match="start a new run"):
        fuzz_files.load_run(tmp_path)


@pytest.mark.usefixtures("little_memory")
def test_a_file_of_many_empty_bytes_is_refused_by_its_size(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.truncate(10**11)
    with pytest.raises(WeightsError, match="100,000,000,000 bytes"):
        Weights.load(weights)


@pytest.mark.usefixtures("little_memory")
def test_a_long_header_is_refused_before_it_is_parsed(weights: Path) -> None:
    save_file({"a": torch.zeros(1)}, weights, {HEADER: "[" + "[]," * (MAX_HEADER_BYTES // 3) + "[]]"})
    with pytest.raises(WeightsError, match="header"):
        Weights.load(weights)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for header in ({"note": "x" * MAX_HEADER_BYTES}, {"note": float("nan")}):
        with pytest.raises(DiscopatchError):
            write_safetensors(path, {"a": torch.zeros(1)}, kind="discriminator", header=header)
    tensor = torch.zeros(MAX_BYTES["detector"] // 4 + 1)
    with pytest.raises(WeightsError, match="bytes"):
        write_safetensors(path, {"a": tensor}, kind="detector", header={})
    assert list(tmp_path.iterdir()) == []


def test_a_config_names_the_field_that_does_not_fit() -> None:
    config = get_preset("tiny").to_dict()
    for change in ({"images": True}, {"epochs": "3"}, {"beta1": 1.0}, {"seed": -1}, {"steps": 1.5}, {"vae": 1}):
        with pytest.raises(DiscopatchError, match=next(iter(change))):
            TrainingConfig.from_dict({**config, **change})
