"""Networks of the benchmark: two rival classifiers, and any encoder of this package with the same interface."""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from discopatch.bench.networks.base import (
    LOCAL,
    LOGITS,
    NO_CLASSES,
    PENULTIMATE,
    STATISTICS,
    Backbone,
    FeatureDict,
    FrozenBackbone,
)
from discopatch.bench.networks.efficientnet import EfficientNetLite0
from discopatch.bench.networks.fetch import KIND, backbone_path, fetch_backbone
from discopatch.bench.networks.resnet50 import ResNet50
from discopatch.encoders import (
    DiscriminatorEncoder,
    Encoder,
    Kind,
    NetworkEncoder,
    load_folder,
    resolve_device,
)
from discopatch.errors import ParameterError, WeightsError
from discopatch.images import Pixels
from discopatch.model import Weights, read_safetensors
from discopatch.model.weights import refused
from discopatch.schema import Positive, read_fields

# The classifiers whose weights `discopatch data fetch` downloads.
BACKBONES: dict[str, type[ResNet50 | EfficientNetLite0]] = {
    "resnet50": ResNet50,
    "efficientnet-lite0": EfficientNetLite0,
}


@dataclass(frozen=True)
class BackboneHeader:
    """The field of a backbone's header that is used."""

    parameters: Positive


def is_fetched(name: str, folder: Path | None = None) -> bool:
    """Whether the weights of that backbone are in the folder, or in the user's cache."""
    return backbone_path(name, folder).is_file()


def load_backbone(name: str, *, device: str = "cpu", folder: Path | None = None) -> FrozenBackbone:
    """One of BACKBONES, whose fetched weights lie in the folder. Nothing is downloaded here."""
    if name not in BACKBONES:
        raise ParameterError(f"unknown network {name!r}: choose one of {', '.join(BACKBONES)}")
    place = backbone_path(name, folder)
    if not place.is_file():
        remedy = f"discopatch data fetch {name}" + (f" --folder {folder}" if folder else "")
        raise WeightsError(f"no weights of {name} at {place}: download them once with `{remedy}`")
    content, tensors = read_safetensors(place, kind=KIND)
    with refused(place, f"delete it, and download it again with `discopatch data fetch {name}`"):
        header = read_fields(BackboneHeader, content, where="header", ignore_unknown=True)
        network = BACKBONES[name].from_tensors(tensors)
    return FrozenBackbone(name, network, parameters=header.parameters, device=resolve_device(device))


class EncoderBackbone:
    """A Backbone around an encoder of this package, which has no classifier."""

    classifier = NO_CLASSES

    def __init__(
        self,
        name: str,
        digest: str,
        parameters: int | None,
        kinds: tuple[str, ...],
        make: Callable[[Collection[Kind]], Encoder],
    ) -> None:
        self.name, self.digest, self.parameters, self.kinds = name, digest, parameters, kinds
        self._make = make
        self._encoders: dict[frozenset[str], Encoder] = {}  # by the kinds that they compute
        self.device = self._encoder(kinds).device

    @classmethod
    def discriminator(
        cls, name: str, weights: Weights, *, patches: int | None, seed: int, device: str, batch_size: int
    ) -> Self:
        """The discriminator in one dense pass over the image, or at random patches, which have no places."""

        def make(kinds: Collection[Kind]) -> Encoder:
            return DiscriminatorEncoder(
                weights, patches=patches or "dense", seed=seed, device=device, batch_size=batch_size, kinds=kinds
            )

        kinds = (LOGITS, STATISTICS, PENULTIMATE, *(() if patches else (LOCAL,)))
        digest = hashlib.sha256(f"{weights.digest} {patches} {seed if patches else 0}".encode()).hexdigest()[:16]
        parameters = sum(each.numel() for each in weights.discriminator.parameters())
        return cls(name, digest, parameters, kinds, make)

    @classmethod
    def outside(cls, name: str, *, device: str, batch_size: int) -> Self:
        """A network from outside, KIND=FOLDER of transformers."""
        network = load_folder(name)

        def make(kinds: Collection[Kind]) -> Encoder:
            return NetworkEncoder(network, device=device, batch_size=batch_size, kinds=kinds)

        return cls(name, network.digest, None, (STATISTICS, PENULTIMATE, LOCAL), make)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return self._encoder(self.kinds).layer_sizes

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        """(images, size, size, 3) uint8 -> those kinds of features, each image's from itself alone."""
        found = self._encoder(kinds).extract_pixels(pixels)
        return {kind: getattr(found, kind) for kind in kinds}

    def _encoder(self, kinds: Collection[str]) -> Encoder:
        wanted = frozenset(kinds)
        if wanted not in self._encoders:
            self._encoders[wanted] = self._make(cast(Collection[Kind], wanted))
        return self._encoders[wanted]


__all__ = [
    "BACKBONES",
    "Backbone",
    "EfficientNetLite0",
    "EncoderBackbone",
    "FrozenBackbone",
    "ResNet50",
    "fetch_backbone",
    "is_fetched",
    "load_backbone",
]
