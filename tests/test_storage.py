"""A detector as one file: it decides the same when it is loaded, or is refused with the remedy."""

import pickle
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import discopatch.model.weights
from discopatch import Detector, Runtime, Weights, load
from discopatch.errors import ExportError, ParameterError, WeightsError
from discopatch.heads import HEADS, PROBES
from discopatch.images import Transform
from discopatch.model import Discriminator
from discopatch.model.weights import FORMATS
from tests.samples import TINY, TOO_SMALL, new_detector, one_camera, tiny_weights, with_header, with_tensors


@pytest.fixture(scope="module")
def fitted() -> Detector:
    return new_detector(reason_images=4).fit([*one_camera(60), TOO_SMALL], workers=1)


@pytest.fixture(scope="module")
def content(fitted: Detector, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "camera.safetensors"
    fitted.save(path)
    return path.read_bytes()


@pytest.fixture
def saved(content: bytes, tmp_path: Path) -> Path:
    """A file that a test may damage."""
    path = tmp_path / "camera.safetensors"
    path.write_bytes(content)
    return path


def assert_same(after: Detector, before: Detector) -> None:
    new = one_camera(4, seed=1)
    assert np.isfinite(before.score(new)).all()
    assert after.predict(new) == before.predict(new)
    assert np.array_equal(after.calibration_scores_, before.calibration_scores_)
    assert after.guarantee_ == before.guarantee_
    assert after.settings() == before.settings()
    assert after.refusals_ == before.refusals_
    assert after.weights_.digest == before.weights_.digest
    one, other = before.explain(new[0]), after.explain(new[0])
    assert np.array_equal(one.anomaly_map, other.anomaly_map)
    assert one.reasons == other.reasons


@pytest.mark.parametrize("head", HEADS)
def test_a_saved_detector_of_any_head_decides_the_same_to_the_bit(head: str, tmp_path: Path) -> None:
    """Whatever memory order the discriminator was in before."""
    torch.manual_seed(0)
    plain = Weights(Discriminator(TINY), Transform(size=64), {"step": 7})
    weights, places = (plain, {}) if head in ("combined", "logit") else (tiny_weights(), {"patches": 4})
    before = new_detector(weights, head=head, sampling="grid", seed=3, **places).fit(one_camera(30), workers=1)
    before.save(tmp_path / "file")
    after = Detector.load(tmp_path / "file", device="cpu")
    assert_same(after, before)
    assert after.weights_.origin == weights.origin


def test_a_loaded_detector_has_the_parameters_that_it_was_fitted_with(saved: Path, fitted: Detector) -> None:
    found = load(saved, device="cpu", batch_size=3)
    assert isinstance(found, Detector)
    assert_same(found, fitted)
    expected = {**fitted.get_params(), "batch_size": 3, "weights": found.weights_}
    assert found.get_params() == expected
    assert found.encoder_.batch_size == 3
    assert found.refusals_.count == 1


def test_a_detector_at_another_rate_keeps_that_rate(fitted: Detector, tmp_path: Path) -> None:
    other = fitted.with_rate(0.3)
    other.save(tmp_path / "file")
    assert_same(Detector.load(tmp_path / "file"), other)


def test_weights_of_ones_own_are_inside(saved: Path) -> None:
    again = Detector.load(saved)
    assert isinstance(again.weights, Weights)
    assert again.weights_.digest == tiny_weights().digest
    assert again.weights_.transform == Transform(size=64)
    assert again.settings()["weights"] == "custom"


def test_weights_are_given_by_their_file_too(fitted: Detector, tmp_path: Path) -> None:
    tiny_weights().save(tmp_path / "own.safetensors")
    given = Detector(**{**fitted.get_params(), "weights": str(tmp_path / "own.safetensors")})
    assert_same(given.fit([*one_camera(60), TOO_SMALL], workers=1), fitted)


def test_released_weights_stay_outside(detector_file: Path) -> None:
    with safe_open(detector_file, framework="pt") as file:
        assert not [name for name in file.keys() if name.startswith("weights/")]  # noqa: SIM118 - it is no dict
    again = Detector.load(detector_file)
    assert again.weights == again.settings()["weights"] == "natural-small-v2"
    assert again.weights_ is Detector.load(detector_file).weights_, "read once"


def test_a_file_holds_ids_of_probes_and_none_of_their_texts(content: bytes) -> None:
    for name, probe in PROBES.items():
        assert f'"{name}"'.replace('"', '\\"').encode() in content
        assert probe.text.encode() not in content


def test_a_detector_loads_without_pickle(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle was asked")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(np, "load", refuse)
    Detector.load(saved)


def test_an_interrupted_save_leaves_the_old_file(
    saved: Path, content: bytes, fitted: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(discopatch.model.weights, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        fitted.save(saved)
    assert saved.read_bytes() == content
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_file_rewritten_unchanged_still_loads(saved: Path, fitted: Detector) -> None:
    """Or the refusals below would prove nothing."""
    assert_same(Detector.load(with_header(saved, lambda header: None)), fitted)


@pytest.mark.parametrize(
    "changes",
    [
        *({"format": 1}, {"format": FORMATS["detector"] + 1}, {"kind": "discriminator"}),
        *({"weights_digest": "0" * 16}, {"transform_digest": "0" * 16}),
        *({"weights": "natural-small-v2"}, {"weights": "natural-v0"}, {"head": "tail"}, {"head": "statistics"}),
        *({"probes": [*PROBES, "vignette"]}, {"aspects": [0, 1]}, {"reasons": ["vignette"]}),
        *({"reasons": ["blur"]}, {"reasons": None}, {"false_alarm_rate": 0.001}, {"seed": -1}),
    ],
)
def test_a_file_that_does_not_fit_is_refused(saved: Path, changes: dict[str, Any]) -> None:
    with_header(saved, lambda header: header.update(changes))
    with pytest.raises(WeightsError, match=saved.name):
        Detector.load(saved)


def test_a_file_without_a_part_of_its_head_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for missing in ("head/filters", "places/level", "reasons/image.whitening"):
        saved.write_bytes(content)
        with pytest.raises(WeightsError, match=missing.rpartition("/")[2]):
            Detector.load(with_tensors(saved, methodcaller("pop", missing)))


def test_a_weight_that_was_changed_is_noticed(saved: Path) -> None:
    with_tensors(saved, lambda tensors: tensors["weights/head.bias"].add_(1e-6))
    with pytest.raises(WeightsError, match=tiny_weights().digest):
        Detector.load(saved)


def test_the_weights_alone_and_no_file_are_no_detector(tmp_path: Path) -> None:
    tiny_weights().save(tmp_path / "file")
    for path in (tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(WeightsError, match=path.name):
            Detector.load(path)


# Whatever there is to load


def test_load_takes_a_folder_for_an_export_which_runs_on_a_cpu(tmp_path: Path, export_folder: Path) -> None:
    with pytest.raises(ExportError):
        load(tmp_path)
    with pytest.raises(ParameterError, match="device"):
        load(str(export_folder), device="cuda")
    assert isinstance(load(str(export_folder), device="cpu"), Runtime)
