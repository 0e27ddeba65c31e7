"""Detectors with networks from outside: fitted with them, saved without them, loaded where they are found."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from discopatch import Detector, fitting, load
from discopatch.encoders import load_networks
from discopatch.errors import DiscopatchError, ExportError, ParameterError, WeightsError
from discopatch.export import export_detector
from tests.encoders.outside_samples import SmallNetwork, save_checkpoint
from tests.samples import one_camera, tiny_weights, with_header

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::discopatch.errors.NormalImagesWarning")  # untrained features

NEW = one_camera(4, seed=1)


def new_detector(weights: Any, **options: Any) -> Detector:
    fast = {"false_alarm_rate": 0.1, "reason_images": 1, "detection_images": 0, "device": "cpu"}
    return Detector(weights, **{**fast, **options})


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"resnet={save_checkpoint(tmp_path_factory.mktemp('networks') / 'small', 'resnet')}"


@pytest.fixture(scope="module")
def fitted(name: str) -> Detector:
    """A discriminator and a network beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "N_PROBED", 2)
        return new_detector([tiny_weights(), name]).fit(one_camera(30), workers=1)


@pytest.fixture
def saved(fitted: Detector, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "camera")
    return tmp_path / "camera"


def test_a_loaded_detector_decides_the_same_without_storing_the_network(
    fitted: Detector, saved: Path, name: str
) -> None:
    found = load(saved, device="cpu")
    assert isinstance(found, Detector)
    assert found.predict(NEW) == fitted.predict(NEW)
    assert np.array_equal(found.explain(NEW[0]).anomaly_map, fitted.explain(NEW[0]).anomaly_map)
    (network,) = load_networks(name).outside
    assert found.settings()["networks"] == fitted.settings()["networks"] == {name: network.digest}
    with safe_open(saved, framework="pt") as file:
        parts = {key.partition("/")[0] for key in file.keys()}  # noqa: SIM118 - it is no dict
    assert parts == {"head", "calibration", "places", "reasons", "weights"}


def only(header: dict[str, Any]) -> str:
    (digest,) = header["networks"].values()
    return str(digest)


def test_a_network_that_has_moved_is_found_by_its_digest(saved: Path, fitted: Detector) -> None:
    with_header(saved, lambda header: header.update(networks={f"resnet={saved.parent / 'gone'}": only(header)}))
    right, wrong = (f"resnet={save_checkpoint(saved.parent / str(seed), 'resnet', seed=seed)}" for seed in (0, 1))
    for given in ((), wrong, "dinov2=folder"):
        with pytest.raises(WeightsError):
            load(saved, networks=given)
    for networks in (right, [wrong, right], load_networks(right).outside):
        found = load(saved, networks=networks, device="cpu")  # type: ignore[arg-type]
        assert np.array_equal(found.score(NEW), fitted.score(NEW))
        assert list(found.settings()["networks"]) == [right]


def test_a_network_object_of_the_user_is_an_encoder(tmp_path: Path) -> None:
    network = SmallNetwork()
    found = new_detector(network, head="statistics").fit(one_camera(30), workers=1)
    assert found.settings()["networks"] == {"small": network.digest}
    found.save(tmp_path / "camera")
    again = load(tmp_path / "camera", networks=[network], device="cpu")  # type: ignore[list-item]
    assert np.array_equal(again.score(NEW), found.score(NEW))
    with pytest.raises(DiscopatchError):
        load(tmp_path / "camera")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(networks={}),
        lambda header: header.update(networks=dict.fromkeys(header["networks"], "0" * 16)),
        lambda header: header.update(networks={"nothing=/tmp": only(header)}),
        lambda header: header.update(networks={"vit=\0": only(header)}),
        lambda header: header.update(networks={"x" * 10_000: only(header)}),
        lambda header: header.update(networks=list(header["networks"])),
        lambda header: header.update(weights=None),
    ],
)
def test_a_changed_header_is_refused(change: Callable[[dict[str, Any]], object], saved: Path) -> None:
    with_header(saved, change)
    with pytest.raises(WeightsError, match="camera"):
        load(saved)


@pytest.mark.slow
def test_a_detector_of_a_transformer_alone_fits_scores_explains_and_loads(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = save_checkpoint(tmp_path / "dinov2", "dinov2")
    found = new_detector(f"dinov2={folder}").fit(one_camera(30, size=256))
    normal = one_camera(10, size=256, seed=1)
    noise = list(np.random.default_rng(0).integers(0, 256, (10, 256, 256, 3)).astype(np.uint8))
    assert np.median(found.score(noise)) > np.quantile(found.score(normal), 0.9)
    found.save(tmp_path / "camera")
    shutil.move(folder, tmp_path / "elsewhere")
    again = load(tmp_path / "camera", networks=f"dinov2={tmp_path / 'elsewhere'}", device="cpu")
    assert isinstance(again, Detector)
    assert again.predict(normal) == found.predict(normal)
    assert again.explain(noise[0]).anomaly_map.shape == (256, 256)
    with pytest.raises(ParameterError):
        _ = again.weights_


def test_networks_that_do_not_go_together_are_refused(name: str, fitted: Detector, tmp_path: Path) -> None:
    for weights in ([], ["paper-v1", "natural-small-v2"], [name, name], ["paper-v1", "nothing=/tmp"]):
        with pytest.raises(DiscopatchError):
            new_detector(weights).fit(one_camera(30))
    with pytest.raises(ParameterError, match="head"):
        new_detector(name, head="logit").fit(one_camera(30))
    with pytest.raises(ParameterError, match="precision"):
        new_detector(name, precision="bfloat16").fit(one_camera(30))
    with pytest.raises(ExportError):
        export_detector(fitted, tmp_path / "export")
    assert not (tmp_path / "export").exists()
