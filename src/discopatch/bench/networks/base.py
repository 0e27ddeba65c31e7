"""Frozen classifiers of other projects, and the kinds of features that baselines score."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from discopatch.encoders import Encoder, measure_tones
from discopatch.encoders.places import N_LOCAL, join_maps, local_features
from discopatch.errors import ParameterError
from discopatch.images import Pixels
from discopatch.model import channels_last, parameters_digest
from discopatch.model.networks import channel_statistics

Array = NDArray[np.float64]
Floats = NDArray[np.float32]
FeatureDict = Mapping[str, NDArray[np.floating]]  # kind of features -> (images, ...)

# The kinds of features of a network. The first five have the names of `encoders.Kind`.
LOGITS = "logits"  # (images, positions): of a discriminator only
STATISTICS = "statistics"  # (images, 2 x channels): means and log-variances of early and middle blocks
PENULTIMATE = "pooled"  # f, (images, d): the input of the last linear layer, or the mean of the last map
LOCAL = "places"  # (images, rows, columns, d), float16: early and middle blocks, see `reduce_places`
TONES = "tones"  # (images, numbers): brightness, contrast and colours of the pixels
RANK_LAST = "rank last"  # f with the rank-1 part of the last block's feature map removed
RANK_BEFORE = "rank before"  # f with the rank-1 part of the map of the block before the last removed
RANK_WEIGHT = "rank weight"  # as RANK_LAST, with the rank-1 part of the last convolutions' weights removed, too
PERTURBED = "perturbed"  # f of the image after a small change, see `perturb`
EXTREMES = "extremes"  # (images, 2 x activations): the largest input of each activation, and the smallest, negated
DISTRIBUTIONS = "distributions"  # (images, channels, 34), float16: of early and middle maps, see `distributions`
SCENE = "scene statistics"  # (images, blocks, 36 + 1): of the pixels, and how sharp the block is, see `pixels`

IMAGE_SIZE = 256  # pixels a side of the images that every method gets
CROP_SIZE = 224  # pixels a side of the centre crop that classifiers take
GPU_BATCH = 64
MEASURED = 3  # parts of a convolutional network whose statistics are taken
SQUARINGS = 14
EPSILON = 1e-3  # of every BatchNorm that is folded
TINY = 1e-300
MAX_SIDE = 16  # places along a side of an image, since those of all images are stored
MAX_DIMENSIONS = 128  # of a place
LARGEST_HALF = 65504.0  # in float16
GROUPS = 32  # of the sorted values of a channel, of which the means are kept
ACTIVATIONS = (F.relu, F.relu6, F.leaky_relu, F.gelu, F.silu, F.hardswish)
LEAST_SHARE, STEP = 0.05, 0.5  # of AdaSCALE: pixels that change, and by how many standard deviations
PIXEL_DEVIATION = 0.226  # of ImageNet, where pixels are from 0 to 1


class Classifier(NamedTuple):
    """The last, linear layer of a network that was trained on labelled classes: l = W f + b."""

    weight: NDArray[np.floating]  # W, (classes, d)
    bias: NDArray[np.floating]  # b, (classes,)

    def logits(self, features: NDArray[np.floating]) -> Array:
        """(images, d) -> (images, classes), in double precision."""
        return np.asarray(features.astype(np.float64) @ self.weight.T.astype(np.float64) + self.bias)


# The classifier of networks that have none, for the baselines that use none.
NO_CLASSES = Classifier(np.empty((0, 0), np.float32), np.empty(0, np.float32))


class Backbone(ABC):
    """A frozen network of the benchmark: its features, and its last layer where it is a classifier."""

    name: str
    digest: str  # 16 hex digits of its weights
    parameters: int | None  # their number as they were trained, where it is known
    kinds: tuple[str, ...]  # the kinds of features that it has
    classifier: Classifier = NO_CLASSES
    device: torch.device
    layer_sizes: tuple[int, ...]  # the number of statistics of each layer, the first layer first

    @abstractmethod
    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        """(images, size, size, 3) uint8 -> those kinds of features, each image's from itself alone."""


class EncoderBackbone(Backbone):
    """A discriminator, or a network from outside without classes: `make` makes its encoder of some kinds."""

    def __init__(
        self, name: str, digest: str, parameters: int | None, kinds: tuple[str, ...], make: Callable[..., Encoder]
    ) -> None:
        self.name, self.digest, self.parameters, self.kinds = name, digest, parameters, kinds
        self._encoder = cache(lambda wanted: make(kinds=wanted, compare=lambda maps: reduce_places(join_maps(maps))))
        whole = self._encoder(frozenset(kinds))
        self.device, self.layer_sizes = whole.device, whole.layer_sizes

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        found = self._encoder(frozenset(kinds)).extract_pixels(pixels)
        return {kind: getattr(found, kind) for kind in kinds}


class ClassifierNetwork(nn.Module, ABC):
    """The torch module of a classifier."""

    kinds: tuple[str, ...] = (PENULTIMATE, STATISTICS, LOCAL, DISTRIBUTIONS, EXTREMES)
    head: nn.Linear

    @abstractmethod
    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) from 0 to 255 -> (B, 3, H, W), the input of the network."""

    def prepare(self, pixels: Tensor) -> Tensor:
        """(B, 256, 256, 3) uint8 -> the input of the network, which is the normalised centre of the images."""
        margin = (IMAGE_SIZE - CROP_SIZE) // 2
        return self.normalise(pixels[:, margin : margin + CROP_SIZE, margin : margin + CROP_SIZE])

    @abstractmethod
    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The maps (B, C, H, W) whose statistics are taken, and the penultimate features (B, d)."""

    def extract(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Those kinds of features of a prepared input."""
        with (extremes := ActivationExtremes(kinds)):
            maps, penultimate = self.layers(x)
        return {PENULTIMATE: penultimate, **map_features(maps, kinds), **extremes.features()}


class ConvolutionalNetwork(ClassifierNetwork):
    """A classifier whose stages each take the feature map of the one before."""

    kinds: tuple[str, ...] = (*ClassifierNetwork.kinds, RANK_LAST, RANK_BEFORE)
    reduced: Callable[[Tensor], Tensor]  # the last part with the weights of RankWeight, where RANK_WEIGHT is a kind

    @property
    @abstractmethod
    def parts(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        """The parts of the network, one after another; the last is the stage of lowest resolution.

        Statistics and local features are taken after each of the first MEASURED parts.
        """

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        maps = run_parts(self.parts, x)
        return maps[:MEASURED], maps[-1].mean((2, 3))

    def extract(self, x: Tensor, kinds: Collection[str]) -> dict[str, Tensor]:
        """Those kinds of features of a prepared input; only the parts of the network that they need are run."""
        *early, last = self.parts
        deep = set(kinds) - {STATISTICS, LOCAL, DISTRIBUTIONS}
        whole = deep - {RANK_BEFORE, RANK_WEIGHT}
        with (extremes := ActivationExtremes(kinds)):
            maps = run_parts(self.parts if whole else early if deep else early[:MEASURED], x)
        found = map_features(maps[:MEASURED], kinds) | extremes.features()
        if whole:
            found[PENULTIMATE] = maps[-1].mean((2, 3))
        if RANK_LAST in kinds:
            found[RANK_LAST] = remove_rank_one(maps[-1]).mean((2, 3))
        if RANK_BEFORE in kinds:
            found[RANK_BEFORE] = last(remove_rank_one(maps[len(early) - 1])).mean((2, 3))
        if RANK_WEIGHT in kinds:
            found[RANK_WEIGHT] = remove_rank_one(self.reduced(maps[len(early) - 1])).mean((2, 3))
        return found


class ClassifierBackbone(Backbone):
    """A classifier of other projects.

    On a CPU each image passes alone, so that its neighbours do not change one bit. On a GPU images pass in batches,
    and agree up to rounding.
    """

    def __init__(
        self,
        name: str,
        network: ClassifierNetwork,
        *,
        digest: str | None = None,
        parameters: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.name, self.device = name, torch.device(device)
        self.kinds = (*network.kinds, PERTURBED, TONES)
        self.digest = digest or parameters_digest(network)
        self.parameters = parameters or sum(each.numel() for each in network.parameters())
        self.classifier = Classifier(network.head.weight.detach().numpy(), network.head.bias.detach().numpy())
        self.batch_size = 1 if self.device.type == "cpu" else GPU_BATCH
        self.network = channels_last(network.eval().requires_grad_(False)).to(self.device)
        blank = torch.zeros(1, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8, device=self.device)
        with torch.inference_mode():
            maps, _ = self.network.layers(self.network.prepare(blank))
        self.layer_sizes = tuple(2 * one.shape[1] for one in maps)

    @torch.inference_mode()
    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        if pixels.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
            raise ParameterError(
                f"{self.name} takes images of {IMAGE_SIZE} x {IMAGE_SIZE} pixels, not {pixels.shape[1:3]}: choose "
                f"weights whose transform has the size {IMAGE_SIZE}, or leave {self.name} out"
            )
        parts = []
        for batch in torch.from_numpy(pixels.copy()).split(self.batch_size):
            x = self.network.prepare(batch.to(self.device))
            found = self.network.extract(x, set(kinds) - {TONES, PERTURBED})
            if TONES in kinds:
                found[TONES] = measure_tones(batch)
            if PERTURBED in kinds:
                found[PERTURBED] = self.network.layers(perturb(self.network, x))[1]
            parts.append({kind: found[kind].cpu() for kind in kinds})
        return {kind: torch.cat([part[kind] for part in parts]).numpy() for kind in kinds}


def run_parts(parts: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> list[Tensor]:
    """The output of each part, which takes that of the part before."""
    return list(accumulate(parts, lambda output, part: part(output), initial=x))[1:]


class ActivationExtremes(TorchFunctionMode):
    """Context in which EXTREMES are recorded, where they are among the kinds."""

    def __init__(self, kinds: Collection[str]) -> None:
        super().__init__()
        self.activations = ACTIVATIONS if EXTREMES in kinds else ()
        self.found: list[Tensor] = []

    def features(self) -> dict[str, Tensor]:
        """Those of the passes in this context."""
        return {EXTREMES: torch.stack(self.found, dim=1)} if self.found else {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in self.activations:
            values = args[0].flatten(1)
            self.found += [values.amax(1), -values.amin(1)]
        return func(*args, **(kwargs or {}))


@torch.inference_mode(False)
def perturb(network: ClassifierNetwork, x: Tensor) -> Tensor:
    """The input of which the LEAST_SHARE with the smallest gradient of the largest logit moved by STEP along its sign.

    Where other networks divide pixels by their standard deviation, STEP is as much of what this one has for it.
    """
    shades = torch.tensor([0.0, 255.0], device=x.device).view(2, 1, 1, 1).expand(2, CROP_SIZE, CROP_SIZE, 3)
    black, white = network.normalise(shades)[:, :, :1, :1]
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        logits = network.head(network.layers(x)[1])
        (gradient,) = torch.autograd.grad(logits.amax(1).sum(), x)
    sizes = gradient.abs().flatten(1)
    least = sizes.topk(int(LEAST_SHARE * sizes.shape[1]), largest=False).indices
    moved = torch.zeros_like(sizes).scatter_(1, least, 1.0).view_as(gradient)
    found: Tensor = x.detach() + gradient.sign() * moved * (STEP * PIXEL_DEVIATION * (white - black))
    return found


def map_features(maps: Sequence[Tensor], kinds: Collection[str]) -> dict[str, Tensor]:
    """The features that are taken of maps of early and middle layers, as far as they are wanted."""
    found = {STATISTICS: channel_statistics(maps)} if STATISTICS in kinds else {}
    if DISTRIBUTIONS in kinds:
        found[DISTRIBUTIONS] = torch.cat([distributions(one) for one in maps], dim=1)
    return found | ({LOCAL: reduce_places(local_features(maps[-N_LOCAL:]))} if LOCAL in kinds else {})


def distributions(one: Tensor) -> Tensor:
    """A map (B, C, H, W) -> (B, C, 1 + GROUPS + 1): the smallest value, means of the sorted ones, the largest."""
    values = one.flatten(2).sort(dim=2).values
    found = torch.cat([values[..., :1], F.adaptive_avg_pool1d(values, GROUPS), values[..., -1:]], dim=2)
    return found.clamp(-LARGEST_HALF, LARGEST_HALF).half()


def reduce_places(places: Tensor) -> Tensor:
    """Places (B, rows, columns, d) as they are stored: averaged to a small grid, projected, in float16."""
    grid = min(MAX_SIDE, places.shape[1]), min(MAX_SIDE, places.shape[2])
    values = F.adaptive_avg_pool2d(places.permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)
    if values.shape[-1] > MAX_DIMENSIONS:
        values = values @ projection(values.shape[-1], MAX_DIMENSIONS, values.device)
    return values.clamp(-LARGEST_HALF, LARGEST_HALF).half()


@cache
def projection(features: int, dimensions: int, device: torch.device) -> Tensor:
    """(features, dimensions): a random projection with a fixed seed, which nearly preserves ratios of distances."""
    rng = np.random.default_rng([features, dimensions])
    return torch.from_numpy(rng.normal(size=(features, dimensions)) / features**0.5).float().to(device)


def remove_rank_one(maps: Tensor) -> Tensor:
    """(B, C, H, W), each as a matrix of C x HW, less its largest singular component."""
    return matrix_without_rank_one(maps.flatten(2).double()).to(maps.dtype).reshape(maps.shape)


def matrix_without_rank_one(matrix: Tensor) -> Tensor:
    """(B, m, n), each a matrix X in double precision, less its largest singular component.

    That component is X v v', v the top eigenvector of X'X, or u u' X with that of XX': the smaller of the two is
    all that has to be decomposed, and in double precision it loses nothing that float32 had.
    """
    if matrix.shape[1] < matrix.shape[2]:
        top = top_eigenvector(matrix @ matrix.mT)
        component = top @ (top.mT @ matrix)
    else:
        top = top_eigenvector(matrix.mT @ matrix)
        component = (matrix @ top) @ top.mT
    return matrix - component


def top_eigenvector(gram: Tensor) -> Tensor:
    """(B, n, n), positive semidefinite -> (B, n, 1), without a decomposition, which is slow on a GPU.

    Squared again and again the matrix becomes u u', and each of its columns u; a second eigenvalue of 0.999 of the
    first is left with 1e-7.
    """
    for _ in range(SQUARINGS):
        gram = gram / gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].clamp_min(TINY)
        gram = gram @ gram
    largest = gram.diagonal(dim1=-2, dim2=-1).argmax(-1)
    column = gram[torch.arange(len(gram), device=gram.device), :, largest, None]
    norm: Tensor = column.norm(dim=1, keepdim=True).clamp_min(TINY)
    return column / norm


class ConvertedWeights(NamedTuple):
    """The weights of a published package as parameters of our network."""

    tensors: dict[str, Tensor]
    parameters: int  # as they were trained, before anything was folded


def fold_batchnorm(
    weight: Floats, bias: Floats | None, scale: Floats, shift: Floats, mean: Floats, variance: Floats
) -> tuple[Tensor, Tensor]:
    """Weight (out, in, H, W) and bias of one convolution that does what convolution and BatchNorm did.

    scale (w * x + bias - mean) / sqrt(variance + epsilon) + shift, in double precision until the end.
    """
    factor = batchnorm_factor(scale, variance)
    offset = (0 if bias is None else bias.astype(np.float64)) - mean.astype(np.float64)
    folded = weight.astype(np.float64) * factor[:, None, None, None]
    return torch.from_numpy(folded).float(), torch.from_numpy(offset * factor + shift).float()


def batchnorm_factor(scale: Floats, variance: Floats) -> Array:
    """(out,): what BatchNorm multiplies each output of the convolution before it by."""
    return np.asarray(scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + EPSILON))
