"""Calibration checks: false alarms on random splits, fits on few images, the effect of storage.

python studies/calibration.py --data FOLDER            # docs/results/calibration.json; a minute on a GPU
python studies/calibration.py --data FOLDER --quick    # a trial run: minutes on a CPU

FOLDER holds natural/train-*.tar, natural/test.tar and ood/NAME.tar.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from common import compared_heads
from discopatch.bench.dataset import (
    PART,
    CorruptionPool,
    ImageSet,
    check_available,
    list_files,
    sample_files,
    shuffled,
)
from discopatch.bench.preprocessing import matched
from discopatch.bench.suites import natural_suite, solar_suite
from discopatch.bench.summary import Estimate, describe_set, estimate_auroc, provenance
from discopatch.calibration import alarms_allowed, images_needed, split_images, threshold
from discopatch.corruptions import CORRUPTIONS
from discopatch.encoders import DiscriminatorEncoder, Features, Kind
from discopatch.errors import TooFewImagesError
from discopatch.fitting import MIN_FIT_IMAGES, N_PROBED, N_SAMPLED
from discopatch.heads import CombinedHead, ComponentsHead, Head, ProbeShifts, measure_shifts
from discopatch.heads.trials import Trials, make_trials
from discopatch.metrics import RESAMPLES, draw_resamples
from discopatch.model import Weights
from discopatch.pretrained import load_pretrained
from discopatch.utils import write_json

CONFIDENCE = 0.99

Index = NDArray[np.intp]
Scores = Mapping[str, NDArray[np.float64]]  # by head


@dataclass(frozen=True, eq=False)
class Split:
    """Which images to fit on, which to calibrate with, which to test."""

    fit: Index
    calibration: Index
    test: Index


def random_splits(
    images: int, *, splits: int, calibration: int, fit: int = 0, always_fit: Sequence[int] = (), seed: int
) -> list[Split]:
    """Each a new random order of the images; those in `always_fit` are fitted in all of them, the rest is tested."""
    always = np.asarray(always_fit, np.intp)
    others = np.setdiff1d(np.arange(images), always)
    found = []
    for number in range(splits):
        order = np.random.default_rng([seed, number]).permutation(others)
        drawn, rest = np.split(order, [fit - len(always)]) if fit else (order[:0], order)
        fitted = np.sort(np.concatenate([always, drawn])) if fit else drawn
        found.append(Split(fitted, rest[:calibration], rest[calibration:]))
    return found


@dataclass(frozen=True, eq=False)
class Changes:
    """What known and made-up changes do to the first images, from which heads learn beside the images themselves."""

    shifts: ProbeShifts
    trials: Trials
    layer_sizes: tuple[int, ...]

    def fit_heads(self, features: Features, fitted: Index) -> dict[str, Head]:
        """All heads, fitted on those images, in ascending order; of the trials those count that are made of them."""
        own = np.isin(self.trials.rows, fitted)
        rows = np.searchsorted(fitted, self.trials.rows[own])
        trials = Trials(self.trials.features.select(own), rows, self.trials.of_place[own], self.trials.maxima[own])
        chosen = features.select(fitted)
        components = ComponentsHead(layer_sizes=self.layer_sizes, trials=trials).fit(chosen, self.shifts)
        return {"components": components, **compared_heads(CombinedHead().fit(chosen, self.shifts))}


def fitted_scores(features: Features, changes: Changes, split: Split) -> Scores:
    """The scores of all images by heads that were fitted on those of the split alone."""
    return score_all(features, changes.fit_heads(features, split.fit))


def score_all(features: Features, heads: Mapping[str, Head]) -> Scores:
    return {name: head.score(features) for name, head in heads.items()}


def count_alarms(scores: NDArray[np.float64], split: Split, rate: float) -> int:
    """How many of the tested images lie above the threshold that the calibration images set."""
    return int(np.count_nonzero(scores[split.test] > threshold(scores[split.calibration], rate)))


def conformal_range(tests: int, calibration: int, rate: float, *, splits: int) -> tuple[float, float]:
    """Between which shares of alarms of all splits 99 in 100 would lie.

    Beta-binomial, summed over splits; exact for random splits without ties, as only the order of the scores enters.
    """
    from scipy.stats import betabinom

    allowed = alarms_allowed(calibration, rate)
    once = betabinom.pmf(np.arange(tests + 1), tests, allowed, calibration + 1 - allowed)
    chances = np.ones(1)
    for _ in range(splits):
        chances = np.convolve(chances, once)
    low, high = np.searchsorted(np.cumsum(chances), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low / (tests * splits)), float(min(high, tests * splits) / (tests * splits))


def check_rates(scores: Sequence[Scores], splits: Sequence[Split], rates: Sequence[float]) -> dict[str, Any]:
    """By head and by each rate for which there are enough calibration images; each split has scores of its own."""
    calibration, tests = len(splits[0].calibration), len(splits[0].test)
    if tests < 1:
        raise TooFewImagesError(f"no images are left to test beside {calibration} to calibrate with: add images")

    def check(head: str, rate: float) -> dict[str, Any]:
        counts = [count_alarms(each[head], split, rate) for each, split in zip(scores, splits, strict=True)]
        within = conformal_range(tests, calibration, rate, splits=len(counts))
        shares = {"pooled": sum(counts) / (tests * len(counts)), "pooled_conformal": within}
        return {"promised": rate, "calibration": calibration, "tests": tests, "alarms": counts, **shares}

    possible = [rate for rate in rates if calibration >= images_needed(rate)]
    return {head: {str(rate): check(head, rate) for rate in possible} for head in scores[0]}


Results = dict[str, Any]
Section = tuple[str, Results]  # its name and its figures, to be joined with those that are there

FORMAT = 1
KINDS: tuple[Kind, ...] = ("logits", "statistics", "pooled")  # all but places, which would be the largest
FIT_SIZE_RATE = 0.1  # asks for few calibration images, so that the smallest fits are allowed


@dataclass(frozen=True)
class Sizes:
    """How many of everything; the defaults are those of docs/calibration.md."""

    seed: int = 0
    rates: tuple[float, ...] = (0.01, 0.05)
    splits: int = 10
    split_fit: int = 401
    split_calibration: int = 199
    cells: int | None = None  # solar cells to fit on and to split, at most so many
    fit_sizes: tuple[int, ...] = (30, 60, 120, 300, 600)
    corrupted: int = 100  # solar cells, under each corruption
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severity: int = 3
    fit_photos: int = 2000
    other: int | None = None  # test photos, at most so many
    few: dict[str, int] = field(  # sets of a hundred images or so, by how many of them are fitted
        default_factory=lambda: {"chest-xray": 41, "brain-mri": 61}
    )
    resamples: int = RESAMPLES

    @classmethod
    def quick(cls) -> Self:
        """Few of everything: to see it run, not to be quoted."""
        return cls(
            splits=4,
            split_fit=30,
            split_calibration=99,
            cells=150,
            fit_sizes=(30, 60),
            corrupted=8,
            corruptions=("gaussian_noise", "contrast"),
            fit_photos=30,
            other=8,
            resamples=200,
        )


@dataclass(eq=False)
class FeatureReader:
    """Features of image sets in one dense pass, as a detector has them; the pool prepares the next images meanwhile."""

    weights: Weights
    pool: CorruptionPool
    device: str = "auto"
    seed: int = 0
    data: Results = field(default_factory=dict)  # what each set consists of

    def __post_init__(self) -> None:
        self.encoder = DiscriminatorEncoder(self.weights, device=self.device, batch_size=PART, kinds=KINDS)

    def extract(self, *sets: ImageSet) -> list[Features]:
        """The features of each set; all sets are one stream, so that no process waits while one of them ends."""
        for images in sets:
            self.data[images.name] = describe_set(images)
        parts = [(place, part) for place, images in enumerate(sets) for part in images.parts(PART)]
        found: list[list[Features]] = [[] for _ in sets]
        for (place, _), pixels in zip(parts, self.pool.stream(part.load for _, part in parts), strict=True):
            found[place].append(self.encoder.extract_pixels(pixels))
        return [Features.concatenate(each) for each in found]

    def changes(self, images: ImageSet) -> Changes:
        """What changes do to the first few images."""
        samples = next(images.parts(N_SAMPLED)).load()
        return Changes(
            measure_shifts(self.encoder.extract_pixels, samples[:N_PROBED], seed=self.seed),
            make_trials(self.encoder.extract_each, list(samples), np.arange(len(samples)), seed=self.seed),
            self.encoder.layer_sizes,
        )


def run_checks(reader: FeatureReader, sizes: Sizes, *, data: Path, solar: Path | None) -> Iterator[Results]:
    """The results, ever more of them, so that what is done can be stored at once.

    `data` holds natural/ and ood/; without a folder of solar cells those of the installed elpv-dataset are taken.
    """
    start = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    results: Results = {"format": FORMAT, "made": {}, "plan": asdict(sizes), "data": reader.data}
    sections = (
        check_cells(reader, sizes, solar),
        check_photos(reader, sizes, data),
        *(check_few(reader, sizes, data / "ood" / f"{name}.tar", fit=fit) for name, fit in sizes.few.items()),
    )
    for name, section in chain(*sections):
        results[name] = results.get(name, {}) | section
        results["made"] = provenance(
            reader.weights,
            seeds=(sizes.seed,),
            resamples=sizes.resamples,
            device=reader.encoder.device,
            seconds=time.perf_counter() - start,
        )
        yield results


def check_cells(reader: FeatureReader, sizes: Sizes, folder: Path | None) -> Iterator[Section]:
    """Solar cells without a defect; no cell passes the network twice, however often a head is fitted."""
    suite = solar_suite(folder, {}, test=sizes.corrupted, seed=sizes.seed)
    protocol = matched(reader.weights.transform, suite.stored)
    fit = ImageSet("cells to fit", suite.fit[: sizes.cells], protocol.fit)
    test = ImageSet("cells to test", suite.test, protocol.normal)
    corrupted = [
        ImageSet(f"{name}/{sizes.severity}", suite.test, protocol.corrupted(name, sizes.severity))
        for name in sizes.corruptions
    ]
    changes = reader.changes(fit)
    normal, tested = reader.extract(fit, test)
    together = Features.concatenate([normal, tested])
    alarms = alarms_of_fits(
        reader, sizes, together, changes, fit=sizes.split_fit, calibration=sizes.split_calibration, name="cells"
    )
    yield "false alarms", {"solar": alarms}
    yield "fit size", fit_sizes(sizes, normal, changes, tested, reader.extract(*corrupted))


def check_few(reader: FeatureReader, sizes: Sizes, shard: Path, *, fit: int) -> Iterator[Section]:
    """Few images: a third of those that are not fitted is tested, the others calibrate."""
    files = tuple(shuffled(list_files(shard), seed=sizes.seed))
    images = ImageSet(shard.stem, files, (reader.weights.transform,))
    changes, (features,) = reader.changes(images), reader.extract(images)
    calibration = (len(files) - fit) * 2 // 3
    alarms = alarms_of_fits(reader, sizes, features, changes, fit=fit, calibration=calibration, name=shard.stem)
    yield "false alarms", {shard.stem: alarms}


def alarms_of_fits(
    reader: FeatureReader, sizes: Sizes, features: Features, changes: Changes, *, fit: int, calibration: int, name: str
) -> Results:
    """False alarms of heads that are fitted anew in each of the splits."""
    # The few images that the probes are tried on are fitted in every split, as a detector does it.
    splits = random_splits(
        len(features.logits),
        splits=sizes.splits,
        fit=fit,
        calibration=calibration,
        always_fit=range(N_PROBED),
        seed=sizes.seed,
    )
    scores = list(reader.pool.stream(partial(fitted_scores, features, changes, split) for split in splits))
    return check_rates(scores, splits, sizes.rates)


def fit_sizes(
    sizes: Sizes, normal: Features, changes: Changes, tested: Features, corrupted: Sequence[Features]
) -> Results:
    """Mean AUROC over corruptions, by how many images were given to fit, calibration included."""
    drawn = draw_resamples(len(tested.logits), seed=sizes.seed, name="test", resamples=sizes.resamples)
    found: Results = {}
    for size in (each for each in sizes.fit_sizes if each <= len(normal.logits)):
        fitting, _ = split_images(np.arange(size), FIT_SIZE_RATE, seed=sizes.seed, min_fit=MIN_FIT_IMAGES)
        heads = changes.fit_heads(normal, np.sort(fitting))
        clean, shifted = score_all(tested, heads), [score_all(each, heads) for each in corrupted]
        found[str(size)] = {"fitted": len(fitting)}
        for head in heads:
            estimates = [estimate_auroc(clean[head], each[head], (drawn, drawn)) for each in shifted]
            found[str(size)][head] = Estimate.mean(estimates).rounded()
    return {"severity": sizes.severity, "corruptions": len(corrupted), "test": len(tested.logits), "sizes": found}


def check_photos(reader: FeatureReader, sizes: Sizes, root: Path) -> Iterator[Section]:
    """Photos: false alarms of one head that is calibrated anew, and the effect of storage on its score.

    The photos to fit on lie in files of the transform's size, so the preprocessing of all others ends in such a file
    too, except where photos are scored as they come.
    """
    suite, transform = natural_suite(root), reader.weights.transform
    check_available("photos to fit on", len(suite.fit), sizes.fit_photos)
    protocol = matched(transform, suite.stored)
    fit = ImageSet("photos to fit", tuple(shuffled(suite.fit, seed=sizes.seed, count=sizes.fit_photos)), protocol.fit)
    test = ImageSet("photos to test", sample_files(suite.test, sizes.other), protocol.normal)
    bare = ImageSet("photos to test, as they come", test.files, (transform,))
    changes = reader.changes(fit)
    fitted, tested, as_they_come = reader.extract(fit, test, bare)
    heads = changes.fit_heads(fitted, np.arange(len(fitted.logits)))
    normal = score_all(tested, heads)
    calibration = min(sizes.split_calibration, len(test) // 2)
    splits = random_splits(len(test), splits=sizes.splits, calibration=calibration, seed=sizes.seed)
    yield "false alarms", {"natural": check_rates([normal] * len(splits), splits, sizes.rates)}
    shifted, images = score_all(as_they_come, heads), len(test)
    drawn = draw_resamples(images, seed=sizes.seed, name="photos to test", resamples=sizes.resamples)
    areas = {head: estimate_auroc(normal[head], shifted[head], (drawn, drawn)).rounded() for head in heads}
    yield "storage", {"stored": suite.stored.quality, "as they come": areas}


# What needs torch is imported further down: the processes that prepare images import this file too.


def main(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    solar: Annotated[Path | None, typer.Option(help="Folder with labels.csv. Default: elpv-dataset.")] = None,
    out: Path = Path("docs/results/calibration.json"),
    quick: Annotated[bool, typer.Option("--quick", help="Few images, for a trial run.")] = False,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare images.", min=1)] = os.cpu_count() or 1,
) -> None:
    """Measures everything and writes one JSON, again after each section."""
    sizes = Sizes.quick() if quick else Sizes()
    with CorruptionPool(workers, frost="frost" in sizes.corruptions) as pool:
        reader = FeatureReader(load_pretrained(), pool, device, sizes.seed)
        for results in run_checks(reader, sizes, data=data, solar=solar):
            write_json(out, results)
            print(f"{out}: {', '.join(results)}", flush=True)


if __name__ == "__main__":
    typer.run(main)
