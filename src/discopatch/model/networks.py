"""The discriminator, the one network that scoring needs, and the VAE, which makes the negatives of its training."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.model import layers
from discopatch.model.config import Architecture
from discopatch.model.layers import NORMALISATIONS, SMALLEST_VARIANCE, Block, InvertedLayer, channels_last, halving
from discopatch.model.patches import cells, tiles

# Layers of an inverted network that large images pass together: their number, and the side of a tile in pixels.
STAGES = ((3, 1024), (1, 3072), (1, 4096))


@dataclass(frozen=True)
class DiscriminatorOutput:
    """Logits, and features and statistics of every layer."""

    logits: Tensor  # (B,) of patches, (B, rows, columns) of larger images
    features: list[Tensor]  # after each layer, (B, C, H, W)
    layer_statistics: list[Tensor]  # before the normalisation, of inverted layers after the last block
    embedding: Tensor | None = None  # of each group, computed from these

    @property
    def statistics(self) -> Tensor:
        """(groups, 2 x channels): layer by layer its means, then its log-variances; then the embedding.

        Needs `statistics=True`.
        """
        return torch.cat([*self.layer_statistics, *([] if self.embedding is None else [self.embedding])], 1)


def channel_statistics(maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, C, H, W) or (B, C, positions) -> (B, 2 x all channels): map by map its means, then its log-variances."""
    found = []
    for one in maps:
        variance, mean = torch.var_mean(one.flatten(2), dim=2, correction=0)
        found += [mean, torch.log(variance + SMALLEST_VARIANCE)]
    return torch.cat(found, dim=1)


class Discriminator(nn.Module):
    """Patches to logits: high for real, low for reconstructed or generated. No sigmoid: it saturates in float.

    A plain network is the paper's: layers that halve the resolution, and one linear layer over a patch's last map. An
    inverted network has several blocks in each layer; every cell of its second to last map is classified, and the logit
    of a patch is the mean over its cells.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.head: nn.Linear | nn.Conv2d
        if architecture.kind == "plain":
            self.blocks = nn.ModuleList(
                Block(halving(inputs, outputs), NORMALISATIONS[architecture.normalisation](outputs))
                for inputs, outputs in pairwise((3, *architecture.hidden))
            )
            self.head = nn.Linear(architecture.flat, 1)
        else:
            inputs = (2 * architecture.hidden[0], *architecture.hidden)  # of each layer, and of what follows
            self.blocks = nn.ModuleList(
                InvertedLayer(inputs[number], plan, stem=number == 0)
                for number, plan in enumerate(layers.layer_plan(architecture.hidden, architecture.depths))
            )
            self.head = nn.Conv2d(architecture.hidden[architecture.classified], 1, kernel_size=1)
        size = architecture.embedding
        self.embed = layers.Embedding(architecture.statistics - size, size) if size else None

    def forward(self, x: Tensor, group: int | None = None, *, statistics: bool = False) -> DiscriminatorOutput:
        """(B, 3, S, S) in [-1, 1]; PatchNorm normalises every `group` consecutive patches together.

        Without a group size the whole batch is one group. With `statistics` the output has them, with gradients.
        """
        features: list[Tensor] = []
        found: list[Tensor] = []
        for block in self.blocks:
            x, of_layer = block(x, group, statistics=statistics)
            features.append(x)
            found += [of_layer] if statistics else []
        return self.joined(features, found)

    def joined(self, features: list[Tensor], statistics: list[Tensor]) -> DiscriminatorOutput:
        """The output that has these features and, if they were asked for, statistics of all layers."""
        logits = self.classify(features[self.architecture.classified])
        embedding = self.embed(torch.cat(statistics, 1)) if self.embed is not None and statistics else None
        return DiscriminatorOutput(logits, features, statistics, embedding)

    def in_tiles(self, pixels: Tensor, prepare: Callable[[Tensor], Tensor]) -> DiscriminatorOutput:
        """`forward` of an inverted network over large images (B, 3, H, W), with statistics, each image a group.

        A tile is read with all pixels that its maps depend on: statistics and z-scores of 12 megapixels differ by 2e-6
        from one pass. Tiles pass a few layers at a time: the last one reaches 256 pixels. Maps between them are whole
        and take 6 bytes per pixel; those of the first two layers are left out, and are empty. `prepare` makes the
        network's input of the pixels of a tile.
        """
        x, features = pixels, list[Tensor]()
        moments: list[list[Tensor]] = [[] for _ in self.blocks]  # of each tile the number of cells, means and variances
        for count, side in STAGES:
            numbers = range(len(features), len(features) + count)
            halo = self.halo(numbers)
            before, after = 2**numbers.start, 2**numbers.stop  # strides
            shape = self.architecture.hidden[numbers[-1]], pixels.shape[2] // after, pixels.shape[3] // after
            whole = torch.empty(len(pixels), *shape, device=pixels.device)
            for tile in tiles(*pixels.shape[2:], side=side, halo=halo):
                y = x[cells(tile.read, before)].contiguous(memory_format=torch.channels_last)
                y = y if features else prepare(y)
                for number in numbers:
                    y = self.blocks[number](y).features
                    core = y[cells(tile.inner, 2 ** (number + 1))]
                    _, mean, variance = layers.standardise(core, 1)
                    found = torch.full_like(mean, core[0, 0].numel()), mean, variance
                    moments[number].append(torch.stack(found).flatten(2))
                whole[cells(tile.core, after)] = core
            features += [torch.empty(0)] * (count - 1) + [x := whole]
        return self.joined(features, [joined_statistics(torch.stack(each, 1)) for each in moments])

    def halo(self, numbers: range) -> int:
        """Pixels that the convolutions of these layers reach, in whole cells of the map after them."""
        stride, reach = 1 << numbers.start, 0
        for conv in self.blocks[numbers.start : numbers.stop].modules():
            if isinstance(conv, nn.Conv2d | layers.ScoringConv2d):
                reach += (conv.weight.shape[-1] - 1) // 2 * stride  # kernels of stride 2 for scoring are padded by one
                stride *= conv.stride[0]
        return -(-reach // stride) * stride

    def classify(self, features: Tensor) -> Tensor:
        """Classified feature map (B, C, H, W) -> logits (B,).

        The map of a larger image holds a patch at every cell: all of them are classified at once, (B, rows, columns).
        Padding is then at the border of the image rather than around each patch.
        """
        cells = self.architecture.cells
        if not isinstance(self.head, nn.Linear):
            dense: Tensor = self.head(features).squeeze(1)
            return dense.mean((1, 2)) if dense.shape[-2:] == (2 * cells, 2 * cells) else dense
        if features.shape[-2:] == (cells, cells):
            logits: Tensor = self.head(features.flatten(1))
            return logits.squeeze(1)
        return F.conv2d(features, self.head.weight.view(1, -1, cells, cells), self.head.bias).squeeze(1)


def joined_statistics(moments: Tensor) -> Tensor:
    """Cells, means and variances of tiles, (3, tiles, B, C), as statistics (B, 2 x C) of all cells."""
    size, means, variances = moments
    share = size / size.sum(0)
    mean = (share * means).sum(0)
    variance = (share * (variances + (means - mean).square())).sum(0)
    return torch.cat((mean, torch.log(variance + SMALLEST_VARIANCE)), 1)


@torch.no_grad()
def for_scoring(discriminator: Discriminator) -> Discriminator:
    """A copy of an inverted network for a CPU: faster, and the same to the bit with any number of threads.

    Plain networks are returned as they are.
    """
    if discriminator.architecture.kind == "plain":
        return discriminator
    copy = channels_last(deepcopy(discriminator).eval())
    for parent in list(copy.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Conv2d):
                setattr(parent, name, layers.ScoringConv2d(layer, activate=name in ("stem", "expand", "filter")))
            elif isinstance(layer, nn.Linear):
                setattr(parent, name, layers.ScoringLinear(layer))
        if isinstance(parent, layers.MBConv | layers.InvertedLayer):
            parent.activate = layers.as_it_is
    return copy


class VAEOutput(NamedTuple):
    """Output of the VAE for one batch of real patches and of noise."""

    reconstructed: Tensor  # (B, 3, S, S) in [-1, 1]
    generated: Tensor  # (B, 3, S, S) in [-1, 1]
    mean: Tensor  # (B, latent)
    log_variance: Tensor  # (B, latent)


class VAE(nn.Module):
    """Encoder and decoder of patches; the encoder is the discriminator's body, the decoder its mirror."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        widths = (3, *architecture.hidden)
        self.encoder = nn.ModuleList(
            Block(halving(inputs, outputs), nn.BatchNorm2d(outputs)) for inputs, outputs in pairwise(widths)
        )
        self.to_mean = nn.Linear(architecture.flat, architecture.latent)
        self.to_log_variance = nn.Linear(architecture.flat, architecture.latent)
        self.from_latent = nn.Linear(architecture.latent, architecture.flat)
        mirrored = (*reversed(architecture.hidden), architecture.hidden[0])
        self.decoder = nn.ModuleList(
            Block(layers.doubling(inputs, outputs), nn.BatchNorm2d(outputs)) for inputs, outputs in pairwise(mirrored)
        )
        self.to_pixels = nn.Conv2d(architecture.hidden[0], 3, kernel_size=3, padding=1)
        self.fused_to_pixels: Any = None  # the last convolution for training on a GPU, see `discopatch.model.kernels`

    def forward(self, real: Tensor, latent_noise: Tensor, prior: Tensor) -> VAEOutput:
        """Reconstruction of each real patch and one generated patch per draw of the prior."""
        mean, log_variance = self.encode(real)
        latent = mean + latent_noise * torch.exp(0.5 * log_variance)
        return VAEOutput(self.decode(latent), self.decode(prior), mean, log_variance)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Patches to the mean and log-variance of their latent, two tensors (B, latent)."""
        for block in self.encoder:
            x = block(x).features
        x = x.flatten(1)
        return self.to_mean(x), self.to_log_variance(x)

    def decode(self, latent: Tensor) -> Tensor:
        """Latents (B, latent) to patches (B, 3, S, S) in [-1, 1]."""
        shape = self.architecture
        x = self.from_latent(latent).view(-1, shape.hidden[-1], shape.cells, shape.cells)
        for block in self.decoder:
            x = block(x).features
        if self.fused_to_pixels is not None and self.training:
            return torch.tanh(self.fused_to_pixels(x, self.to_pixels.weight, self.to_pixels.bias))
        return torch.tanh(self.to_pixels(x))


@dataclass(frozen=True)
class Networks:
    """The VAE and its discriminator."""

    vae: VAE
    discriminator: Discriminator

    @classmethod
    def from_seed(cls, architecture: Architecture, seed: int) -> Self:
        """New networks, the same ones for the same seed; the global random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(channels_last(VAE(architecture)), channels_last(Discriminator(architecture)))
