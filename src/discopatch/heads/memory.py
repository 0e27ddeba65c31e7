"""Distances from stored normal images: of places, by a local memory, and of pooled features, by neighbours."""

from typing import ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import map_on_cores
from discopatch.heads.base import Array, Fitted, Shapes

FARTHEST = 8  # positions by which an image is scored
MAX_VECTORS = 10_000  # stored positions
MAX_TOGETHER = {"cpu": 4, "cuda": 32}  # images whose places are compared at once, with 10 MB each
MAX_CANDIDATES, MAX_BLOCK = 50_000, 1_000  # positions that stored ones are chosen from, in all and per block
MAX_BLOCKS = 5  # blocks at once, whose products take 20 MB
SMALLEST_SHARE = 0.01  # of the mean standard deviation, so that a nearly constant dimension does not dominate
SMALLEST_SCALE = 1e-6  # of dimensions that are constant
N_NEIGHBOURS = 5
MAX_BANK = 10_000  # stored images of neighbours
SHORTEST = 1e-12  # length of pooled features that is divided by


class LocalMemory(Fitted):
    """Stored positions of normal images; the score is the mean distance of the few farthest positions from them.

    After PatchCore (Roth et al., Towards Total Recall in Industrial Anomaly Detection, 2022), with bounds on all sizes.
    Distances are those of standardised local features, root mean square over the dimensions.
    """

    shapes: ClassVar[Shapes] = {"mean": ("dimensions",), "scale": ("dimensions",), "vectors": ("vectors", "dimensions")}
    positive = ("scale",)
    # The vectors, which are standardised, in float32; and minus their doubles with their squared lengths,
    # (dimensions + 1, vectors).
    derived = ("bank", "compared")

    @classmethod
    def fit(cls, local: NDArray[np.floating], *, seed: int = 0) -> Self:
        """The memory of normal images, from their local features (images, positions, d)."""
        positions = local.reshape(-1, local.shape[-1])
        order = np.random.default_rng([seed, 11]).permutation(len(positions))[:MAX_CANDIDATES]
        candidates = positions[order].astype(np.float32)
        mean = candidates.mean(0, dtype=np.float64)
        candidates -= mean.astype(np.float32)  # in place: the candidates are most of the memory of a fit
        variance = np.einsum("nd,nd->d", candidates, candidates, dtype=np.float64) / len(candidates)
        scale = np.sqrt(variance + SMALLEST_SHARE**2 * variance.mean() + SMALLEST_SCALE**2)
        candidates /= scale.astype(np.float32)
        return cls.of(mean=mean, scale=scale, vectors=choose_vectors(candidates))

    def derive(self) -> None:
        self.bank = self.vectors.float()
        self.compared = torch.cat((-2 * self.bank.T, self.bank.square().sum(1)[None]))

    def distances(self, local: Tensor) -> Tensor:
        """(B, positions, d) to (B, positions) in float64: the distance of each position from the nearest stored one.

        An exported graph takes all images at once, as its network does.
        """
        if torch.compiler.is_compiling():
            return self._distances(local)
        together = MAX_TOGETHER.get(local.device.type, 4)
        return torch.cat([self._distances(some) for some in local.split(together)])

    def _distances(self, local: Tensor) -> Tensor:
        standard = ((local.double() - self.mean) / self.scale).float()
        # The nearest is found by squared distances without their common term, in one product, then measured without
        # cancellation; `min` is three times as fast as `argmin` on a CPU.
        nearest = (F.pad(standard, (0, 1), value=1.0) @ self.compared).min(-1).indices
        return (standard - self.bank[nearest]).double().square().mean(-1).sqrt()

    def score(self, local: NDArray[np.floating]) -> Array:
        """(images,): one image at a time, so that none depends on others and memory is bounded."""
        return self.score_and_distances(local)[0]

    @torch.inference_mode()
    def score_and_distances(self, local: NDArray[np.floating]) -> tuple[Array, Array]:
        """The scores (images,), and the distances (images, positions) behind them."""
        images = torch.from_numpy(np.ascontiguousarray(local)).to(self.bank.device)
        single = images.split(1)
        on_cpu = self.bank.device.type == "cpu"
        found = map_on_cores(self.distances, single) if on_cpu else [self.distances(image).cpu() for image in single]
        scores = [mean_of_farthest(each).numpy() for each in found]
        return np.concatenate([np.empty(0), *scores]), np.concatenate([np.empty((0, local.shape[1])), *found])


def mean_of_farthest(distances: Tensor) -> Tensor:
    """(B, positions) to (B,)."""
    return distances.topk(min(FARTHEST, distances.shape[1]), dim=1).values.mean(1)


def choose_vectors(candidates: NDArray[np.float32]) -> NDArray[np.float32]:
    """The stored ones of the candidates (n, d), in random order: all, or the centres of each block of them."""
    if len(candidates) <= MAX_VECTORS:
        return candidates
    count, dimensions = -(-len(candidates) // MAX_BLOCK), candidates.shape[1]
    size = len(candidates) // count  # the remainder is left out
    blocks = candidates[: count * size].reshape(count, size, dimensions)
    parts = [blocks[start : start + MAX_BLOCKS] for start in range(0, count, MAX_BLOCKS)]
    chosen = [np.take_along_axis(part, greedy_centres(part, MAX_VECTORS // count)[..., None], 1) for part in parts]
    return np.concatenate(chosen).reshape(-1, dimensions)


def greedy_centres(blocks: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The numbers of `count` rows that cover each block (blocks, n, d), (blocks, count).

    The first row, then each time the row farthest from those chosen, in all blocks at once.
    """
    products, every = blocks @ blocks.swapaxes(1, 2), np.arange(len(blocks))
    halves = np.diagonal(products, axis1=1, axis2=2) / 2
    chosen, distances = np.zeros((len(blocks), count), np.intp), np.full(blocks.shape[:2], np.inf, np.float32)
    for place in range(1, count):
        last = every, chosen[:, place - 1]
        np.minimum(distances, halves - products[last] + halves[last][:, None], out=distances)  # half of the squares
        distances[last] = -np.inf
        chosen[:, place] = distances.argmax(1)
    return chosen


class Neighbours(Fitted):
    """The distance of pooled features, scaled to length 1, from the k-th nearest of normal images.

    After Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022, with few neighbours, since there
    are few normal images.
    """

    shapes: ClassVar[Shapes] = {"bank": ("images", "channels")}  # of length 1
    derived = ("squares",)  # (images,), their squared lengths, 1 except for rounding

    @classmethod
    def fit(cls, pooled: NDArray[np.floating], *, seed: int = 0) -> Self:
        """From pooled features (images, channels), of at most `MAX_BANK` random images."""
        drawn = np.sort(np.random.default_rng([seed, 12]).permutation(len(pooled))[:MAX_BANK])
        return cls.of(bank=unit_length(torch.from_numpy(pooled[drawn])).float().numpy())

    def derive(self) -> None:
        self.squares = self.bank.square().sum(1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, channels) to (B,) in float64."""
        units, bank, count = unit_length(pooled), self.bank.double(), min(N_NEIGHBOURS, len(self.bank))
        # The nearest is found by squared distances without their common term, then measured without cancellation.
        squares = self.squares - 2 * units @ bank.T
        nearest = squares.topk(count, dim=1, largest=False).indices[:, -1]
        return (units - bank[nearest]).square().sum(1).sqrt()


def unit_length(pooled: Tensor) -> Tensor:
    values = pooled.double()
    lengths: Tensor = values.norm(dim=1, keepdim=True)
    return values / lengths.clamp(min=SHORTEST)
