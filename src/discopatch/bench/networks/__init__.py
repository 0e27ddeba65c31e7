"""Frozen classifiers that others trained: images become features that detectors and baselines score."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from discopatch.bench.networks.base import Backbone, FrozenBackbone
from discopatch.bench.networks.efficientnet import EfficientNetLite0
from discopatch.bench.networks.fetch import KIND, backbone_path, fetch_backbone
from discopatch.bench.networks.huggingface import MODEL_TYPES, load_huggingface
from discopatch.bench.networks.resnet50 import ResNet50
from discopatch.encoders import Layers, OutsideNetwork, resolve_device
from discopatch.errors import ParameterError, WeightsError
from discopatch.model import read_safetensors
from discopatch.model.weights import refused
from discopatch.schema import Positive, read_fields

# Those whose weights `discopatch data fetch` downloads.
BACKBONES: dict[str, type[ResNet50 | EfficientNetLite0]] = {
    "resnet50": ResNet50,
    "efficientnet-lite0": EfficientNetLite0,
}


@dataclass(frozen=True)
class BackboneHeader:
    """What the header of a backbone says that is used."""

    parameters: Positive
    classes: tuple[str, ...]


def is_fetched(name: str, folder: Path | None = None) -> bool:
    """Whether the weights of that backbone are in the folder, or in the user's cache."""
    return backbone_path(name, folder).is_file()


def load_backbone(name: str, *, device: str = "cpu", folder: Path | None = None) -> Backbone:
    """A backbone by name: one of BACKBONES, whose weights lie in the folder, or a type and folder of transformers.

    `regnet=PATH`, `mobilenetv2=PATH`, `bit=PATH`, `beitv2=PATH`. Nothing is ever downloaded here.
    """
    kind, is_local, path = name.partition("=")
    if is_local and kind in MODEL_TYPES:
        return load_huggingface(kind, Path(path), device=resolve_device(device))
    if name not in BACKBONES:
        local = ", ".join(f"{each}=FOLDER" for each in MODEL_TYPES)
        raise ParameterError(f"unknown backbone {name!r}: choose one of {', '.join(BACKBONES)}, {local}")
    place = backbone_path(name, folder)
    if not place.is_file():
        remedy = f"discopatch data fetch {name}" + (f" --folder {folder}" if folder else "")
        raise WeightsError(f"no weights of {name} at {place}: download them once with `{remedy}`")
    content, tensors = read_safetensors(place, kind=KIND)
    with refused(place, f"delete it, and download it again with `discopatch data fetch {name}`"):
        header = read_fields(BackboneHeader, content, where="header", ignore_unknown=True)
        network = BACKBONES[name].from_tensors(tensors)
    return FrozenBackbone(
        name, network, parameters=header.parameters, classes=header.classes, device=resolve_device(device)
    )


class FetchedNetwork(OutsideNetwork):
    """A network of BACKBONES for `Detector(weights=FetchedNetwork("resnet50"))`; images pass whole, without a crop."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        if name not in BACKBONES:
            raise ParameterError(f"unknown network {name!r}: choose one of {', '.join(BACKBONES)}")
        found = load_backbone(name, folder=folder)
        assert isinstance(found, FrozenBackbone)
        assert isinstance(found.network, ResNet50 | EfficientNetLite0)
        super().__init__(name, found.digest, side=None, any_side=True)
        self._network = found.network
        self.check()

    def layers(self, x: Tensor) -> Layers:
        maps, pooled = self._network.layers(self._network.normalise(x.permute(0, 2, 3, 1)))
        return Layers(maps, pooled)

    def on_device(self, device: torch.device) -> Self:
        if self._network.head.weight.device == device:
            return self
        found = deepcopy(self)
        found._network.to(device)
        return found


__all__ = [
    "BACKBONES",
    "Backbone",
    "EfficientNetLite0",
    "FetchedNetwork",
    "FrozenBackbone",
    "ResNet50",
    "fetch_backbone",
    "is_fetched",
    "load_backbone",
]
