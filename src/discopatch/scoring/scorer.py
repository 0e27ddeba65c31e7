"""Images in, scores out: in order, in constant memory, each score its own image's alone."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch import images
from discopatch.images import Picture, Pixels, Refusal
from discopatch.images.open import DEFAULT_WORKERS
from discopatch.model.weights import Weights
from discopatch.patches import Sampling, cut, scoring_corners, to_unit
from discopatch.scoring.heads import Head, LogitHead


@dataclass(frozen=True, slots=True)
class Score:
    """An image's score; higher means more out-of-distribution."""

    name: str
    score: float


class Scorer:
    """A discriminator with everything that decides a score: which patches, which head, which device.

    All images are cut at the same places, drawn once from `seed`. On a CPU each image passes the network alone, so that
    `batch_size` cannot reach its score; on a GPU a batch passes together, and batch sizes agree to rounding.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        patches: int = 64,
        sampling: Sampling = "random",
        head: Head | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
        batch_size: int = 8,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        self.weights = weights
        self.head = head or LogitHead()
        self.device = torch.device(device)
        self.batch_size = batch_size
        self._discriminator = weights.discriminator.to(self.device).eval()
        self._patch_size = weights.discriminator.architecture.patch_size
        self._corners = scoring_corners(
            sampling, patches, size=weights.transform.size, patch_size=self._patch_size, seed=seed
        ).to(self.device)

    def score(self, source: object, *, workers: int = DEFAULT_WORKERS) -> Iterator[Score | Refusal]:
        """A score, or a refusal with its reason, for every image of the source, in its order."""
        with closing(images.open(source, transform=self.weights.transform, workers=workers)) as stream:
            for batch in in_batches(stream, self.batch_size):
                pixels = [item.pixels for item in batch if isinstance(item, Picture)]
                scores = iter(self.score_pixels(np.stack(pixels)) if pixels else ())
                for item in batch:
                    yield Score(item.name, float(next(scores))) if isinstance(item, Picture) else item

    @torch.inference_mode()
    def score_pixels(self, pixels: Pixels) -> NDArray[np.float64]:
        """(B, size, size, 3) in uint8, already through the transform -> (B,) in float64."""
        pictures = torch.from_numpy(pixels).to(self.device)
        together = len(pictures) if self.device.type == "cuda" else 1
        scores = [self.head.score(self._logits(part)) for part in pictures.split(together)]
        found: NDArray[np.float64] = torch.cat(scores).cpu().numpy()
        return found

    def _logits(self, pictures: Tensor) -> Tensor:
        corners = self._corners.expand(len(pictures), -1, -1)
        patches = to_unit(cut(pictures, corners, self._patch_size))
        logits: Tensor = self._discriminator(patches, len(self._corners))
        return logits.view(len(pictures), -1)


def in_batches(stream: Iterator[Picture | Refusal], size: int) -> Iterator[list[Picture | Refusal]]:
    """Successive items together."""
    while batch := list(islice(stream, size)):
        yield batch
