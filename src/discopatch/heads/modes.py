"""Modes: what a detector remembers of images that were accepted as normal after its fit.

A score becomes the smallest of the score itself and one for each mode, in which the image is compared with the accepted
image instead of the mean of normal images. So accepting images raises no score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import Features
from discopatch.heads.base import Array, Shapes, read_tensors
from discopatch.heads.memory import unit_length
from discopatch.heads.places import PlaceModel, cover, window_means
from discopatch.schema import Digest, Name, Positive

MAX_PLACES, MAX_IMAGE_PLACES = 512, 64  # unusual places of a mode, and of one image of it
MAX_POOLED = 500  # pooled features of a mode
SHAPES: Shapes = {
    "logit": (),
    "statistics": ("statistics",),
    "tones": ("tones",),
    "pooled": ("images", "channels"),
    "places": ("places", "dimensions"),
}


@dataclass(frozen=True)
class Accepted:
    """An image that was accepted, or a folder of new normal images by which a detector was updated."""

    name: Name
    digest: Digest  # of the pixels
    time: str  # in ISO 8601
    images: Positive = 1

    @property
    def is_update(self) -> bool:
        return self.images > 1


@dataclass(frozen=True, eq=False)
class Mode:
    """The mean features of accepted images, their pooled features, and their unusual places."""

    source: Accepted
    logit: Array  # ()
    statistics: NDArray[np.floating]
    tones: NDArray[np.floating]
    pooled: NDArray[np.floating]  # (images, channels), of length 1
    places: NDArray[np.floating]  # (places, dimensions)

    @classmethod
    def of(cls, source: Accepted, features: Features, places: Sequence[NDArray[np.float32]], *, seed: int = 0) -> Self:
        """The mode of some images with these features, of some of which the `unusual_places` are given."""
        drawn = np.sort(np.random.default_rng([seed, 17]).permutation(len(features.pooled))[:MAX_POOLED])
        return cls(
            source,
            np.asarray(features.logits.mean() if features.logits.size else 0.0, np.float64),
            features.statistics.mean(0, dtype=np.float64),
            features.tones.mean(0, dtype=np.float64),
            unit_length(torch.from_numpy(features.pooled[drawn])).numpy(),
            cover(np.concatenate(places), MAX_PLACES),
        )

    def to_tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.array(getattr(self, name), np.float64)) for name in SHAPES}

    @classmethod
    def from_tensors(cls, source: Accepted, tensors: dict[str, Tensor]) -> Self:
        return cls(source, **read_tensors("an accepted image", tensors, SHAPES))


@torch.inference_mode()
def unusual_places(model: PlaceModel, places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Places (n, dimensions) of an image (rows, columns, dimensions) whose z-score few places of normal images have."""
    z = model([torch.from_numpy(places)[None].permute(0, 3, 1, 2)])
    unusual = torch.maximum(z, window_means(z, 3))[0].numpy() > model.level.item()
    return cover(places[unusual], MAX_IMAGE_PLACES)
