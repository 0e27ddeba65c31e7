"""Networks by name, and the encoder that is made of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self, get_args

import torch

from discopatch.encoders.base import BASIC_KINDS, Encoder, JoinedEncoder, Kind
from discopatch.encoders.checkpoints import CHECKPOINT_KINDS, load_checkpoint
from discopatch.encoders.discriminator import DiscriminatorEncoder, Patches, Precision
from discopatch.encoders.network import NetworkEncoder, OutsideNetwork
from discopatch.encoders.onnx_files import load_onnx
from discopatch.errors import DiscopatchError, ParameterError, WeightsError
from discopatch.images import DEFAULT_LIMITS, Decoder, Limits
from discopatch.images.gpu_decode import open_decoder
from discopatch.model import Weights
from discopatch.model.patches import Sampling
from discopatch.pretrained import PRETRAINED, load_weights

ONNX = "onnx"
CHOICES = (
    f"choose one of {', '.join(PRETRAINED)}, KIND=FOLDER of a network of transformers "
    f"({', '.join(CHECKPOINT_KINDS)}), or onnx=FILE:OUTPUT,OUTPUT,..."
)

AnyWeights = str | Path | Weights | OutsideNetwork


@dataclass(frozen=True)
class NetworkName:
    """The name of a network from outside: its kind, and the folder or file where it is."""

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
        if kind not in (*CHECKPOINT_KINDS, ONNX) or not place or "\0" in place:
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
    """The networks of a detector: at most one discriminator, and networks from outside."""

    weights: Weights | None
    name: str | None  # of released weights
    outside: tuple[OutsideNetwork, ...] = ()


def load_networks(chosen: AnyWeights | Sequence[AnyWeights]) -> ChosenNetworks:
    """The networks that the `weights` of a detector name."""
    given: list[str | Weights | OutsideNetwork] = [
        str(each) if isinstance(each, Path) else each
        for each in ([chosen] if isinstance(chosen, AnyWeights) else chosen)
    ]
    loaded = [NetworkName.parse(each).load() if isinstance(each, str) and "=" in each else each for each in given]
    outside = tuple(each for each in loaded if isinstance(each, OutsideNetwork))
    own = [each for each in loaded if not isinstance(each, OutsideNetwork)]
    if not given or len(own) > 1:
        raise ParameterError(
            f"weights name {len(own)} discriminators among {len(given)} networks: give at least one network, "
            "and at most one discriminator"
        )
    if len({each.digest for each in outside}) < len(outside):
        raise ParameterError("weights name the same network twice: leave one out")
    if not own:
        return ChosenNetworks(None, None, outside)
    if isinstance(own[0], Weights):
        return ChosenNetworks(own[0], None, outside)
    return ChosenNetworks(load_weights(own[0]), own[0] if own[0] in PRETRAINED else None, outside)


def find_network(stored: str, digest: str, given: Sequence[str | OutsideNetwork] = ()) -> OutsideNetwork:
    """The network that a detector's file names, from its stored place or from those given for its kind.

    A network object is taken by its digest.
    """
    for each in given:
        if isinstance(each, OutsideNetwork) and each.digest == digest:
            return each
    before = NetworkName.parse(stored)
    places = [NetworkName.parse(each) for each in given if isinstance(each, str)]
    errors = []
    for place in [each for each in places if each.kind == before.kind] or [before]:
        try:
            return replace(place, outputs=place.outputs or before.outputs).load(digest=digest)
        except DiscopatchError as error:
            errors.append(str(error))
    where = f"{before.kind}=FILE" if before.kind == ONNX else f"{before.kind}=FOLDER"
    raise WeightsError(
        f"it was fitted with the network {before.kind} of digest {digest}, which was not found ({'; '.join(errors)}): "
        f"give its place, load(..., networks={where!r}) or --networks {where}"
    )


def make_encoders(
    networks: ChosenNetworks,
    *,
    patches: Patches = "dense",
    sampling: Sampling = "random",
    seed: int = 0,
    precision: Precision = "float32",
    kinds: Collection[Kind] = BASIC_KINDS,
    device: str | torch.device = "cpu",
    batch_size: int = 8,
    limits: Limits = DEFAULT_LIMITS,
    decoder: Decoder = "pillow",
) -> Encoder:
    """The encoder of one network, or of several side by side; images are decoded by `decoder`."""
    weights, _, outside = networks
    found: list[Encoder] = []
    transform, patch_size = None, None
    if weights is not None:
        own = DiscriminatorEncoder(
            weights,
            patches=patches,
            sampling=sampling,
            seed=seed,
            precision=precision,
            device=device,
            batch_size=batch_size,
            limits=limits,
            kinds=kinds,
        )
        found, transform, patch_size = [own], own.transform, own.patch_size
    if outside and precision != "float32":
        raise ParameterError(f"{outside[0].name} computes in float32: use precision='float32'")
    for network in outside:
        found.append(
            NetworkEncoder(
                network,
                transform=transform,
                patch_size=patch_size,
                device=device,
                batch_size=batch_size,
                limits=limits,
                kinds=kinds,
            )
        )
    encoder = found[0] if len(found) == 1 else JoinedEncoder(found)
    encoder.transform = replace(encoder.transform, decoder=decoder)
    return encoder


def check_decoder(decoder: str, device: torch.device) -> None:
    """Raises an error, with its remedy, for an unknown decoder or one that does not work on this machine."""
    if decoder not in get_args(Decoder):
        raise ParameterError(f"unknown decoder {decoder!r}: choose one of {', '.join(get_args(Decoder))}")
    if decoder == "nvimgcodec":
        open_decoder(device)
