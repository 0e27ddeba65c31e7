"""The backbones by their names."""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from discopatch.baselines.backbones import efficientnet, huggingface, resnet50
from discopatch.baselines.backbones.backbone import Backbone
from discopatch.baselines.backbones.fetch import KIND, weights_path
from discopatch.baselines.backbones.frozen import FrozenBackbone, Network
from discopatch.model.weights import read_safetensors
from discopatch.scoring.scorer import chosen

# Those whose weights `discopatch data fetch` takes.
BACKBONES: dict[str, Callable[[Mapping[str, Tensor]], Network]] = {
    "resnet50": resnet50.build,
    "efficientnet-lite0": efficientnet.build,
}


def fetched(name: str, folder: Path | None = None) -> bool:
    """Whether the weights of that backbone are there."""
    return weights_path(name, folder).is_file()


def load_backbone(name: str, *, device: str = "cpu", folder: Path | None = None) -> Backbone:
    """A backbone by name: one of BACKBONES, whose weights lie in the folder, or a model type = folder of transformers.

    `regnet=PATH`, `mobilenetv2=PATH`, `bit=PATH`, `beitv2=PATH`. Nothing is ever downloaded here.
    """
    kind, is_local, path = name.partition("=")
    if is_local and kind in huggingface.MODELS:
        return huggingface.load(kind, Path(path), device=chosen(device))
    if name not in BACKBONES:
        local = ", ".join(f"{each}=FOLDER" for each in huggingface.MODELS)
        raise ValueError(f"unknown backbone {name!r}: choose one of {', '.join(BACKBONES)}, {local}")
    place = weights_path(name, folder)
    if not place.is_file():
        remedy = f"discopatch data fetch {name}" + (f" --folder {folder}" if folder else "")
        raise FileNotFoundError(f"no weights of {name} at {place}: take them once with `{remedy}`")
    header, tensors = read_safetensors(place, kind=KIND)
    network = BACKBONES[name](tensors)
    return FrozenBackbone(
        name, network, parameters=header["parameters"], classes=header["classes"], device=chosen(device)
    )
