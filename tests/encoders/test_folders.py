"""Folders of `transformers` as encoders: the features are those of the model's own hidden states."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from discopatch.encoders import Kind, NetworkEncoder, OutsideNetwork, load_networks, local_features
from discopatch.errors import DiscopatchError, WeightsError
from discopatch.images import Transform
from tests.encoders.outside_samples import CONFIGS, DEVIATION, MEAN, SIDE, change_json, make_model, save_checkpoint
from tests.samples import one_camera, reference_statistics

pytest.importorskip("transformers")

ALL: tuple[Kind, ...] = ("statistics", "pooled", "places")
MEASURED = {  # which of the model's hidden states, by hand
    "dinov2": (1, 2, 3),
    "dinov2_with_registers": (1, 2, 3),
    "vit": (1, 2, 3),
    "resnet": (1, 2, 3),
    "convnext": (1, 2, 3),
    "mobilenet_v2": (1, 4, 11),
    "swin": (0, 1, 2),
}
PREFIX = {"dinov2": 1, "dinov2_with_registers": 5, "vit": 1}  # tokens that stand for no place


def pixels(count: int = 3, size: int = SIDE) -> NDArray[np.uint8]:
    return np.stack([image.pixels for image in one_camera(count, size=size)])


def load(folder: Path, kind: str) -> OutsideNetwork:
    return load_networks(f"{kind}={folder}").outside[0]


def hidden_states(kind: str, images: NDArray[np.uint8]) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """All hidden states and the last one as maps (B, C, H, W), from the model itself."""
    x = (images / 255 - np.array(MEAN)) / np.array(DEVIATION)
    with torch.inference_mode():
        output = make_model(kind)(
            pixel_values=torch.from_numpy(x).float().permute(0, 3, 1, 2), output_hidden_states=True
        )

    def as_map(state: torch.Tensor) -> NDArray[Any]:
        if state.ndim == 4:
            return state.numpy()
        places = state.numpy()[:, PREFIX.get(kind, 0) :].transpose(0, 2, 1)
        side = round(places.shape[2] ** 0.5)
        return places.reshape(*places.shape[:2], side, side)

    return [as_map(state) for state in output.hidden_states], as_map(output.last_hidden_state)


@pytest.mark.parametrize(
    "kind",
    ["vit", "resnet", *(pytest.param(kind, marks=pytest.mark.slow) for kind in sorted({*CONFIGS} - {"vit", "resnet"}))],
)
def test_features_are_those_of_the_models_own_hidden_states(kind: str, tmp_path: Path) -> None:
    images = pixels(size=256)
    network = load(save_checkpoint(tmp_path, kind), kind)
    encoder = NetworkEncoder(network, kinds=ALL)
    maps = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    small = F.interpolate(maps, (SIDE, SIDE), mode="bilinear", antialias=True).permute(0, 2, 3, 1).numpy()
    found, (states, last) = encoder.extract_pixels(images), hidden_states(kind, small)
    measured = [states[number] for number in MEASURED[kind]]
    np.testing.assert_allclose(found.statistics, reference_statistics(measured), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.pooled, last.mean((2, 3)), rtol=1e-3, atol=1e-4)
    assert found.logits.shape == (3, 0)
    assert encoder.layer_sizes == tuple(2 * state.shape[1] for state in measured)
    assert encoder.place_sizes == tuple(state.shape[1] for state in measured)
    expected = local_features([torch.from_numpy(state) for state in measured])
    np.testing.assert_allclose(found.places, expected.numpy(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_neighbours_and_batches_do_not_change_an_images_features(kind: str, tmp_path: Path) -> None:
    network, images = load(save_checkpoint(tmp_path, kind), kind), pixels(5, 80)
    encoders = [NetworkEncoder(network, transform=Transform(size=80), batch_size=size, kinds=ALL) for size in (1, 4)]
    together = [each.extract_pixels(images) for each in encoders]
    alone = encoders[1].extract_pixels(images[3:4])
    for one, other, third in zip(*together, alone, strict=True):
        assert np.array_equal(one, other)
        assert np.array_equal(one[3:4], third)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit", "mobilenet_v2"])
def test_a_classifiers_checkpoint_serves_without_its_classifier(kind: str, tmp_path: Path) -> None:
    whole = save_checkpoint(tmp_path / "classifier", kind, classifier=True)
    network = load(whole, kind)
    inner = make_model(kind, classifier=True).base_model
    inner.save_pretrained(tmp_path / "inner")
    shutil.copy(whole / "preprocessor_config.json", tmp_path / "inner")
    encoders = [
        NetworkEncoder(each, transform=Transform(size=SIDE)) for each in (network, load(tmp_path / "inner", kind))
    ]
    one, other = (each.extract_pixels(pixels()) for each in encoders)
    assert np.array_equal(one.statistics, other.statistics)


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    folders = [
        save_checkpoint(tmp_path / "one", "vit"),
        save_checkpoint(tmp_path / "many", "vit", max_shard_size="20KB"),
    ]
    assert len(list(folders[1].glob("*.safetensors"))) > 1
    one, many = (NetworkEncoder(load(each, "vit"), transform=Transform(size=SIDE)) for each in folders)
    assert np.array_equal(one.extract_pixels(pixels()).statistics, many.extract_pixels(pixels()).statistics)


def test_the_digest_stands_for_weights_config_and_preprocessing(tmp_path: Path) -> None:
    def digest(name: str, *, seed: int = 0, deviation: float = 0.2) -> str:
        folder = save_checkpoint(tmp_path / name, "vit", seed=seed)
        change_json(folder / "preprocessor_config.json", image_std=[deviation] * 3)
        return load(folder, "vit").digest

    first = digest("first")
    assert digest("again") == first
    assert len({first, digest("seed", seed=1), digest("deviation", deviation=0.3)}) == 3


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["layernorm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def break_numbers(folder: Path) -> None:
    tensors = {name: value * float("nan") for name, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def name_files_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    content = {"metadata": {}, "weight_map": {"layernorm.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def config(**changes: Any) -> Any:
    return lambda folder: change_json(folder / "config.json", **changes)


def preprocessor(**changes: Any) -> Any:
    return lambda folder: change_json(folder / "preprocessor_config.json", **changes)


@pytest.mark.parametrize(
    "damage",
    [
        drop_weights,
        drop_tensor,
        break_numbers,
        name_files_elsewhere,
        config(model_type="resnet"),
        config(model_type="vit_mae"),
        config(auto_map={"AutoModel": "modeling.Own"}),
        config(quantization_config={"quant_method": "bitsandbytes"}),
        config(hidden_size="many"),
        config(image_size=32),
        preprocessor(size=20_000),
        preprocessor(size={}),
        preprocessor(image_std=[0, 0, 0]),
        preprocessor(image_mean=[0.5]),
        preprocessor(image_mean=None),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "preprocessor_config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_text("[]"),
        lambda folder: (folder / "config.json").write_text(" " * 2**23),
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        lambda folder: (folder / "model.safetensors").write_bytes(b"nothing"),
        shutil.rmtree,
    ],
)
def test_damaged_folders_are_refused(damage: Any, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "vit", "vit")
    damage(folder)
    with pytest.raises(WeightsError):
        load(folder, "vit")


@pytest.mark.parametrize("name", ["vit", "vit=", "=folder", "vit_mae=folder", "resnet50", "onnx", ""])
def test_unknown_names_are_refused_with_the_names_there_are(name: str) -> None:
    with pytest.raises(DiscopatchError, match="natural-v2"):
        load_networks(name)
