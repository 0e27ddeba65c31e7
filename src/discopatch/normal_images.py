"""Normal images of a fit: their features, and checks for copies, drift and images that are used twice."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.encoders import Features, PlaceSample
from discopatch.encoders.places import evenly_taken
from discopatch.errors import ParameterError, TooFewImagesError
from discopatch.groups import MANY, pairwise_distances
from discopatch.heads import Head
from discopatch.images import NamedImage, Pixels, Refusal, RefusalReport
from discopatch.metrics import auroc

N_KEPT = 192  # random images whose pixels are kept while others are read
N_PLACES = 2000  # random images whose places are kept
MAX_ORDERED = 1024  # images that are tested for drift, evenly taken
PERMUTATIONS = 999
DRIFT_P_VALUE = 0.01  # share of folders without drift in which drift is reported
NOTABLE_DRIFT = 0.7  # AUROC of the last third against the first, below which a drift does not matter
MAX_COMPARED = 2048  # images of each side that are compared
NEARER = 0.5  # of the distance of normal images from their nearest: below it an image is a near-copy of another

Progress = Callable[[int, int | None], object]  # images done, images in all where that is known


@dataclass(frozen=True, eq=False)
class NormalImages:
    """The features of normal images, and the pixels of a random few by their index among the accepted.

    Places are large: they too are those of some, where the encoder gives them.
    """

    features: Features  # without places
    names: tuple[str, ...]
    digests: tuple[bytes, ...]  # of their pixels
    positions: NDArray[np.intp]  # in the source, refused images counted
    sample: dict[int, Pixels]
    places: dict[int, NDArray[np.floating]]  # (positions, d)
    passed: int  # images of the source, refused ones counted

    @classmethod
    def collect(
        cls,
        stream: Iterable[tuple[NamedImage, Features] | Refusal],
        refusals: RefusalReport,
        progress: Progress | None,
        *,
        seed: int,
        total: int | None = None,
    ) -> Self:
        """Reads the whole stream; no more than a few images are in memory at a time."""
        rng, places_rng = np.random.default_rng(seed), np.random.default_rng([seed, 15])
        found: list[tuple[Features, str, bytes, int]] = []
        sample: dict[int, Pixels] = {}
        places: dict[int, NDArray[np.floating]] = {}
        passed = 0
        for position, item in enumerate(stream):
            if isinstance(item, Refusal):
                refusals.add(item)
            elif not item[1].are_finite:
                refusals.add(Refusal.not_finite(item[0].name))
            else:
                image, features = item
                keep_random(sample, len(found), image.pixels, rng, most=N_KEPT)
                if features.places.size:
                    keep_random(places, len(found), features.places[0], places_rng, most=N_PLACES)
                digest = blake2b(image.pixels.tobytes(), digest_size=16).digest()
                found.append((features.without_places(), image.name, digest, position))
            passed = position + 1
            if progress is not None:
                progress(passed, total)
        refusals.accepted += len(found)
        if not found:
            raise refusals.nothing_left()
        parts, names, digests, positions = zip(*found, strict=True)
        return cls(Features.concatenate(parts), names, digests, np.array(positions), sample, places, passed)

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


def keep_random(kept: dict[int, Any], index: int, value: NDArray[Any], rng: np.random.Generator, *, most: int) -> None:
    """Reservoir sampling: each of the images that pass, of which this one is at `index`, is kept with equal chance.

    A copy is kept: the value may be part of a batch.
    """
    if len(kept) < most:
        kept[index] = value.copy()
    elif (place := int(rng.integers(index + 1))) < most:
        del kept[list(kept)[place]]
        kept[index] = value.copy()


def find_drift(features: Features, head: Head, groups: NDArray[np.intp], *, seed: int) -> str | None:
    """A warning if the last third of the images differs from the first by more than a random order explains.

    The difference of the two thirds' mean statistics is compared with that in random orders, in which the images of a
    group stay together: an exact test. The head measures how much it matters: fitted on two thirds of the first third,
    it scores the rest of it and the last third.
    """
    every = np.unique(np.linspace(0, len(groups) - 1, MAX_ORDERED).astype(int))
    features, groups = features.select(every), groups[every]
    statistics = np.asarray(features.statistics, np.float64)
    if not statistics.shape[1] or np.isclose(statistics, statistics[0]).all():
        return None
    standard = (statistics - statistics.mean(0)) / np.maximum(statistics.std(0), 1e-9)
    rng, third, numbers = np.random.default_rng([seed, 2]), len(groups) // 3, np.unique(groups, return_inverse=True)[1]
    places = [rng.permutation(numbers.max() + 1)[numbers] for _ in range(PERMUTATIONS)]
    orders = np.stack([np.arange(len(groups)), *(np.argsort(place, kind="stable") for place in places)])
    contrast = np.zeros(orders.shape)
    np.put_along_axis(contrast, orders[:, :third], 1, axis=1)
    np.put_along_axis(contrast, orders[:, -third:], -1, axis=1)
    differences = ((contrast @ (standard @ standard.T)) * contrast).sum(1)  # squared lengths
    if (differences >= differences[0] * (1 - 1e-9)).mean() > DRIFT_P_VALUE:
        return None
    first, kept = np.arange(third), np.arange(third) % 3 == 0
    fitted = head.fit(features.select(first[~kept]))
    before, after = fitted.score(features.select(first[kept])), fitted.score(features.select(slice(-third, None)))
    if (separation := auroc(before, after)) < NOTABLE_DRIFT:
        return None
    return (
        "the normal images drift or form several groups: the last third, in the order given, differs from the first "
        f"(AUROC {separation:.2f} of a detector of the first third). The false-alarm rate holds for new images of the "
        "whole range: if images drift, fit on recent ones; if they are of several kinds, fit one detector for each kind"
    )


def check_distinct(digests: Sequence[bytes], names: Sequence[str], *, needed: int) -> str | None:
    """A warning where many images are exact copies; TooFewImagesError where too few different ones are left."""
    counts = Counter(digests)
    copies = len(digests) - len(counts)
    most, times = counts.most_common(1)[0]
    example = names[digests.index(most)]
    if len(counts) < needed and copies:
        raise TooFewImagesError(
            f"{len(digests)} images, but only {len(counts)} different ones ({example} is there {times} times); "
            f"at least {needed} are needed for a fit: add images that are no copies"
        )
    if copies < MANY * len(digests):
        return None
    return (
        f"{copies} of {len(digests)} images are exact copies of others ({example} is there {times} times): "
        "leave the copies out"
    )


def check_not_fitted(held_out: NormalImages, fitted: NormalImages) -> None:
    """Raises ParameterError if images to calibrate on are among those to fit, by their digests or as near-copies."""
    known = set(fitted.digests)
    if same := sum(digest in known for digest in held_out.digests):
        raise ParameterError(
            f"{same} of {len(held_out)} calibration images are also fitted, so that their scores are too low: "
            "give others, or leave calibration out"
        )
    if copies := count_near_copies(held_out.features.statistics, fitted.features.statistics):
        raise ParameterError(
            f"{copies} of {len(held_out)} calibration images are near-copies of fitted ones, so that their scores are "
            "too low: give images of other scenes, or leave calibration out and set groups='auto' (--groups auto)"
        )


def count_near_copies(new: NDArray[np.floating], known: NDArray[np.floating]) -> int:
    """The number of new rows (m, d) that are near-copies of known rows (n, d); 0 if so few occur by chance."""
    known, new = known[:MAX_COMPARED], new[:MAX_COMPARED]
    distances = pairwise_distances(np.concatenate([known, new]))
    np.fill_diagonal(distances, np.inf)
    usual, nearest = np.split(distances[:, : len(known)].min(1), [len(known)])
    if np.median(nearest) < NEARER * np.median(usual):
        return int((nearest < np.median(usual)).sum())
    copies = int((nearest < NEARER * np.quantile(usual, 0.05)).sum())
    return copies if copies >= max(2, 0.05 * len(new)) else 0
