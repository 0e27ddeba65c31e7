"""Networks by name: released weights, and those from outside, KIND=PLACE, which a detector's file does not hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from discopatch.encoders.checkpoints import CHECKPOINT_KINDS, load_checkpoint
from discopatch.encoders.network import OutsideNetwork
from discopatch.encoders.onnx_files import load_onnx
from discopatch.errors import DiscopatchError, ParameterError, WeightsError
from discopatch.model import Weights
from discopatch.pretrained import PRETRAINED, load_weights

ONNX = "onnx"
KINDS = (*CHECKPOINT_KINDS, ONNX)
CHOICES = (
    f"choose one of {', '.join(PRETRAINED)}, KIND=FOLDER of a network of transformers "
    f"({', '.join(CHECKPOINT_KINDS)}), or onnx=FILE:OUTPUT,OUTPUT,..."
)

AnyWeights = str | Weights | OutsideNetwork


@dataclass(frozen=True)
class NetworkName:
    """The name of a network from outside: its kind, and the folder or file where it lies."""

    kind: str
    place: Path
    outputs: tuple[str, ...] = ()  # of an ONNX file

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads dinov2=FOLDER or onnx=FILE:OUTPUT,OUTPUT; the place becomes absolute."""
        kind, _, place = text.partition("=")
        outputs: tuple[str, ...] = ()
        if kind == ONNX and not Path(place).is_file():
            path, colon, names = place.rpartition(":")
            if colon and path:
                place, outputs = path, tuple(name.strip() for name in names.split(",") if name.strip())
        if kind not in KINDS or not place or "\0" in place:
            raise ParameterError(f"no network is called {text!r}: {CHOICES}")
        return cls(kind, Path(place).expanduser().absolute(), outputs)

    def __str__(self) -> str:
        return f"{self.kind}={self.place}{':' if self.outputs else ''}{','.join(self.outputs)}"

    def load(self, *, digest: str | None = None) -> OutsideNetwork:
        """The network, which must have the digest where one is given."""
        if self.kind == ONNX:
            return load_onnx(str(self), self.place, self.outputs, digest=digest)
        return load_checkpoint(self.kind, str(self), self.place, digest=digest)


class ChosenNetworks(NamedTuple):
    """What the `weights` of a detector name: at most one discriminator, and networks from outside."""

    weights: Weights | None
    name: str | None  # of released weights
    outside: tuple[OutsideNetwork, ...] = ()


def load_networks(chosen: AnyWeights | Sequence[AnyWeights]) -> ChosenNetworks:
    """All that is named, loaded; ParameterError where it does not go together."""
    names = [chosen] if isinstance(chosen, str | Weights | OutsideNetwork) else list(chosen)
    ours = [each for each in names if isinstance(each, Weights) or (isinstance(each, str) and "=" not in each)]
    if not names or len(ours) > 1:
        raise ParameterError(
            f"weights name {len(ours)} discriminators in {len(names)}: give one network, or several "
            "of which one is a discriminator at most"
        )
    outside = tuple(
        NetworkName.parse(each).load() if isinstance(each, str) else each
        for each in names
        if isinstance(each, OutsideNetwork) or (isinstance(each, str) and "=" in each)
    )
    if len({each.digest for each in outside}) < len(outside):
        raise ParameterError("weights name the same network twice: leave one out")
    if not ours:
        return ChosenNetworks(None, None, outside)
    (own,) = ours
    if isinstance(own, Weights):
        return ChosenNetworks(own, None, outside)
    return ChosenNetworks(load_weights(own), own if own in PRETRAINED else None, outside)


def find_network(stored: str, digest: str, given: Sequence[str | OutsideNetwork] = ()) -> OutsideNetwork:
    """The network that a detector's file names, from where it was, or from one of the places given for its kind."""
    for each in given:
        if isinstance(each, OutsideNetwork) and each.digest == digest:
            return each
    before = NetworkName.parse(stored)
    places = [
        found
        for found in map(NetworkName.parse, filter(lambda each: isinstance(each, str), given))
        if found.kind == before.kind
    ]
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
