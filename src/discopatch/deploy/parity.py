"""Whether an export says what its detector says: measured before anything is handed over."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.decision import p_values
from discopatch.decision.conformal import ROUNDING
from discopatch.deploy.engines import Answer, Engine
from discopatch.deploy.references import WANTED, Floats
from discopatch.detector import Detector
from discopatch.images import Pixels
from discopatch.scoring import Scorer
from discopatch.scoring.regions import heatmap, look_at_regions

LIMIT = 1e-3  # of the spread of normal scores
HEAT_LIMIT = 0.01  # in units of heat, standard deviations of normal regions
MOST_AUROC_LOST = 0.005
NOTABLE_SHIFT = 0.1  # of the spread, from which p-values are no longer those that were calibrated
HEATMAPS = 8  # each takes as long as several scores


class ParityError(ValueError):
    """An export that does not agree with its detector."""


@dataclass(frozen=True)
class Parity:
    """How far an export and its detector are apart, in standard deviations of the detector's calibration scores."""

    images: int
    scores: float  # the greatest difference
    shift: float  # the mean difference, export less detector
    p_values: int  # how many differ
    verdicts: int  # how many differ
    heatmaps: int
    heat: float  # the greatest difference in any cell, in units of heat
    auroc: tuple[float, float] | None = None  # of detector and export, where the export is rounded to 8 bits

    def check(self) -> None:
        """Raises ParityError beyond the limits."""
        if self.auroc is None:
            self._check_float()
        elif not self.auroc[0] - self.auroc[1] <= MOST_AUROC_LOST:
            raise ParityError(
                f"in 8 bits the AUROC on corrupted references falls from {self.auroc[0]:.4f} to {self.auroc[1]:.4f}, "
                f"the limit is {MOST_AUROC_LOST:g} less: nothing was written; export without --int8"
            )

    def _check_float(self) -> None:
        if not self.scores <= LIMIT:  # also of NaN
            raise ParityError(
                f"scores of the export differ from the detector's by up to {self.scores:.2g} of the spread of "
                f"normal scores, the limit is {LIMIT:g}: nothing was written; try another --format"
            )
        if not self.heat <= HEAT_LIMIT:
            raise ParityError(
                f"heat of the export differs from the detector's by up to {self.heat:.2g}, the limit is "
                f"{HEAT_LIMIT:g}: nothing was written; try another --format"
            )

    @property
    def words(self) -> str:
        """For people."""
        few = f" ({WANTED} are better)" if self.images < WANTED else ""
        differing = (
            f"{self.p_values} p-values and {self.verdicts} verdicts differ" if self.p_values else "no p-value differs"
        )
        if self.auroc is None:
            return (
                f"on {self.images} reference images{few}, scores agree to {self.scores:.1e} of the spread of normal "
                f"scores (limit {LIMIT:g}), heat agrees to {self.heat:.1e} (limit {HEAT_LIMIT:g}), {differing}"
            )
        return (
            f"on {self.images} reference images{few}, AUROC against corrupted ones is {self.auroc[0]:.4f} before and "
            f"{self.auroc[1]:.4f} after rounding to 8 bits (limit {MOST_AUROC_LOST:g} less), scores move by "
            f"{self.shift:+.3f} of the spread of normal scores on average and by {self.scores:.3f} at most, heat by "
            f"{self.heat:.2f} at most, {differing}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        found: dict[str, Any] = {
            "images": self.images,
            "greatest_difference_in_spreads": self.scores,
            "mean_difference_in_spreads": self.shift,
            "p_values_that_differ": self.p_values,
            "verdicts_that_differ": self.verdicts,
            "heatmaps": self.heatmaps,
            "greatest_difference_of_heat": self.heat,
        }
        if self.auroc is not None:
            found["auroc_of_detector"], found["auroc_of_export"] = self.auroc
        return found


class Original:
    """The detector in torch on a CPU, where an export will run too, whatever device it has otherwise."""

    def __init__(self, detector: Detector) -> None:
        self.fitted, self.false_alarm_rate = detector.fitted, detector.false_alarm_rate
        self.scorer = Scorer(
            detector.loaded_weights,
            patches=detector.patches,
            sampling=detector.sampling,
            seed=detector.seed,
            head=self.fitted.head,
        )

    @property
    def spread(self) -> float:
        """The standard deviation of the calibration scores: what a difference of scores is measured by."""
        found = float(self.fitted.calibration.std())
        if not found > 0:
            raise ParityError("all calibration scores are equal, so that nothing can be compared: fit on more images")
        return found

    def scores(self, pixels: Pixels) -> Floats:
        """(B, size, size, 3) -> (B,)."""
        return self.scorer.score_pixels(pixels)

    def heat(self, picture: Pixels) -> NDArray[np.float32]:
        """(size, size, 3) -> (64, 64)."""
        return heatmap(self.scorer, self.fitted.regions.heat(look_at_regions(self.scorer, picture)))


def measure(
    original: Original, engine: Engine, pixels: Pixels, corrupted: Pixels | None = None, *, calibrated: int
) -> Parity:
    """Both on the same pictures; also on their corrupted twins where those are given.

    `calibrated`: on how many images the export is, which need not be those of the detector.
    """
    theirs, ours = original.scores(pixels), answers(engine, pixels)
    difference = (ours.score - theirs) / original.spread
    looked_at = np.unique(np.linspace(0, len(pixels) - 1, HEATMAPS).round().astype(int))
    p_value, expected = (1 + ours.at_least) / (1 + calibrated), p_values(theirs, original.fitted.calibration)
    rate = original.false_alarm_rate + ROUNDING
    return Parity(
        images=len(pixels),
        scores=float(np.abs(difference).max()),
        shift=float(difference.mean()),
        p_values=int((p_value != expected).sum()),
        verdicts=int(((p_value <= rate) != (expected <= rate)).sum()),
        heatmaps=len(looked_at),
        heat=max(heat_difference(original, engine, pixels[place]) for place in looked_at),
        auroc=None
        if corrupted is None
        else (auroc(theirs, original.scores(corrupted)), auroc(ours.score, answers(engine, corrupted).score)),
    )


def answers(engine: Engine, pixels: Pixels) -> Answer:
    """Each picture alone, as the runtime does it."""
    found = [engine(picture[None]) for picture in pixels]
    return Answer(
        np.concatenate([each.score for each in found]), np.concatenate([each.at_least for each in found]), None
    )


def heat_difference(original: Original, engine: Engine, picture: Pixels) -> float:
    """The greatest in any cell."""
    heat = engine(picture[None], heat=True).heat
    assert heat is not None
    return float(np.abs(heat[0] - original.heat(picture)).max())


def auroc(normal: Floats, corrupted: Floats) -> float:
    """The chance that a corrupted picture scores higher than a normal one; a tie counts one half."""
    above = (corrupted[:, None] > normal).mean()
    return float(above + (corrupted[:, None] == normal).mean() / 2)
