"""The networks that a detector's `weights` name, and the encoder that is made of them."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from discopatch.encoders.base import Encoder, FeatureSizes, JoinedEncoder, default_batch_size
from discopatch.encoders.discriminator import DiscriminatorEncoder, Patches, Precision
from discopatch.encoders.network import NetworkEncoder, OutsideNetwork, load_folder, parse_name
from discopatch.encoders.places import N_LOCAL, Compare
from discopatch.errors import DiscopatchError, ParameterError, WeightsError
from discopatch.images import Decoder, Transform
from discopatch.images.gpu_decode import open_decoder
from discopatch.model import Weights
from discopatch.model.patches import Sampling
from discopatch.pretrained import PRETRAINED, load_weights

AnyWeights = str | Path | Weights | OutsideNetwork


class ChosenNetworks(NamedTuple):
    """The networks of a detector: at most one discriminator, and networks from outside."""

    weights: Weights | None
    name: str | None  # of released weights
    outside: tuple[OutsideNetwork, ...] = ()

    @property
    def transform(self) -> Transform:
        """The transform of the discriminator, or the usual one without it."""
        return Transform() if self.weights is None else self.weights.transform

    def sizes(self) -> FeatureSizes:
        """The sizes of the features that the encoder of these networks gives."""
        widths = [network.channels for network in self.outside]
        pooled = [network.pooled for network in self.outside]
        places, embedding = sum(sum(channels[-N_LOCAL:]) for channels in widths), 0
        if self.weights is not None:
            architecture = self.weights.discriminator.architecture
            own, embedding = architecture.hidden, architecture.embedding
            widths, pooled = [own, *widths], [own[-1], *pooled]
            places += sum(own[architecture.place_layers])
        return FeatureSizes(2 * sum(map(sum, widths)) + embedding, sum(pooled), places, logits=self.weights is not None)


def load_networks(chosen: AnyWeights | Sequence[AnyWeights]) -> ChosenNetworks:
    """The networks that the `weights` of a detector name."""
    own: list[str | Weights] = []
    outside: list[OutsideNetwork] = []
    for each in [chosen] if isinstance(chosen, AnyWeights) else chosen:
        if isinstance(each, OutsideNetwork):
            outside.append(each)
        elif isinstance(each, Weights):
            own.append(each)
        elif "=" in str(each):
            outside.append(load_folder(str(each)))
        else:
            own.append(str(each))
    if len(own) > 1 or not (own or outside):
        raise ParameterError(
            f"weights name {len(own)} discriminators and {len(outside)} other networks: give at least one network, "
            "and at most one discriminator"
        )
    if len({each.digest for each in outside}) < len(outside):
        raise ParameterError("weights name the same network twice: leave one out")
    name = next((each for each in own if each in PRETRAINED), None)
    weights = [load_weights(each) if isinstance(each, str) else each for each in own]
    return ChosenNetworks(weights[0] if weights else None, name, tuple(outside))


def find_network(stored: str, digest: str, given: Sequence[str | OutsideNetwork] = ()) -> OutsideNetwork:
    """The network that a detector's file names, from its stored place or from those given for its kind.

    A network object is taken by its digest.
    """
    for each in given:
        if isinstance(each, OutsideNetwork) and each.digest == digest:
            return each
    kind, _ = parse_name(stored)
    errors = []
    for name in [each for each in given if isinstance(each, str) and parse_name(each)[0] == kind] or [stored]:
        try:
            return load_folder(name, digest=digest)
        except DiscopatchError as error:
            errors.append(str(error))
    raise WeightsError(
        f"it was fitted with the network {kind} of digest {digest}, which was not found ({'; '.join(errors)}): "
        f"give its place, load(..., networks='{kind}=FOLDER') or --networks {kind}=FOLDER"
    )


def make_encoders(
    networks: ChosenNetworks,
    *,
    patches: Patches = "dense",
    sampling: Sampling = "random",
    seed: int = 0,
    precision: Precision = "float32",
    device: str | torch.device = "cpu",
    batch_size: int | None = None,
    transform: Transform | None = None,
    compare: Compare | None = None,
    **common: Any,
) -> Encoder:
    """The encoder of one network, or of several side by side.

    transform: that of the discriminator by default.
    compare: what is made of the features of places, of all networks together.
    common: other options of `Encoder`.
    """
    weights, _, outside = networks
    if outside and precision != "float32":
        raise ParameterError(f"{outside[0].name} computes in float32: use precision='float32'")
    transform = transform or networks.transform
    if batch_size is None:
        pixels = prod(transform.largest)
        if weights is not None and isinstance(patches, int):
            pixels = max(patches, 1) * weights.discriminator.architecture.patch_size**2
        batch_size = default_batch_size(device, pixels)
    common |= {"device": device, "batch_size": batch_size}
    if (weights is not None) + len(outside) == 1:
        common["compare"] = compare
    found: list[Encoder] = []
    if weights is not None:
        parameters: dict[str, Any] = {"patches": patches, "sampling": sampling, "seed": seed, "precision": precision}
        found = [DiscriminatorEncoder(weights, transform=transform, **parameters, **common)]
    found += [NetworkEncoder(network, transform=transform, **common) for network in outside]
    return found[0] if len(found) == 1 else JoinedEncoder(found, compare)


def check_decoder(decoder: str, device: torch.device) -> None:
    """Raises an error, with its remedy, for an unknown decoder or one that does not work on this machine."""
    if decoder not in get_args(Decoder):
        raise ParameterError(f"unknown decoder {decoder!r}: choose one of {', '.join(get_args(Decoder))}")
    if decoder == "nvimgcodec":
        open_decoder(device)
