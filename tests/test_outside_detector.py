"""Detectors with networks from outside: fitted with them, saved without them, loaded where they are found."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from discopatch import Detector, fitting, load
from discopatch.encoders import DiscriminatorEncoder, JoinedEncoder, NetworkEncoder
from discopatch.errors import DiscopatchError, ExportError, ParameterError, WeightsError
from discopatch.heads import DEFAULT_HEAD
from discopatch.images import Transform
from discopatch.pretrained import DEFAULT_WEIGHTS
from tests.encoders.outside_samples import SmallNetwork, change_json, save_checkpoint
from tests.samples import made_up_features, one_camera, tiny_weights, with_header

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    SmallNetwork().save(folder / "small.onnx")
    return folder


@pytest.fixture(scope="module")
def name(folder: Path) -> str:
    return f"onnx={folder / 'small.onnx'}:layer1,layer2,pooled"


@pytest.fixture(scope="module")
def fitted(name: str) -> Detector:
    """A discriminator and a network beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "N_PROBED", 2)
        return Detector([tiny_weights(), name], false_alarm_rate=0.1, device="cpu").fit(one_camera(30), workers=1)


@pytest.fixture
def saved(fitted: Detector, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "camera")
    return tmp_path / "camera"


def test_a_network_beside_a_discriminator_adds_its_statistics(fitted: Detector) -> None:
    assert isinstance(fitted.encoder_, JoinedEncoder)
    ours, other = fitted.encoder_.encoders
    assert isinstance(ours, DiscriminatorEncoder)
    assert isinstance(other, NetworkEncoder)
    assert other.transform == ours.transform == Transform(size=64)
    new = one_camera(3, seed=1)
    features = fitted.extract_features(new)
    pixels = np.stack([image.pixels for image in new])
    assert np.array_equal(features.statistics[:, -20:], other.extract_pixels(pixels).statistics)
    assert np.array_equal(features.logits, ours.extract_pixels(pixels).logits)
    assert np.array_equal(fitted.predict_features(features).scores, fitted.score(new))


def test_a_loaded_detector_decides_the_same_and_finds_the_network_where_it_was(fitted: Detector, saved: Path) -> None:
    found, new = Detector.load(saved, device="cpu"), one_camera(4, seed=1)
    assert found.predict(new) == fitted.predict(new)
    assert found.settings() == fitted.settings()
    assert np.array_equal(found.explain(new[0]).anomaly_map, fitted.explain(new[0]).anomaly_map)
    assert found.with_rate(0.2).score(new).tolist() == fitted.score(new).tolist()


def test_settings_name_networks_by_place_and_digest(fitted: Detector, name: str) -> None:
    (network,) = fitted.state_.networks
    assert fitted.settings()["networks"] == {name: network.digest}
    assert fitted.settings()["weights"] == "custom"


def test_the_file_holds_no_network_from_outside(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        parts = {key.partition("/")[0] for key in file.keys()}  # noqa: SIM118 - it is no dict
    assert parts == {"head", "calibration", "regions", "reasons", "weights"}


def moved(saved: Path, *, seed: int = 0, **description: Any) -> tuple[Path, Path]:
    """The detector with a place that is no longer there, and the network elsewhere."""
    gone = saved.parent / "gone.onnx"
    with_header(saved, lambda header: header.update(networks={f"onnx={gone}:layer1,layer2,pooled": only(header)}))
    (saved.parent / "new").mkdir()
    file = SmallNetwork(seed=seed).save(saved.parent / "new" / "other-name.onnx")
    change_json(file.with_suffix(".json"), **description)
    return saved, file


def only(header: dict[str, Any]) -> str:
    (digest,) = header["networks"].values()
    return str(digest)


def test_a_network_that_is_gone_is_asked_for(saved: Path, fitted: Detector) -> None:
    path, file = moved(saved)
    with pytest.raises(WeightsError, match=r"weights='onnx=FILE'.*--weights onnx=FILE"):
        load(path)
    for given in (f"onnx={file}", [f"onnx={file}:layer1,layer2,pooled"]):
        found = load(path, weights=given, device="cpu")
        assert np.array_equal(found.score(one_camera(3, seed=1)), fitted.score(one_camera(3, seed=1)))
        assert isinstance(found, Detector)
        assert list(found.settings()["networks"]) == [f"onnx={file}:layer1,layer2,pooled"]


@pytest.mark.parametrize("change", [{"seed": 1}, {"image_mean": [0, 0, 0]}])
def test_another_network_is_not_taken_in_its_place(change: dict[str, Any], saved: Path) -> None:
    path, file = moved(saved, **change)
    with pytest.raises(WeightsError, match="digest"):
        load(path, weights=f"onnx={file}")


def test_two_networks_of_a_kind_are_told_apart_by_their_digests(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    files = [SmallNetwork(seed=seed).save(tmp_path / f"{seed}.onnx") for seed in (0, 1)]
    found = Detector([f"onnx={file}:layer1" for file in files], false_alarm_rate=0.1).fit_features(made_up_features(40))
    found.save(tmp_path / "camera")
    moved = [shutil.move(file, tmp_path / "new") for file in files]
    for file in files:
        shutil.move(file.with_suffix(".json"), tmp_path / "new")
    again = Detector.load(tmp_path / "camera", weights=[f"onnx={file}" for file in reversed(moved)])
    assert list(again.settings()["networks"].values()) == list(found.settings()["networks"].values())
    with pytest.raises(WeightsError, match="digest"):
        Detector.load(tmp_path / "camera", weights=f"onnx={moved[0]}")


def test_a_network_that_has_changed_where_it_was_is_not_taken(tmp_path: Path) -> None:
    file = SmallNetwork().save(tmp_path / "small.onnx")
    found = Detector(f"onnx={file}:layer1", false_alarm_rate=0.1).fit_features(made_up_features(40))
    found.save(tmp_path / "camera")
    SmallNetwork(seed=1).save(file)
    with pytest.raises(WeightsError, match="digest"):
        load(tmp_path / "camera")


def test_a_place_for_what_a_detector_has_not_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="dinov2"):
        load(saved, weights=f"dinov2={tmp_path}")
    Detector("natural-small-v1", false_alarm_rate=0.1).fit_features(made_up_features(40)).save(tmp_path / "plain")
    with pytest.raises(WeightsError, match="no network from outside"):
        load(tmp_path / "plain", weights=f"dinov2={tmp_path}")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(networks={}),
        lambda header: header.update(networks=dict.fromkeys(header["networks"], "0" * 16)),
        lambda header: header.update(networks={"nothing=/tmp": only(header)}),
        lambda header: header.update(networks={"onnx": only(header)}),
        lambda header: header.update(networks={"onnx=\0": only(header)}),
        lambda header: header.update(networks=dict.fromkeys((f"dinov2=/{number}" for number in range(9)), "0" * 16)),
        lambda header: header.update(networks={"x" * 10_000: only(header)}),
        lambda header: header.update(networks=list(header["networks"])),
        lambda header: header.update(weights=None),
        lambda header: header.update(weights=None, networks={}),
    ],
)
def test_a_file_that_was_changed_is_refused(change: Callable[[dict[str, Any]], object], saved: Path) -> None:
    with_header(saved, change)
    with pytest.raises(WeightsError, match="camera"):
        load(saved)


def test_weights_may_be_a_list_of_one() -> None:
    one, other = (
        Detector(weights, false_alarm_rate=0.1).fit_features(made_up_features(40))
        for weights in ("natural-small-v1", ["natural-small-v1"])
    )
    assert one.settings() == other.settings()


def test_a_detector_without_a_discriminator_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    before = Detector(name, false_alarm_rate=0.1, device="cpu")
    features = before.extract_features(one_camera(40))
    assert features.statistics.shape == (40, 20)
    before.fit_features(features).save(tmp_path / "camera")
    after = load(tmp_path / "camera")
    assert isinstance(after, Detector)
    assert after.settings() == before.settings()
    assert after.settings()["weights"] is None
    assert after.weights == name
    assert after.predict_features(features) == before.predict_features(features)
    with pytest.raises(ParameterError, match=DEFAULT_WEIGHTS):
        _ = after.weights_


@pytest.mark.slow
def test_a_detector_of_a_transformer_alone_fits_scores_and_explains(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = save_checkpoint(tmp_path / "dinov2", "dinov2")
    found = Detector(f"dinov2={folder}", false_alarm_rate=0.1, device="cpu").fit(one_camera(30, size=256))
    normal = one_camera(10, size=256, seed=1)
    noise = list(np.random.default_rng(0).integers(0, 256, (10, 256, 256, 3)).astype(np.uint8))  # all tokens alike
    assert np.median(found.score(noise)) > np.quantile(found.score(normal), 0.9)
    found.save(tmp_path / "camera")
    shutil.move(folder, tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match="--weights dinov2=FOLDER"):
        load(tmp_path / "camera")
    again = load(tmp_path / "camera", weights=f"dinov2={tmp_path / 'elsewhere'}", device="cpu")
    assert isinstance(again, Detector)
    assert again.predict(normal) == found.predict(normal)
    assert again.explain(noise[0]).anomaly_map.shape == (64, 64)


@pytest.mark.parametrize("head", ["logit", "sigmoid"])
def test_a_head_of_logits_needs_a_discriminator(head: str, name: str) -> None:
    with pytest.raises(ParameterError, match=f"head='{DEFAULT_HEAD}'"):
        Detector(name, head=head).fit(one_camera(30))


@pytest.mark.parametrize(
    "weights", [[], ["paper-v1", "natural-small-v1"], ["{name}", "{name}"], ["paper-v1", "nothing=/tmp"]]
)
def test_weights_that_do_not_go_together_are_refused(weights: list[str], name: str) -> None:
    with pytest.raises(DiscopatchError, match=r"leave one out|one network|paper-v1"):
        Detector([each.format(name=name) for each in weights]).fit(one_camera(30))


def test_adaptation_needs_a_discriminator(name: str) -> None:
    with pytest.raises(ParameterError, match="discriminator"):
        Detector(name).fit(one_camera(30), adapt_steps=1)


def test_such_a_detector_is_not_exported_yet(fitted: Detector, tmp_path: Path) -> None:
    for int8 in (False, True):
        with pytest.raises(ExportError, match="fit again"):
            fitted.export(tmp_path / "export", int8=int8)
    assert not (tmp_path / "export").exists()
