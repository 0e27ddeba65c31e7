"""The normal images of a fit as they are read: their features, names and digests, and the pixels of a few."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Extracted, Features
from discopatch.images import Pixels, Refusal, RefusalReport

N_KEPT = 192  # random images whose pixels are kept while others are read

Progress = Callable[[int, int | None], object]  # images done, images in all where that is known


@dataclass(frozen=True, eq=False)
class NormalImages:
    """The features of normal images, and the pixels of a random few by their index among the accepted."""

    features: Features
    names: list[str]
    digests: list[bytes]  # of their pixels
    positions: NDArray[np.intp]  # in the source, refused images counted
    sample: dict[int, Pixels]
    passed: int  # images of the source, refused ones counted

    @classmethod
    def collect(
        cls,
        stream: Iterable[Extracted | Refusal],
        refusals: RefusalReport,
        progress: Progress | None,
        *,
        seed: int,
        total: int | None = None,
    ) -> Self:
        """Reads the whole stream; no more than a few images are in memory at a time."""
        rng = np.random.default_rng(seed)
        found: list[Features] = []
        names: list[str] = []
        digests: list[bytes] = []
        positions: list[int] = []
        sample: dict[int, Pixels] = {}
        passed = 0
        for position, item in enumerate(stream):
            passed += 1
            if isinstance(item, Refusal):
                refusals.add(item)
            elif not item.features.are_finite:
                refusals.add(Refusal.not_finite(item.name))
            else:
                keep_random(sample, len(found), item.pixels, rng)
                found.append(item.features)
                names.append(item.name)
                digests.append(blake2b(item.pixels.tobytes(), digest_size=16).digest())
                positions.append(position)
            if progress is not None:
                progress(passed, total)
        refusals.accepted += len(found)
        if not found:
            raise refusals.nothing_left()
        return cls(Features.concatenate(found), names, digests, np.array(positions), sample, passed)

    def __len__(self) -> int:
        return len(self.positions)


def keep_random(sample: dict[int, Pixels], index: int, pixels: Pixels, rng: np.random.Generator) -> None:
    """Reservoir sampling: each of the images that pass, of which this one is at `index`, is kept with equal chance."""
    if len(sample) < N_KEPT:
        sample[index] = pixels
    elif (place := int(rng.integers(index + 1))) < N_KEPT:
        del sample[list(sample)[place]]
        sample[index] = pixels
