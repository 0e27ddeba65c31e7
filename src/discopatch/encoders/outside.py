"""Networks by name: released weights, and those from outside, KIND=PLACE, which a detector's file does not hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from discopatch.encoders.backbones import BACKBONES, EfficientNetLite0, FrozenBackbone, ResNet50, load_backbone
from discopatch.encoders.checkpoints import CHECKPOINT_KINDS, load_checkpoint
from discopatch.encoders.network import Layers, OutsideNetwork, check_network_digest
from discopatch.encoders.onnx_files import load_onnx
from discopatch.errors import DiscopatchError, ParameterError, WeightsError
from discopatch.model import Weights
from discopatch.pretrained import PRETRAINED, load_weights

ONNX = "onnx"
KINDS = (*BACKBONES, *CHECKPOINT_KINDS, ONNX)
CHOICES = (
    f"choose one of {', '.join(PRETRAINED)}, {', '.join(BACKBONES)}, KIND=FOLDER of a network of transformers "
    f"({', '.join(CHECKPOINT_KINDS)}), or onnx=FILE:OUTPUT,OUTPUT,..."
)

AnyWeights = str | Weights


@dataclass(frozen=True)
class NetworkName:
    """The name of a network from outside: its kind, and the folder or file where it lies."""

    kind: str
    place: Path | None = None  # none for a backbone in the user's cache
    outputs: tuple[str, ...] = ()  # of an ONNX file

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads dinov2=FOLDER, onnx=FILE:OUTPUT,OUTPUT, or resnet50; the place becomes absolute."""
        kind, given, place = text.partition("=")
        outputs: tuple[str, ...] = ()
        if kind == ONNX and not Path(place).is_file():
            path, colon, names = place.rpartition(":")
            if colon and path:
                place, outputs = path, tuple(name.strip() for name in names.split(",") if name.strip())
        if kind not in KINDS or (not place if given else kind not in BACKBONES) or "\0" in place:
            raise ParameterError(f"no network is called {text!r}: {CHOICES}")
        return cls(kind, Path(place).expanduser().absolute() if place else None, outputs)

    def __str__(self) -> str:
        place = "" if self.place is None else f"={self.place}"
        return f"{self.kind}{place}{':' if self.outputs else ''}{','.join(self.outputs)}"

    def load(self, *, digest: str | None = None) -> OutsideNetwork:
        """The network, which must have the digest where one is given."""
        if self.kind in BACKBONES:
            return FetchedNetwork(self, digest=digest).check()
        assert self.place is not None
        if self.kind == ONNX:
            return load_onnx(str(self), self.place, self.outputs, digest=digest)
        return load_checkpoint(self.kind, str(self), self.place, digest=digest)


class FetchedNetwork(OutsideNetwork):
    """A backbone that `discopatch data fetch` downloaded; images pass as they are, without a crop."""

    def __init__(self, name: NetworkName, *, digest: str | None = None, device: torch.device | str = "cpu") -> None:
        found = load_backbone(name.kind, device=str(device), folder=name.place)
        assert isinstance(found, FrozenBackbone)
        assert isinstance(found.network, ResNet50 | EfficientNetLite0)
        check_network_digest(str(name), digest, found.digest)
        super().__init__(str(name), found.digest, side=None, any_side=True)
        self._name, self._network, self._device = name, found.network, found.device

    def layers(self, x: Tensor) -> Layers:
        maps, pooled = self._network.layers(self._network.normalise(x.permute(0, 2, 3, 1)))
        return Layers(maps, pooled)

    def on_device(self, device: torch.device) -> Self:
        if device == self._device:
            return self
        found = type(self)(self._name, digest=self.digest, device=device)
        found.channels, found.pooled = self.channels, self.pooled
        return found


class ChosenNetworks(NamedTuple):
    """What the `weights` of a detector name: at most one discriminator, and networks from outside."""

    weights: Weights | None
    name: str | None  # of released weights
    outside: tuple[OutsideNetwork, ...] = ()


def load_networks(chosen: AnyWeights | Sequence[AnyWeights]) -> ChosenNetworks:
    """All that is named, loaded; ParameterError where it does not go together."""
    names = [chosen] if isinstance(chosen, str | Weights) else list(chosen)
    ours = [each for each in names if isinstance(each, Weights) or not is_outside(each)]
    if not names or len(ours) > 1:
        raise ParameterError(
            f"weights name {len(ours)} discriminators in {len(names)}: give one network, or several "
            "of which one is a discriminator at most"
        )
    outside = tuple(NetworkName.parse(each).load() for each in names if isinstance(each, str) and is_outside(each))
    if len({each.digest for each in outside}) < len(outside):
        raise ParameterError("weights name the same network twice: leave one out")
    if not ours:
        return ChosenNetworks(None, None, outside)
    (own,) = ours
    if isinstance(own, Weights):
        return ChosenNetworks(own, None, outside)
    return ChosenNetworks(load_weights(own), own if own in PRETRAINED else None, outside)


def is_outside(name: str) -> bool:
    return "=" in name or name in BACKBONES


def find_network(stored: str, digest: str, given: Sequence[str] = ()) -> OutsideNetwork:
    """The network that a detector's file names, from where it was, or from one of the places given for its kind."""
    before = NetworkName.parse(stored)
    places = [found for found in map(NetworkName.parse, given) if found.kind == before.kind]
    reasons = []
    for place in places or [before]:
        try:
            return replace(place, outputs=place.outputs or before.outputs).load(digest=digest)
        except DiscopatchError as error:
            reasons.append(str(error))
    where = f"{before.kind}=FILE" if before.kind == ONNX else f"{before.kind}=FOLDER"
    raise WeightsError(
        f"it was fitted with the network {before.kind} of digest {digest}, which is not there ({'; '.join(reasons)}): "
        f"say where it is now, load(..., weights={where!r}) or --weights {where}"
    )
