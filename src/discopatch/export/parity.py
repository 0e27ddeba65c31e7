"""Whether an export gives what its detector gives: measured before anything is handed over."""

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import ParityError
from discopatch.export.references import N_REFERENCES, References
from discopatch.export.runtime import Runtime
from discopatch.images import Pixels
from discopatch.metrics import auroc
from discopatch.results import Predictions

if TYPE_CHECKING:
    from discopatch.detector import Detector

MAX_DIFFERENCE = 1e-3  # of scores, in standard deviations of normal scores
MAX_COMPONENT_DIFFERENCE = 0.01  # in standard deviations, too: a place that is rounded to the other float16 moves them
MAX_MAP_DIFFERENCE = 0.01  # of anomaly maps, in standard deviations of the scores of normal regions
MAX_AUROC_LOSS = 0.005
NOTABLE_SHIFT = 0.1  # of scores on average, from which p-values are no longer those that were calibrated
N_MAPS = 8  # each takes as long as several scores


@dataclass(frozen=True)
class Parity:
    """How far an export and its detector are apart; scores in standard deviations of the calibration scores."""

    images: int
    max_difference: float  # of scores
    mean_difference: float  # of scores, export less detector
    p_values_changed: int
    predictions_changed: int
    anomaly_maps: int
    max_map_difference: float
    auroc_detector: float | None = None  # against corrupted references, where the export is rounded to 8 bits
    auroc_export: float | None = None
    max_component_difference: float | None = None  # of z-scores, where the head tells of components
    components_changed: int | None = None  # images of which another component significant

    def check(self) -> None:
        """Raises ParityError beyond the limits."""
        if self.auroc_detector is not None and self.auroc_export is not None:
            if not self.auroc_detector - self.auroc_export <= MAX_AUROC_LOSS:  # also of NaN
                more = "give more reference images, or " if self.images < N_REFERENCES else ""
                raise ParityError(
                    f"in 8 bits the AUROC on corrupted references falls from {self.auroc_detector:.4f} to "
                    f"{self.auroc_export:.4f}, the limit is {MAX_AUROC_LOSS:g} less: nothing was written; "
                    f"{more}export without int8"
                )
            return
        for what, found, limit in (
            ("scores, in standard deviations of normal scores,", self.max_difference, MAX_DIFFERENCE),
            ("z-scores of components", self.max_component_difference or 0.0, MAX_COMPONENT_DIFFERENCE),
            ("anomaly maps", self.max_map_difference, MAX_MAP_DIFFERENCE),
        ):
            if not found <= limit:
                raise ParityError(
                    f"{what} of the export differ from the detector's by up to {found:.2g}, the limit is {limit:g}: "
                    "nothing was written; try another format"
                )

    @property
    def text(self) -> str:
        """One sentence for people."""
        few = f" ({N_REFERENCES} are better)" if self.images < N_REFERENCES else ""
        changed = (
            f"{self.p_values_changed} p-values and {self.predictions_changed} predictions differ"
            if self.p_values_changed
            else "no p-value differs"
        )
        components = ""
        if self.auroc_detector is None:
            if self.max_component_difference is not None:
                limit = MAX_COMPONENT_DIFFERENCE
                components = f"components to {self.max_component_difference:.1e} (limit {limit:g}), "
            return (
                f"on {self.images} reference images{few}, scores agree to {self.max_difference:.1e} standard "
                f"deviations of normal scores (limit {MAX_DIFFERENCE:g}), {components}anomaly maps to "
                f"{self.max_map_difference:.1e} (limit {MAX_MAP_DIFFERENCE:g}), {changed}"
            )
        if self.max_component_difference is not None:
            components = (
                f"components by {self.max_component_difference:.2f} at most (in {self.components_changed} images "
                "others speak), "
            )
        return (
            f"on {self.images} reference images{few}, AUROC against corrupted ones is {self.auroc_detector:.4f} before "
            f"and {self.auroc_export:.4f} after rounding to 8 bits (limit {MAX_AUROC_LOSS:g} less), scores move by "
            f"{self.mean_difference:+.3f} standard deviations of normal scores on average and by "
            f"{self.max_difference:.3f} at most, {components}anomaly maps by {self.max_map_difference:.2f} at most, "
            f"{changed}"
        )


def measure_parity(detector: "Detector", runtime: Runtime, references: References) -> Parity:
    """Detector and export on the same images, both one by one on a CPU."""
    detector = copy(detector)
    detector.device = "cpu"  # where exports run
    spread = float(detector.calibration_scores_.std())
    if not spread > 0:
        raise ParityError("all calibration scores are equal, so that nothing can be compared: fit on more images")
    expected, found = (each.predict(list(references.pixels), workers=1) for each in (detector, runtime))
    difference = (found.scores - expected.scores) / spread
    mapped = np.unique(np.linspace(0, len(references.pixels) - 1, N_MAPS).round().astype(int))
    measured: dict[str, Any] = {}
    if references.corrupted is not None:
        corrupted = list(references.corrupted)
        measured["auroc_detector"] = auroc(expected.scores, detector.score(corrupted, workers=1))
        measured["auroc_export"] = auroc(found.scores, runtime.score(corrupted, workers=1))
    if detector.component_names:
        z, z_found = (component_values(each, len(detector.component_names)) for each in (expected, found))
        measured["max_component_difference"] = float(np.abs(z_found - z).max())
        measured["components_changed"] = sum(
            {each.name for each in one.significant} != {each.name for each in other.significant}
            for one, other in zip(expected, found, strict=True)
        )
    return Parity(
        images=len(expected),
        max_difference=float(np.abs(difference).max()),
        mean_difference=float(difference.mean()),
        p_values_changed=int((found.p_values != expected.p_values).sum()),
        predictions_changed=int((found.is_ood != expected.is_ood).sum()),
        anomaly_maps=len(mapped),
        max_map_difference=max(map_difference(detector, runtime, references.pixels[index]) for index in mapped),
        **measured,
    )


def component_values(predictions: Predictions, count: int) -> NDArray[np.float64]:
    """(images, components): the z-scores, NaN where an image was refused."""
    refused = [np.nan] * count
    return np.array([[component.z for component in each.components] or refused for each in predictions], np.float64)


def map_difference(detector: "Detector", runtime: Runtime, image: Pixels) -> float:
    expected, found = (each.explain(image).anomaly_map for each in (detector, runtime))
    return float(np.abs(found - expected).max())
