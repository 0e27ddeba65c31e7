"""The discriminator in 8 bits: all of its convolutions but the first, which sees pixels and costs little."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from discopatch.deploy.integers import IntegerConv
from discopatch.deploy.look import Look
from discopatch.model import Discriminator, Inspection
from discopatch.model.blocks import Block

KEPT = 0.9999  # the share of a channel's activations in one picture that is not clipped
TINY = 1e-6  # below this a channel says nothing

Looks = Callable[[Discriminator], Sequence[Look]]  # how a network is used, the most important use first


@torch.no_grad()
def quantised(network: Discriminator, looks: Looks, pictures: Tensor) -> Discriminator:
    """A copy in 8 bits, from pictures (B, size, size, 3) in uint8 that show what passes through it."""
    copy, convs = deepcopy(network), []
    activations = extents(looks(network), pictures)
    for (before, block), (lowest, highest) in zip(pairwise(blocks_of(copy)), activations, strict=True):
        share = balance(before, block, highest)
        low, high = float((lowest / share).min()), float((highest / share).max())
        convs.append(IntegerConv(convolution(block), lowest=low, highest=high))
        block.conv = convs[-1]  # type: ignore[assignment]  # it takes the place of one
    wanted, found = (usual(looks(each)[0], pictures) for each in (network, copy))
    match_statistics(convs, wanted, found)
    copy.head.bias.add_(wanted.logit - found.logit)
    return copy


def blocks_of(network: Discriminator) -> list[Block]:
    """In their order."""
    return [block for block in network.blocks if isinstance(block, Block)]


def convolution(block: Block) -> nn.Conv2d:
    """That of a block which is still in float."""
    assert isinstance(block.conv, nn.Conv2d)
    return block.conv


def one_by_one(look: Look, pictures: Tensor) -> Iterator[Inspection]:
    """What is seen of each picture; together they would fill the memory."""
    return (look.inspect(picture) for picture in pictures.split(1))


def extents(looks: Sequence[Look], pictures: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of the activations before every convolution but the first: the lowest and the highest of each channel."""
    found = [
        [extent(activations) for activations in seen.features[:-1]]
        for look in looks
        for seen in one_by_one(look, pictures)
    ]
    return [
        (torch.stack([low for low, _ in layer]).amin(0), torch.stack([high for _, high in layer]).amax(0))
        for layer in zip(*found, strict=True)
    ]


def extent(activations: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) -> the lowest of each channel, and the highest but for a few, two (C,)."""
    channels = activations.transpose(0, 1).flatten(1)
    kept = max(1, round(KEPT * channels.shape[1]))
    return channels.amin(1), channels.kthvalue(kept, 1).values.clamp(min=TINY)


def balance(before: Block, block: Block, highest: Tensor) -> Tensor:
    """Divides the block's inputs by (C,) and multiplies its kernels by the same, which is returned.

    With it wide channels neither leave few steps to narrow ones nor meet coarse kernels. A LeakyReLU lets a positive
    factor through, so that it can go into the normalisation before it, and costs nothing.
    """
    kernel = convolution(block).weight
    share = (highest / kernel.square().mean((0, 2, 3)).sqrt().clamp(min=TINY)).sqrt()
    kernel.mul_(share[None, :, None, None])
    for parameter in (before.norm.weight, before.norm.bias):
        assert isinstance(parameter, Tensor)
        parameter.div_(share)
    return share


class Usual(NamedTuple):
    """What a network shows of pictures on average: the mean logit, and layer by layer means and log-variances (C,)."""

    logit: Tensor
    means: list[Tensor]
    log_variances: list[Tensor]


def usual(look: Look, pictures: Tensor) -> Usual:
    """Over pictures (B, size, size, 3)."""
    found = [(seen.logits.mean(), seen.means, seen.variances) for seen in one_by_one(look, pictures)]
    logits, means, variances = zip(*found, strict=True)
    return Usual(
        torch.stack(logits).mean(),
        [torch.cat(layer).mean(0) for layer in zip(*means, strict=True)],
        [torch.cat(layer).clamp(min=TINY).log().mean(0) for layer in zip(*variances, strict=True)],
    )


def match_statistics(convs: Sequence[IntegerConv], wanted: Usual, found: Usual) -> None:
    """Scales and moves the sums of each channel so that their statistics are, on average, those of the float network.

    The normalisation takes that out again, but the head reads it. What is left differs from picture to picture.
    """
    for layer, conv in enumerate(convs, start=1):
        growth = ((wanted.log_variances[layer] - found.log_variances[layer]) / 2).exp().view(-1, 1, 1)
        mean, before = wanted.means[layer].view(-1, 1, 1), found.means[layer].view(-1, 1, 1)
        conv.bias.copy_(mean - growth * (before - conv.bias))
        conv.scale.mul_(growth)
