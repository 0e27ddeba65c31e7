"""Several encoders side by side, as one."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.encoders.base import Encoder, Features, FeatureSizes
from discopatch.encoders.network import MAX_STATISTICS
from discopatch.encoders.places import local_features, place_size
from discopatch.errors import ParameterError
from discopatch.images import Pixels, check_same_transform


class JoinedEncoder(Encoder):
    """Encoders of the same images: their features stand side by side.

    Logits are those of the one that has some. Pooled features are divided by their length, encoder by encoder, so that
    all count alike in a distance; places are brought to one grid, and to as many dimensions as those of one encoder.
    Early and deep layers are not told apart: all count as early.
    """

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        first, *others = self.encoders = tuple(encoders)
        for each in others:
            check_same_transform(first.transform, each.transform)
        self.transform, self.device, self.batch_size = first.transform, first.device, first.batch_size
        self.patch_size, self.limits = first.patch_size, first.limits
        self.kinds = first.kinds.union(*(each.kinds for each in others))
        if (total := sum(size for each in encoders for size in each.layer_sizes)) > MAX_STATISTICS:
            raise ParameterError(f"{total:,} statistics of an image, and {MAX_STATISTICS:,} are most: leave one out")

    def start(self, pixels: Pixels | torch.Tensor) -> Callable[[], Features]:
        started = [each.start(pixels) for each in self.encoders]
        return lambda: join([later() for later in started])

    def extract_pixels(self, pixels: Pixels) -> Features:
        return join([each.extract_pixels(pixels) for each in self.encoders])

    def extract_regions(self, pixels: Pixels, count: int, chosen: NDArray[np.intp] | None = None) -> Features:
        return join([each.extract_regions(pixels, count, chosen) for each in self.encoders])


def join(parts: Sequence[Features]) -> Features:
    """The features of the same images by several encoders, side by side."""
    return Features(
        np.concatenate([part.logits for part in parts], 1),
        np.concatenate([part.statistics for part in parts], 1),
        np.concatenate([of_unit_length(part.pooled) for part in parts], 1),
        join_places([part.places for part in parts]),
    )


def joined_sizes(parts: Sequence[FeatureSizes]) -> FeatureSizes:
    """How many features there are of an image, from those of each encoder."""
    places = [part.places for part in parts if part.places]
    if len(parts) > 1 and places:
        places = [place_size(places)]
    return FeatureSizes(sum(part.statistics for part in parts), sum(part.pooled for part in parts), sum(places))


def of_unit_length(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(images, d), each divided by its length; zeros stay."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return (values / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def join_places(parts: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
    """Places (images, positions, d) of each encoder that has some, on square grids, as those of one."""
    maps = []
    for part in parts:
        if part.shape[1]:
            side = round(part.shape[1] ** 0.5)
            maps.append(torch.from_numpy(part).float().mT.unflatten(2, (side, side)))
    if not maps:
        return parts[0]
    found: NDArray[np.floating] = local_features(maps).numpy()
    return found
