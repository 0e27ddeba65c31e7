"""Normal images of a fit: their features, and checks for copies, drift and images that are used twice."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from shutil import disk_usage
from tempfile import TemporaryFile, gettempdir
from typing import Self
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import Encoder, Features
from discopatch.errors import ParameterError, TooFewImagesError
from discopatch.groups import MANY, pairwise_distances
from discopatch.heads import Head
from discopatch.images import Pixels, Refusal, RefusalReport, Source, Workers
from discopatch.images.cache import Progress as Progress
from discopatch.metrics import auroc

N_KEPT = 2000  # random images whose pixels are kept, in a temporary file
KEPT_BYTES = 2**31, 2**33  # of these pixels at most: on any disk, and where a quarter of the free space is more
MAX_MAP_BYTES = 2**30  # of maps, in another temporary file
MAX_ORDERED = 1024  # images that are tested for drift, evenly taken
PERMUTATIONS = 999
DRIFT_P_VALUE = 0.01  # share of folders without drift in which drift is reported
NOTABLE_DRIFT = 0.7  # AUROC of the last third against the first, below which a drift does not matter
MAX_COMPARED = 2048  # images of each side that are compared
NEARER = 0.5  # of the distance of normal images from their nearest: below it an image is a near-copy of another


@dataclass(frozen=True, eq=False)
class NormalImages:
    """The features of normal images, and the pixels of some by their index among the accepted."""

    features: Features  # without places
    names: tuple[str, ...]
    digests: tuple[bytes, ...]  # of their pixels
    positions: NDArray[np.intp]  # in the source, refused images counted
    pixels: "PixelFile"
    maps: "MapFile"
    passed: int  # images of the source, refused ones counted
    aspects: tuple[float, float]  # smallest and largest ratio of width to height

    @classmethod
    def collect(
        cls,
        encoder: Encoder,
        source: Source,
        refusals: RefusalReport,
        *,
        workers: Workers,
        progress: Progress | None,
        seed: int,
    ) -> Self:
        """Reads the whole source; a few images are in memory at a time."""
        found: list[tuple[Features, str, bytes, int, float]] = []
        pixels, maps, passed = PixelFile(seed, 3 * prod(encoder.transform.largest)), MapFile(source.count), 0
        for position, item in enumerate(encoder.extract(source, workers=workers)):
            if isinstance(item, Refusal):
                refusals.add(item)
            elif not all(np.isfinite(each).all() for each in item[1]):  # the network overflows
                refusals.add(Refusal.not_finite(item[0].name))
            else:
                image, features = item
                pixels.offer(len(found), image.pixels)
                maps.add(features.places)
                digest = digest_of(image.pixels)
                height, width = image.size
                found.append((features.without_places(), image.name, digest, position, width / height))
            passed = position + 1
            if progress is not None:
                progress(passed, source.count)
        refusals.accepted += len(found)
        if not found:
            raise refusals.nothing_left()
        parts, names, digests, positions, ratios = zip(*found, strict=True)
        aspects = min(ratios), max(ratios)
        return cls(Features.concatenate(parts), names, digests, np.array(positions), pixels, maps, passed, aspects)

    def __len__(self) -> int:
        return len(self.positions)


def digest_of(pixels: Pixels) -> bytes:
    return blake2b(pixels.tobytes(), digest_size=16).digest()


class PixelFile:
    """The pixels of random images of a stream, in a temporary file: of each that passes with equal chance."""

    def __init__(self, seed: int, largest: int) -> None:
        """`largest` is the number of bytes of the largest image."""
        self._rng, self._file = np.random.default_rng(seed), TemporaryFile()  # noqa: SIM115
        finalize(self, self._file.close)
        self._kept: dict[int, tuple[int, tuple[int, ...]]] = {}  # by slot, the index of its image and the shape
        most_bytes = int(np.clip(disk_usage(gettempdir()).free // 4, *KEPT_BYTES))
        self._most, self._size = max(1, min(N_KEPT, most_bytes // largest)), largest  # slots, and bytes of one

    def offer(self, index: int, pixels: Pixels) -> None:
        """Keeps the image of that index, perhaps in place of another."""
        slot = len(self._kept) if len(self._kept) < self._most else int(self._rng.integers(index + 1))
        if slot < self._most:
            self._kept[slot] = index, pixels.shape
            self._file.seek(slot * self._size)
            self._file.write(np.ascontiguousarray(pixels).data)

    def among(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows whose pixels are kept."""
        return rows[np.isin(rows, [index for index, _ in self._kept.values()])]

    def read(self, rows: Iterable[int]) -> Iterator[Pixels]:
        """The pixels (H, W, 3) of these images."""
        places = {index: (slot, shape) for slot, (index, shape) in self._kept.items()}
        for row in rows:
            slot, shape = places[int(row)]
            self._file.seek(slot * self._size)
            data = bytearray(self._file.read(int(np.prod(shape))))  # torch needs arrays that can be written
            yield np.frombuffer(data, np.uint8).reshape(shape)


class MapFile:
    """The packed maps of all images of a stream, in a temporary file; none where they are many, large or not given."""

    def __init__(self, total: int | None) -> None:
        """`total` is the number of images, if it is known."""
        self._total, self._ends, self._file = total or 1, [0], TemporaryFile()  # noqa: SIM115
        finalize(self, self._file.close)
        self._most = min(disk_usage(gettempdir()).free // 4, MAX_MAP_BYTES)

    def add(self, packed: NDArray[np.float32]) -> None:
        """Adds the maps (1, 1, n) of the next image."""
        self._ends.append(self._ends[-1] + packed.nbytes)
        if not packed.size or max(self._ends[-1], self._total * packed.nbytes) > self._most:
            self._file.close()
        if self.are_kept:
            self._file.write(packed.data)

    @property
    def are_kept(self) -> bool:
        return not self._file.closed

    def read(self, rows: Iterable[int]) -> Iterator[Tensor]:
        """The packed maps (1, n) of these images."""
        for row in rows:
            self._file.seek(self._ends[int(row)])
            data = bytearray(self._file.read(self._ends[int(row) + 1] - self._ends[int(row)]))
            yield torch.frombuffer(data, dtype=torch.float32)[None]


def find_drift(
    features: Features, head: Head, groups: NDArray[np.intp], *, seed: int, order: str = "in the order given"
) -> str | None:
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
        f"the normal images drift or form several groups: the last third, {order}, differs from the first "
        f"(AUROC {separation:.2f} of a detector of the first third). The false-alarm rate holds for new images of the "
        "whole range: if images drift, fit on recent ones; if they are of several kinds, give their classes (--classes)"
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
