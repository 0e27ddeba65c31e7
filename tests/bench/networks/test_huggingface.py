"""Classifiers of `transformers` from a folder: features are what the model itself computes, and no weight is random."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from discopatch.bench.networks import Backbone, load_backbone
from discopatch.bench.networks.base import LOCAL, PENULTIMATE, RANK_BEFORE, RANK_LAST, RANK_WEIGHT, STATISTICS
from discopatch.bench.networks.huggingface import MODEL_TYPES
from discopatch.encoders import local_features
from discopatch.errors import MissingExtraError, ParameterError, WeightsError

from .samples import by_full_svd, reference_statistics, sample_pixels, small_huggingface

transformers = pytest.importorskip("transformers")

CONVOLUTIONAL = ("regnet", "mobilenetv2", "bit")
PREPROCESSOR = {
    "do_resize": True,
    "size": {"shortest_edge": 72},
    "do_center_crop": True,
    "crop_size": {"height": 64, "width": 64},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model as somebody would have it on disk."""
    root = tmp_path_factory.mktemp("models")
    for kind in MODEL_TYPES:
        small_huggingface(kind).save_pretrained(root / kind)
        (root / kind / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return {kind: root / kind for kind in MODEL_TYPES}


@pytest.fixture(params=list(MODEL_TYPES))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def backbones(folders: dict[str, Path]) -> dict[str, Backbone]:
    return {kind: load_backbone(f"{kind}={folder}") for kind, folder in folders.items()}


@pytest.fixture
def backbone(kind: str, backbones: dict[str, Backbone]) -> Backbone:
    return backbones[kind]


def prepared(pixels: NDArray[np.uint8]) -> Tensor:
    """The formula written out: the centre, to 64 pixels, to 0..1, less the mean, by the deviation."""
    x = torch.from_numpy(pixels[:, 16:240, 16:240].copy()).permute(0, 3, 1, 2).float() / 255
    x = F.interpolate(x, (64, 64), mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(PREPROCESSOR[name])[:, None, None] for name in ("image_mean", "image_std"))
    return (x - mean) / deviation


def model_of(kind: str, folders: dict[str, Path]) -> Any:
    return getattr(transformers, MODEL_TYPES[kind].classifier).from_pretrained(folders[kind]).eval()


@torch.inference_mode()
def test_penultimate_features_are_the_input_of_the_models_last_layer(
    kind: str, backbone: Backbone, folders: dict[str, Path]
) -> None:
    model, pixels, penultimate = model_of(kind, folders), sample_pixels(), []
    last = model.classifier if isinstance(model.classifier, nn.Linear) else model.classifier[-1]
    last.register_forward_pre_hook(lambda layer, inputs: penultimate.append(inputs[0]))
    logits = model(pixel_values=prepared(pixels)).logits
    features = backbone.extract(pixels, [PENULTIMATE])[PENULTIMATE]
    assert penultimate[0].std(dim=0).max() > 1e-3  # or equality would say little
    np.testing.assert_allclose(features, penultimate[0].numpy(), atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(backbone.classifier.logits(features), logits.numpy(), atol=1e-4, rtol=1e-3)


def stages_of(kind: str, model: Any) -> list[nn.Module]:
    """The last layers of each resolution, written down from the models' own descriptions."""
    if kind == "mobilenetv2":
        return [model.mobilenet_v2.layer[number] for number in (1, 4, 11)] + [model.mobilenet_v2.conv_1x1]
    return list(getattr(model, kind).encoder.stages)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@torch.inference_mode()
def test_statistics_and_local_features_are_those_of_the_ends_of_stages(
    name: str, folders: dict[str, Path], backbones: dict[str, Backbone]
) -> None:
    model, pixels, maps = model_of(name, folders), sample_pixels(), []
    for stage in stages_of(name, model)[:-1]:
        stage.register_forward_hook(lambda layer, inputs, output: maps.append(output))
    model(pixel_values=prepared(pixels))
    found = backbones[name].extract(pixels, [STATISTICS, LOCAL])
    np.testing.assert_allclose(found[STATISTICS], reference_statistics(maps).numpy(), atol=1e-3, rtol=1e-3)
    np.testing.assert_allclose(found[LOCAL], local_features(maps[-2:]).numpy(), atol=5e-3, rtol=5e-3)


@torch.inference_mode()
def test_statistics_and_local_features_of_beit_are_those_of_its_patches_tokens(
    folders: dict[str, Path], backbones: dict[str, Backbone]
) -> None:
    model, pixels = model_of("beitv2", folders), sample_pixels()
    hidden = model(pixel_values=prepared(pixels), output_hidden_states=True).hidden_states
    measured = [hidden[depth][:, 1:].mT[..., None] for depth in (2, 4, 6)]  # of 8 layers; hidden[0] is before the first
    assert measured[0].shape == (3, 16, 16, 1)
    found = backbones["beitv2"].extract(pixels, [STATISTICS, LOCAL])
    np.testing.assert_allclose(found[STATISTICS], reference_statistics(measured).numpy(), atol=1e-3, rtol=1e-3)
    tokens = torch.cat([hidden[depth][:, 1:] for depth in (4, 6)], 2)
    np.testing.assert_allclose(found[LOCAL], tokens.numpy(), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize(("rank", "stage"), [(RANK_LAST, -1), (RANK_BEFORE, -2)])
@torch.inference_mode()
def test_rank_one_is_removed_from_the_map_within_the_model(
    name: str, rank: str, stage: int, folders: dict[str, Path], backbones: dict[str, Backbone]
) -> None:
    model, pixels, penultimate = model_of(name, folders), sample_pixels(), []
    stages_of(name, model)[stage].register_forward_hook(lambda layer, inputs, output: by_full_svd(output))
    last = model.classifier if isinstance(model.classifier, nn.Linear) else model.classifier[-1]
    last.register_forward_pre_hook(lambda layer, inputs: penultimate.append(inputs[0]))
    model(pixel_values=prepared(pixels))
    found = backbones[name].extract(pixels, [rank])[rank]
    np.testing.assert_allclose(found, penultimate[0].numpy(), atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_the_sizes_of_layers_are_twice_their_channels(kind: str, backbone: Backbone, folders: dict[str, Path]) -> None:
    model, channels = model_of(kind, folders), []
    if kind == "beitv2":
        channels = [model.config.hidden_size] * 3
    else:
        for stage in stages_of(kind, model)[:-1]:
            stage.register_forward_hook(lambda layer, inputs, output: channels.append(output.shape[1]))
        model(pixel_values=prepared(sample_pixels("cat")))
    assert backbone.layer_sizes == tuple(2 * each for each in channels)


def test_neighbours_never_change_features(backbone: Backbone) -> None:
    pixels = sample_pixels()
    together = backbone.extract(pixels, backbone.kinds)
    for place in range(len(pixels)):
        alone = backbone.extract(pixels[place : place + 1], backbone.kinds)
        for each in backbone.kinds:
            assert np.array_equal(alone[each][0], together[each][place]), each


def test_statistics_alone_are_the_same_and_do_not_reach_the_end(kind: str, folders: dict[str, Path]) -> None:
    backbone: Any = load_backbone(f"{kind}={folders[kind]}")
    pixels = sample_pixels("cat")
    expected = backbone.extract(pixels, backbone.kinds)[STATISTICS]
    model = backbone.network.model
    if kind == "beitv2":
        end = [module for module in model.modules() if type(module).__name__ == "BeitLayer"][-1]
    else:
        end = stages_of(kind, model)[-1]
    end.register_forward_hook(not_reached)
    assert np.array_equal(backbone.extract(pixels, [STATISTICS])[STATISTICS], expected)
    with pytest.raises(AssertionError, match="reached the end"):
        backbone.extract(pixels, [PENULTIMATE])
    assert np.array_equal(backbone.extract(pixels, [STATISTICS])[STATISTICS], expected)


def not_reached(layer: nn.Module, inputs: object, output: object) -> None:
    raise AssertionError("reached the end")


def test_only_a_resnet_has_the_weights_that_rankweight_changes(backbones: dict[str, Backbone]) -> None:
    assert [kind for kind, backbone in backbones.items() if RANK_WEIGHT in backbone.kinds] == ["bit"]
    with pytest.raises(ParameterError, match="'rank weight'"):
        backbones["regnet"].extract(sample_pixels("cat"), [RANK_WEIGHT])


def test_rankweight_leaves_the_weights_of_the_network_as_they_are(backbones: dict[str, Backbone]) -> None:
    backbone, pixels = backbones["bit"], sample_pixels("cat")
    before = backbone.extract(pixels, [PENULTIMATE, RANK_LAST])
    changed = backbone.extract(pixels, [RANK_WEIGHT])[RANK_WEIGHT]
    after = backbone.extract(pixels, [PENULTIMATE, RANK_LAST])
    assert all(np.array_equal(before[kind], after[kind]) for kind in before)
    assert not np.allclose(changed, before[RANK_LAST], rtol=0.01)


def test_tokens_have_no_rank(backbones: dict[str, Backbone]) -> None:
    backbone = backbones["beitv2"]
    assert backbone.kinds == (PENULTIMATE, STATISTICS, LOCAL)
    with pytest.raises(ParameterError, match="'rank last'"):
        backbone.extract(sample_pixels("cat"), [RANK_LAST])


def test_name_parameters_and_digest_are_those_of_the_model(
    kind: str, backbone: Backbone, folders: dict[str, Path]
) -> None:
    model = model_of(kind, folders)
    assert backbone.name == f"{kind}={folders[kind]}"
    assert backbone.parameters == sum(each.numel() for each in model.parameters())
    assert backbone.classes == ()
    assert backbone.digest == load_backbone(f"{kind}={folders[kind]}").digest
    assert len(backbone.digest) == 16


def copied(folder: Path, place: Path) -> Path:
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return place


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_classes_have_the_names_that_the_model_gives_them(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["regnet"], tmp_path / "named")
    names = ["tench", "goldfish", "shark", "ray", "hen", "ostrich", "finch"]
    changed(folder / "config.json", lambda config: config.update(id2label=dict(enumerate(names))))
    assert load_backbone(f"regnet={folder}").classes == tuple(names)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"crop_size": 64}, True),  # how older files say it
        ({"do_center_crop": False, "size": {"height": 64, "width": 64}}, True),
        ({"do_center_crop": False, "size": 64}, True),
        ({"crop_size": {"height": 96, "width": 96}}, False),
        ({"do_rescale": False}, False),
        ({"do_normalize": False}, False),
        ({"image_mean": [0.5, 0.5, 0.5]}, False),
    ],
)
def test_the_preprocessor_config_is_followed(
    changes: dict[str, Any], same: bool, folders: dict[str, Path], backbones: dict[str, Backbone], tmp_path: Path
) -> None:
    folder = copied(folders["regnet"], tmp_path / "changed")
    changed(folder / "preprocessor_config.json", lambda config: config.update(changes))
    before, after = (
        each.extract(sample_pixels("cat"), [PENULTIMATE])[PENULTIMATE]
        for each in (backbones["regnet"], load_backbone(f"regnet={folder}"))
    )
    assert np.array_equal(before, after) == same


def test_at_224_pixels_nothing_is_resized(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["mobilenetv2"], tmp_path / "full")
    changed(folder / "preprocessor_config.json", lambda config: config.update(crop_size=224))
    backbone: Any = load_backbone(f"mobilenetv2={folder}")
    pixels = sample_pixels("cat")
    x = backbone.network.prepare(torch.from_numpy(pixels))
    mean, deviation = np.array(PREPROCESSOR["image_mean"]), np.array(PREPROCESSOR["image_std"])
    expected = (pixels[:, 16:240, 16:240] / 255 - mean) / deviation
    np.testing.assert_allclose(x.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-5)


def test_half_precision_on_disk_is_single_here(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["regnet"], tmp_path / "half")
    model_of("regnet", folders).to(torch.bfloat16).save_pretrained(folder)
    features = load_backbone(f"regnet={folder}").extract(sample_pixels("cat"), [PENULTIMATE])
    assert features[PENULTIMATE].dtype == np.float32


def test_a_model_without_its_last_layer_is_refused(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Otherwise it would be filled with random numbers."""
    folder = copied(folders[kind], tmp_path / "headless")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in tensors.items() if "classifier" not in name},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(WeightsError, match="classifier"):
        load_backbone(f"{kind}={folder}")


def test_a_model_of_another_type_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(WeightsError, match=r"bit.*regnet"):
        load_backbone(f"regnet={folders['bit']}")


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_a_missing_file_is_named(file: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["bit"], tmp_path / "parts")
    (folder / file).unlink()
    with pytest.raises(WeightsError, match=file):
        load_backbone(f"bit={folder}")


def test_a_preprocessor_that_does_not_say_the_mean_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["bit"], tmp_path / "meanless")
    changed(folder / "preprocessor_config.json", lambda config: config.pop("image_mean"))
    with pytest.raises(WeightsError, match="'image_mean'"):
        load_backbone(f"bit={folder}")


def test_pickled_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["bit"], tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="safetensors"):
        load_backbone(f"bit={folder}")


def test_a_name_on_the_hub_is_not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="facebook/regnet-y-160"):
        load_backbone("regnet=facebook/regnet-y-160")


def test_without_transformers_the_remedy_is_named(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'discopatch\[transformers\]'"):
        load_backbone(f"bit={folders['bit']}")


def test_loading_prints_nothing(folders: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    load_backbone(f"regnet={folders['regnet']}")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
