"""The encoder of a detector, made from its networks and parameters."""

from collections.abc import Collection
from dataclasses import replace
from typing import get_args

import torch

from discopatch.encoders.base import BASIC_KINDS, Encoder, Kind
from discopatch.encoders.discriminator import DiscriminatorEncoder, Patches, Precision
from discopatch.encoders.joined import JoinedEncoder
from discopatch.encoders.network import NetworkEncoder
from discopatch.encoders.outside import ChosenNetworks
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS, Decoder, Limits
from discopatch.images.gpu_decode import open_decoder
from discopatch.model.patches import Sampling


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
