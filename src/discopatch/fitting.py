"""The way of normal images into a detector: seen once, some held out, a few looked at more closely."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.decision.conformal import TooFewImages, calibration_size, images_needed
from discopatch.images import Pixels, Refusal, RefusalReport
from discopatch.model.weights import Weights
from discopatch.scoring import Evidence, Head, Scorer, find_head
from discopatch.scoring.changes import displacements
from discopatch.scoring.regions import Regions
from discopatch.scoring.scorer import Inspected

FEWEST = 30  # normal images in all
FEWEST_TO_FIT = 20
SAMPLE = 16  # normal images that are looked at more closely
CHANGED = 6  # of those, on how many the known changes are tried

Progress = Callable[[], object]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a detector has learnt from normal images."""

    head: Head
    regions: Regions
    calibration: NDArray[np.float64]  # scores of normal images that were held out, in order
    images: int
    refusals: RefusalReport = field(default_factory=RefusalReport)

    @classmethod
    def learn(
        cls, scorer: Scorer, head: str, normal: "Seen", held_out: Evidence, refusals: RefusalReport, *, seed: int
    ) -> Self:
        """The head and the regions from the normal images, the calibration from those that were held out."""
        few = np.stack(list(normal.sample.values()))
        moved = displacements(scorer.inspect_pixels, few[:CHANGED], seed=seed)
        fitted = find_head(head).fit(normal.evidence, moved)
        regions = Regions.fit(scorer, few, seed=seed)
        calibration = np.sort(scorer.scores(fitted, held_out))
        return cls(fitted, regions, calibration, len(normal.evidence.logits), refusals)


@dataclass(frozen=True, eq=False)
class Seen:
    """Normal images after they have passed: the evidence of all, the pixels of a few by their places."""

    evidence: Evidence
    sample: dict[int, Pixels]

    @classmethod
    def gather(
        cls, stream: Iterable[Inspected | Refusal], refusals: RefusalReport, progress: Progress | None, *, seed: int
    ) -> Self:
        """Keeps no more than a few pictures at a time, chosen at random while they pass."""
        rng = np.random.default_rng(seed)
        found: list[Evidence] = []
        sample: dict[int, Pixels] = {}
        for item in stream:
            if isinstance(item, Refusal):
                refusals.add(item)
            else:
                if len(sample) < SAMPLE:
                    sample[len(found)] = item.pixels
                elif (place := int(rng.integers(len(found) + 1))) < SAMPLE:
                    del sample[list(sample)[place]]
                    sample[len(found)] = item.pixels
                found.append(item.evidence)
            if progress is not None:
                progress()
        refusals.accepted += len(found)
        if not found:
            raise refusals.nothing_left()
        return cls(Evidence.concatenate(found), sample)

    def split(self, rate: float, *, seed: int) -> tuple["Seen", Evidence]:
        """The images to fit and those to hold out; the sample is fitted, since more is learnt from it."""
        fitting, held_out = split(len(self.evidence.logits), rate, seed=seed, never_held_out=list(self.sample))
        return Seen(self.evidence.of(fitting), self.sample), self.evidence.of(held_out)


def split(
    images: int, rate: float, *, seed: int, never_held_out: list[int] | None = None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Which images to fit and which to hold out for calibration, in their order."""
    check_enough(images, FEWEST)
    held_out = calibration_size(images, rate, fewest_to_fit=FEWEST_TO_FIT)
    candidates = np.setdiff1d(np.arange(images), never_held_out or [])
    chosen = np.sort(np.random.default_rng(seed).permutation(candidates)[:held_out])
    return np.setdiff1d(np.arange(images), chosen), chosen


def check_enough(images: int, fewest: int) -> None:
    """Below some number nobody can say what is normal."""
    if images < fewest:
        raise TooFewImages(f"{images} normal images; at least {fewest} are needed to know what is normal: add images")


def check_calibration(images: int, rate: float) -> None:
    """Whether a promise can be kept with so many images that were brought to calibrate it."""
    if images < (needed := images_needed(rate)):
        raise TooFewImages(
            f"{images} calibration images; a {rate:.2%} false-alarm rate needs at least {needed}: "
            "add images or raise false_alarm_rate"
        )


def adapted(weights: Weights, pixels: Pixels, *, steps: int, seed: int, device: str) -> Weights:
    """The weights after so many more steps of adversarial training, on these pictures."""
    from discopatch.training.loop import Ending, Habits, train
    from discopatch.training.machine import Machine
    from discopatch.training.recipe import Recipe

    natural, architecture = Recipe.of("natural"), weights.discriminator.architecture
    recipe = Recipe.of(
        "natural",
        architecture=architecture,
        transform=weights.transform,
        images=min(len(pixels), natural.images),
        smallest_scale=max(natural.smallest_scale, architecture.patch_size / weights.transform.size),
        steps=steps,
        seed=seed,
    )
    with TemporaryDirectory(prefix="discopatch-") as folder:
        out = Path(folder)
        machine = Machine(accelerator="cpu" if device == "cpu" else "auto")
        habits = Habits(checkpoint_every=steps, samples_every=steps)
        outcome = train(
            list(pixels), out / "run", recipe, cache=out / "cache", machine=machine, habits=habits, start=weights
        )
        if outcome.ending is not Ending.COMPLETE:
            raise KeyboardInterrupt("adaptation was stopped before its end: nothing was fitted")
        return Weights.load(outcome.weights)
