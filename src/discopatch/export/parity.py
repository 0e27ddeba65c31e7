"""Comparison of an export with its detector, before the export is written, and the images for it."""

from collections.abc import Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.corruptions import CORRUPTIONS, corrupt
from discopatch.errors import ExportError, NoImagesError
from discopatch.images import (
    DEFAULT_LIMITS,
    Limits,
    NamedImage,
    Pixels,
    RefusalReport,
    Transform,
    Workers,
    accepted,
    read_images,
)
from discopatch.images.transform import Shape
from discopatch.metrics import auroc
from discopatch.results import FittedDetector, Predictions

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime

MAX_DIFFERENCE = 1e-3  # of scores, in standard deviations of the calibration scores
MAX_COMPONENT_DIFFERENCE = 0.01  # of z-scores
MAX_MAP_DIFFERENCE = 0.01  # of anomaly maps, whose 1 few places of normal images exceed
MAX_AUROC_LOSS = 0.005  # of 8 bits
NOTABLE_SHIFT = 0.1  # of scores on average, above which p-values need a new calibration
N_MAPS = 8  # images whose anomaly maps are compared
N_REFERENCES, MIN_REFERENCES = 64, 8
TUNING_EVERY = 3  # for 8 bits every third image sets the ranges, and the others are compared
SEVERITY = 3

Scene = NDArray[np.float64]  # (H, W, 3)


class References(NamedTuple):
    """Images after the transform, each (H, W, 3)."""

    pixels: Sequence[Pixels]  # to compare on
    synthetic: bool = False
    tuning: Sequence[Pixels] = ()  # other images, which set the ranges of 8 bits

    @classmethod
    def collect(
        cls,
        source: object | None,
        transform: Transform,
        *,
        int8: bool,
        workers: Workers,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Self:
        """The first readable images of the source. Without a source, which 8 bits need, synthetic images."""
        if source is None:
            if int8:
                raise NoImagesError("8 bits need reference images: give reference (--reference) new normal images")
            height, width = transform.largest
            return cls(synthetic_images(N_REFERENCES, (height, width)), synthetic=True)
        share = TUNING_EVERY / (TUNING_EVERY - 1) if int8 else 1
        wanted, needed = round(N_REFERENCES * share), round(MIN_REFERENCES * share)
        with closing(read_images(source, transform=transform, workers=workers, limits=limits)) as stream:
            found = [image.pixels for image in islice(accepted(stream, RefusalReport()), wanted)]
        if len(found) < needed:
            raise NoImagesError(f"{len(found)} reference images can be read: give at least {needed}, better {wanted}")
        tuning = found[::TUNING_EVERY] if int8 else []
        if int8:
            del found[::TUNING_EVERY]
        return cls(found, tuning=tuning)


def synthetic_images(count: int, shape: Shape) -> list[Pixels]:
    """Images of that shape: clouds of many contrasts, every third corrupted.

    They reach from smooth to rough, so that every layer responds to them. None is perfectly flat: the score of a flat
    image depends on the last digits of float32.
    """
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        scene, contrast = cloud_scene(shape, rng), np.exp(rng.uniform(np.log(0.05), np.log(0.3)))
        pixels = to_pixels(scene, rng, level=rng.uniform(0.3, 0.7), contrast=contrast, noise=rng.uniform(0.002, 0.02))
        found.append(pixels if index % 3 else corrupt_in_turn(pixels, index))
    return found


def cloud_scene(shape: Shape, rng: np.random.Generator) -> Scene:
    """Noise with correlated colours whose amplitude falls with the frequency, as in photos."""
    rows, columns = np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None]
    amplitude = np.maximum(np.hypot(rows, columns), 1 / max(shape)) ** -rng.uniform(0.6, 1.8)
    white = rng.normal(size=(*shape, 3)) @ (np.full((3, 3), 0.6) + np.diag(rng.uniform(0.2, 1, 3)))
    return np.fft.irfft2(np.fft.rfft2(white, axes=(0, 1)) * amplitude[..., None], s=shape, axes=(0, 1))


def to_pixels(scene: Scene, rng: np.random.Generator, *, level: float, contrast: float, noise: float) -> Pixels:
    """The scene in uint8, with this mean and standard deviation between 0 and 1, and noise of the camera."""
    light = level + contrast * (scene - scene.mean()) / max(float(scene.std()), 1e-9)
    pixels: Pixels = np.rint(np.clip(light + rng.normal(0, noise, scene.shape), 0, 1) * 255).astype(np.uint8)
    return pixels


def corrupt_in_turn(pixels: Pixels, index: int) -> Pixels:
    """The image with one of all corruptions; the index determines which."""
    order = np.random.default_rng(0).permutation(list(CORRUPTIONS))
    return corrupt(pixels, str(order[index % len(order)]), SEVERITY, seed=index)


@dataclass(frozen=True)
class Parity:
    """Differences between an export and its detector; of scores in standard deviations of the calibration scores."""

    images: int
    synthetic: bool
    max_difference: float  # of scores
    mean_difference: float  # of scores, export minus detector
    p_values_changed: int
    predictions_changed: int
    max_map_difference: float
    max_component_difference: float = 0.0
    auroc_detector: float | None = None  # normal against corrupted references, measured for 8 bits
    auroc_export: float | None = None

    def check(self) -> None:
        """Raises ExportError beyond the limits. 8 bits are held to the AUROC alone."""
        if self.auroc_detector is not None and self.auroc_export is not None:
            if not self.auroc_detector - self.auroc_export <= MAX_AUROC_LOSS:  # also NaN
                raise ExportError(
                    f"8 bits lower the AUROC on corrupted references from {self.auroc_detector:.4f} to "
                    f"{self.auroc_export:.4f}, more than {MAX_AUROC_LOSS:g}: nothing was written; "
                    f"give {N_REFERENCES} reference images or more, or export without int8"
                )
            return
        for name, found, limit in (
            ("scores", self.max_difference, MAX_DIFFERENCE),
            ("components", self.max_component_difference, MAX_COMPONENT_DIFFERENCE),
            ("anomaly maps", self.max_map_difference, MAX_MAP_DIFFERENCE),
        ):
            if not found <= limit:
                raise ExportError(
                    f"{name} of the export differ from the detector by up to {found:.2g}, more than {limit:g}: "
                    "nothing was written; try another format"
                )

    @property
    def text(self) -> str:
        """One sentence for people."""
        rounded = ""
        if self.auroc_detector is not None:
            rounded = f"AUROC on corrupted images {self.auroc_detector:.4f} before and {self.auroc_export:.4f} after, "
        return (
            f"compared on {self.images} {'synthetic' if self.synthetic else 'reference'} images: {rounded}largest "
            f"difference of scores {self.max_difference:.2g} (mean {self.mean_difference:+.2g}), of components "
            f"{self.max_component_difference:.2g}, of anomaly maps {self.max_map_difference:.2g}; "
            f"{self.p_values_changed} p-values and {self.predictions_changed} decisions differ"
        )


def measure_parity(detector: "Detector", runtime: "Runtime", references: References, *, int8: bool) -> Parity:
    """Compares detector and export on the same images, one by one on a CPU."""
    detector = copy(detector)
    detector.device = "cpu"
    spread = float(detector.calibration_scores_.std())
    if not spread > 0:
        raise ExportError("all calibration scores are equal, so that exports cannot be compared: fit on more images")
    images = [NamedImage(str(number), pixels) for number, pixels in enumerate(references.pixels)]
    expected, found = (each.predict(images, workers=1) for each in (detector, runtime))
    difference = (found.scores - expected.scores) / spread
    mapped = np.unique(np.linspace(0, len(images) - 1, N_MAPS).round().astype(int))
    measured: dict[str, Any] = {}
    if int8:
        corrupted = [NamedImage("", corrupt_in_turn(each.pixels, index)) for index, each in enumerate(images)]
        measured["auroc_detector"] = auroc(expected.scores, detector.score(corrupted, workers=1))
        measured["auroc_export"] = auroc(found.scores, runtime.score(corrupted, workers=1))
    return Parity(
        images=len(images),
        synthetic=references.synthetic,
        max_difference=float(np.abs(difference).max()),
        mean_difference=float(difference.mean()),
        p_values_changed=int((found.p_values != expected.p_values).sum()),
        predictions_changed=int((found.is_ood != expected.is_ood).sum()),
        max_map_difference=max(map_difference(detector, runtime, images[index]) for index in mapped),
        max_component_difference=component_difference(expected, found),
        **measured,
    )


def component_difference(expected: Predictions, found: Predictions) -> float:
    """The largest difference between z-scores; 0 without components."""
    z, other = ([[each.z for each in one.components] for one in predictions] for predictions in (expected, found))
    return float(np.abs(np.subtract(z, other)).max(initial=0.0))


def map_difference(detector: FittedDetector, runtime: FittedDetector, image: object) -> float:
    expected, found = (each.explain(image).anomaly_map for each in (detector, runtime))
    return float(np.abs(found - expected).max())
