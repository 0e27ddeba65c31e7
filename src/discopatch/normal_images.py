"""The normal images of a fit: their features, names and digests, and the pixels of a few."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Extracted, Features, PlaceSample
from discopatch.encoders.places import evenly_taken
from discopatch.images import Pixels, Refusal, RefusalReport

N_KEPT = 192  # random images whose pixels are kept while others are read
N_PLACES = 2000  # random images whose places are kept

T = TypeVar("T", bound=np.generic)
Progress = Callable[[int, int | None], object]  # images done, images in all where that is known


@dataclass(frozen=True, eq=False)
class NormalImages:
    """The features of normal images, and the pixels of a random few by their index among the accepted.

    Places are large: they too are those of some, where the encoder gives them.
    """

    features: Features  # without places
    names: list[str]
    digests: list[bytes]  # of their pixels
    positions: NDArray[np.intp]  # in the source, refused images counted
    sample: dict[int, Pixels]
    places: dict[int, NDArray[np.floating]]  # (positions, d)
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
        rng, places_rng = np.random.default_rng(seed), np.random.default_rng([seed, 15])
        found: list[Features] = []
        names: list[str] = []
        digests: list[bytes] = []
        positions: list[int] = []
        sample: dict[int, Pixels] = {}
        places: dict[int, NDArray[np.floating]] = {}
        passed = 0
        for position, item in enumerate(stream):
            passed += 1
            if isinstance(item, Refusal):
                refusals.add(item)
            elif not item.features.are_finite:
                refusals.add(Refusal.not_finite(item.name))
            else:
                keep_random(sample, len(found), item.pixels, rng, most=N_KEPT)
                if item.features.places.size:
                    keep_random(places, len(found), item.features.places[0], places_rng, most=N_PLACES)
                found.append(item.features.without_places())
                names.append(item.name)
                digests.append(blake2b(item.pixels.tobytes(), digest_size=16).digest())
                positions.append(position)
            if progress is not None:
                progress(passed, total)
        refusals.accepted += len(found)
        if not found:
            raise refusals.nothing_left()
        return cls(Features.concatenate(found), names, digests, np.array(positions), sample, places, passed)

    def __len__(self) -> int:
        return len(self.positions)

    def with_places(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows whose places are kept."""
        return rows[np.isin(rows, list(self.places))]

    def some_places(self, rows: NDArray[np.intp], *, most: int) -> PlaceSample:
        """The kept places of the rows, of at most `most` images, evenly taken; counted in `rows`."""
        kept = np.flatnonzero(np.isin(rows, list(self.places)))
        found = kept[evenly_taken(len(kept), most)]
        values = [self.places[index] for index in rows[found].tolist()]
        return PlaceSample(found, np.stack(values) if values else np.empty((0, 0, 0), np.float16))

    def select(self, rows: NDArray[np.intp], *, places: bool) -> Features:
        """The features of these rows, with their places if `places`."""
        found = self.features.select(rows)
        return Features(*found[:3], self.some_places(rows, most=len(rows)).values) if places else found


def keep_random(
    kept: dict[int, NDArray[T]], index: int, value: NDArray[T], rng: np.random.Generator, *, most: int
) -> None:
    """Reservoir sampling: each of the images that pass, of which this one is at `index`, is kept with equal chance.

    A copy is kept: the value may be part of a batch.
    """
    if len(kept) < most:
        kept[index] = value.copy()
    elif (place := int(rng.integers(index + 1))) < most:
        del kept[list(kept)[place]]
        kept[index] = value.copy()
