"""Classifiers of `transformers` from a folder: methods see what the model itself computes, and nothing is made up."""

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

from discopatch.baselines.backbones import load_backbone
from discopatch.baselines.backbones.backbone import Backbone
from discopatch.baselines.backbones.huggingface import MODELS
from discopatch.baselines.method import PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS

from .samples import pictures
from .test_resnet50 import log_variance
from .test_sections import by_full_svd

transformers = pytest.importorskip("transformers")

CONVOLUTIONAL = ("regnet", "mobilenetv2", "bit")
CLASSES = 5
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


def small_model(kind: str) -> Any:
    if kind == "regnet":
        config = transformers.RegNetConfig(
            embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], groups_width=8, num_labels=CLASSES
        )
        return transformers.RegNetForImageClassification(config)
    if kind == "mobilenetv2":
        config = transformers.MobileNetV2Config(image_size=64, depth_multiplier=0.25, num_labels=CLASSES)
        return transformers.MobileNetV2ForImageClassification(config)
    if kind == "bit":
        config = transformers.BitConfig(
            embedding_size=8, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_groups=4, num_labels=CLASSES
        )
        return transformers.BitForImageClassification(config)
    config = transformers.BeitConfig(
        hidden_size=16,
        num_hidden_layers=8,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=64,
        patch_size=16,
        use_relative_position_bias=True,
        use_mean_pooling=True,
        num_labels=CLASSES,
    )
    return transformers.BeitForImageClassification(config)


@torch.no_grad()
def with_life(model: nn.Module) -> nn.Module:
    """Random weights of a size at which pictures differ, and BatchNorms that have seen some."""
    random = torch.Generator().manual_seed(1)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2, generator=random)
        elif name.endswith("running_mean"):
            value.normal_(0, 0.2, generator=random)
        elif value.is_floating_point() and value.ndim > 1:
            value.normal_(0, (2 / value[0].numel()) ** 0.5, generator=random)
    return model.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each model as somebody would have it on disk."""
    root = tmp_path_factory.mktemp("models")
    for kind in MODELS:
        with_life(small_model(kind)).save_pretrained(root / kind)  # type: ignore[operator]
        (root / kind / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return {kind: root / kind for kind in MODELS}


@pytest.fixture(params=list(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def backbone(kind: str, folders: dict[str, Path]) -> Backbone:
    return load_backbone(f"{kind}={folders[kind]}")


def prepared(pixels: NDArray[np.uint8]) -> Tensor:
    """By torch's resize and the formula in words: the centre, to 64 pixels, to 0..1, less mean, by deviation."""
    x = torch.from_numpy(pixels[:, 16:240, 16:240].copy()).permute(0, 3, 1, 2).float() / 255
    x = F.interpolate(x, (64, 64), mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(PREPROCESSOR[name])[:, None, None] for name in ("image_mean", "image_std"))
    return (x - mean) / deviation


def model_of(kind: str, folders: dict[str, Path]) -> Any:
    return getattr(transformers, MODELS[kind].classifier).from_pretrained(folders[kind]).eval()


@torch.inference_mode()
def test_the_last_features_are_what_the_models_own_last_layer_sees(
    kind: str, backbone: Backbone, folders: dict[str, Path]
) -> None:
    model, pixels, seen = model_of(kind, folders), pictures(), []
    last = model.classifier if isinstance(model.classifier, nn.Linear) else model.classifier[-1]
    last.register_forward_pre_hook(lambda layer, taken: seen.append(taken[0]))
    logits = model(pixel_values=prepared(pixels)).logits
    features = backbone.look(pixels, [PENULTIMATE])[PENULTIMATE]
    assert seen[0].std(dim=0).max() > 1e-3  # or equality would say little
    np.testing.assert_allclose(features, seen[0].numpy(), atol=1e-4, rtol=1e-3)
    np.testing.assert_allclose(backbone.classifier.logits(features), logits.numpy(), atol=1e-4, rtol=1e-3)


def stages_of(kind: str, model: Any) -> list[nn.Module]:
    """The last layers of each resolution, written down from the models' own descriptions."""
    if kind == "mobilenetv2":
        return [model.mobilenet_v2.layer[number] for number in (1, 4, 11)] + [model.mobilenet_v2.conv_1x1]
    return list(getattr(model, kind).encoder.stages)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@torch.inference_mode()
def test_statistics_are_those_of_the_ends_of_stages(name: str, folders: dict[str, Path]) -> None:
    model, pixels, maps = model_of(name, folders), pictures(), []
    for stage in stages_of(name, model)[:-1]:
        stage.register_forward_hook(lambda layer, taken, left: maps.append(left))
    model(pixel_values=prepared(pixels))
    expected = torch.cat([part for one in maps for part in (one.mean((2, 3)), log_variance(one))], dim=1)
    found = load_backbone(f"{name}={folders[name]}").look(pixels, [STATISTICS])[STATISTICS]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3, rtol=1e-3)


@torch.inference_mode()
def test_statistics_of_beit_are_those_of_its_patches_tokens(folders: dict[str, Path]) -> None:
    model, pixels = model_of("beitv2", folders), pictures()
    hidden = model(pixel_values=prepared(pixels), output_hidden_states=True).hidden_states
    shown = [hidden[depth][:, 1:].mT[..., None] for depth in (2, 4, 6)]  # of 8 layers; hidden[0] is before the first
    assert shown[0].shape == (3, 16, 16, 1)
    expected = torch.cat([part for one in shown for part in (one.mean((2, 3)), log_variance(one))], dim=1)
    found = load_backbone(f"beitv2={folders['beitv2']}").look(pixels, [STATISTICS])[STATISTICS]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize(("rank", "stage"), [(RANK_LAST, -1), (RANK_BEFORE, -2)])
@torch.inference_mode()
def test_rank_one_is_taken_from_the_map_within_the_model(
    name: str, rank: str, stage: int, folders: dict[str, Path]
) -> None:
    model, pixels, seen = model_of(name, folders), pictures(), []
    stages_of(name, model)[stage].register_forward_hook(lambda layer, taken, left: by_full_svd(left))
    last = model.classifier if isinstance(model.classifier, nn.Linear) else model.classifier[-1]
    last.register_forward_pre_hook(lambda layer, taken: seen.append(taken[0]))
    model(pixel_values=prepared(pixels))
    found = load_backbone(f"{name}={folders[name]}").look(pixels, [rank])[rank]
    np.testing.assert_allclose(found, seen[0].numpy(), atol=1e-3, rtol=1e-3)


def test_neighbours_never_change_features(backbone: Backbone) -> None:
    pixels = pictures()
    together = backbone.look(pixels, backbone.kinds)
    for place in range(len(pixels)):
        alone = backbone.look(pixels[place : place + 1], backbone.kinds)
        for shown in backbone.kinds:
            assert np.array_equal(alone[shown][0], together[shown][place]), shown


def test_statistics_alone_are_the_same_and_do_not_reach_the_end(kind: str, folders: dict[str, Path]) -> None:
    backbone: Any = load_backbone(f"{kind}={folders[kind]}")
    pixels = pictures("cat")
    expected = backbone.look(pixels, backbone.kinds)[STATISTICS]
    model = backbone._network.model
    if kind == "beitv2":
        end = [module for module in model.modules() if type(module).__name__ == "BeitLayer"][-1]
    else:
        end = stages_of(kind, model)[-1]
    end.register_forward_hook(not_reached)
    assert np.array_equal(backbone.look(pixels, [STATISTICS])[STATISTICS], expected)
    with pytest.raises(AssertionError, match="reached the end"):
        backbone.look(pixels, [PENULTIMATE])
    assert np.array_equal(backbone.look(pixels, [STATISTICS])[STATISTICS], expected)


def not_reached(layer: nn.Module, taken: object, left: object) -> None:
    raise AssertionError("reached the end")


def test_tokens_have_no_rank(folders: dict[str, Path]) -> None:
    backbone = load_backbone(f"beitv2={folders['beitv2']}")
    assert backbone.kinds == (PENULTIMATE, STATISTICS)
    with pytest.raises(ValueError, match="cannot show 'rank last'"):
        backbone.look(pictures("cat"), [RANK_LAST])


def test_it_says_what_it_is(kind: str, backbone: Backbone, folders: dict[str, Path]) -> None:
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
    names = ["tench", "goldfish", "shark", "ray", "hen"]
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
    changes: dict[str, Any], same: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = copied(folders["regnet"], tmp_path / "changed")
    changed(folder / "preprocessor_config.json", lambda config: config.update(changes))
    before, after = (
        load_backbone(f"regnet={each}").look(pictures("cat"), [PENULTIMATE])[PENULTIMATE]
        for each in (folders["regnet"], folder)
    )
    assert np.array_equal(before, after) == same


def test_at_224_pixels_nothing_is_resized(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["mobilenetv2"], tmp_path / "full")
    changed(folder / "preprocessor_config.json", lambda config: config.update(crop_size=224))
    backbone: Any = load_backbone(f"mobilenetv2={folder}")
    pixels = pictures("cat")
    x = backbone._network.prepare(torch.from_numpy(pixels))
    mean, deviation = np.array(PREPROCESSOR["image_mean"]), np.array(PREPROCESSOR["image_std"])
    expected = (pixels[:, 16:240, 16:240] / 255 - mean) / deviation
    np.testing.assert_allclose(x.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-5)


def test_half_precision_on_disk_is_single_here(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["regnet"], tmp_path / "half")
    model_of("regnet", folders).to(torch.bfloat16).save_pretrained(folder)
    features = load_backbone(f"regnet={folder}").look(pictures("cat"), [PENULTIMATE])
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
    with pytest.raises(ValueError, match=r"lack classifier.*take a whole classifier"):
        load_backbone(f"{kind}={folder}")


def test_a_model_of_another_type_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="holds a model of type bit, not regnet"):
        load_backbone(f"regnet={folders['bit']}")


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_a_missing_file_is_named(file: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["bit"], tmp_path / "parts")
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {file} in"):
        load_backbone(f"bit={folder}")


def test_a_preprocessor_that_does_not_say_the_mean_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["bit"], tmp_path / "meanless")
    changed(folder / "preprocessor_config.json", lambda config: config.pop("image_mean"))
    with pytest.raises(ValueError, match="has no 'image_mean'"):
        load_backbone(f"bit={folder}")


def test_pickled_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["bit"], tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        load_backbone(f"bit={folder}")


def test_a_name_on_the_hub_is_not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder at facebook/regnet-y-160"):
        load_backbone("regnet=facebook/regnet-y-160")


def test_without_transformers_the_remedy_is_named(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'discopatch\[transformers\]'"):
        load_backbone(f"bit={folders['bit']}")


def test_loading_says_nothing(folders: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    load_backbone(f"regnet={folders['regnet']}")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
