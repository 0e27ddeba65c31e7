"""Predictions, explanations, and the interface of everything that predicts."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import Calibration, DetectionRate, Guarantee, NormalClass, select
from discopatch.errors import ImageError, ParameterError
from discopatch.evaluation import Evaluation, evaluate
from discopatch.explain.regions import Region, find_regions
from discopatch.images import DEFAULT_WORKERS, Limits, NamedImage, Pixels, Refusal, Transform, Workers
from discopatch.images.cache import Progress
from discopatch.utils import counted, require

if TYPE_CHECKING:
    import pandas


COMPONENT_WORDS = {"acquisition": "how it was taken", "content": "what is in it", "place": "a place in it"}
UNUSUAL_SHAPE = "unusual_shape"  # no normal image has such a ratio of width to height
OUT_OF_RANGE = "out_of_range"  # more values than in normal images are clipped to black or white
CAUTIONS = {UNUSUAL_SHAPE: "a shape that no normal image had", OUT_OF_RANGE: "more clipped values than normal images"}
CLASS = "class"  # the column of the class that an image is assigned to
ASPECT_MARGIN = 1.1  # by how much the ratio may exceed those of normal images
MANY_PLACES = 0.5  # with more than this share of unusual places, no single place is named


Aspects = tuple[float, float]  # smallest and largest ratio of width to height


class ComponentScore(NamedTuple):
    """The z-score of one component of the head."""

    name: str  # one of COMPONENT_WORDS
    z: float  # relative to normal images
    significant: bool  # about 5 % of normal images have a significant component


def component_scores(names: Sequence[str], z: Sequence[float], level: float) -> tuple[ComponentScore, ...]:
    """The z-score of each component, significant above the level."""
    return tuple(ComponentScore(name, one, one > level) for name, one in zip(names, z, strict=True))


@dataclass(frozen=True, slots=True)
class Prediction:
    """The score of one image, its p-value and the decision; or the error with which the image was refused."""

    name: str
    score: float | None  # higher means more out-of-distribution
    p_value: float | None  # share of normal images with at least this score, counting this one
    is_ood: bool | None
    error: str | None = None  # such as "truncated: JPEG cut short or damaged: copy it again"
    components: tuple[ComponentScore, ...] = ()  # of a head that has components
    caution: str | None = None  # UNUSUAL_SHAPE, OUT_OF_RANGE, or both, separated by a comma
    class_name: str | None = None  # that it is assigned to, by a detector with classes

    def __post_init__(self) -> None:
        if (self.score is None) == (self.error is None):
            raise ParameterError(f"{self.name}: a prediction has either a score or an error")
        if self.error is not None and (self.p_value is not None or self.is_ood is not None):
            raise ParameterError(f"{self.name}: a refused image has no p-value and no decision")

    @classmethod
    def make(
        cls,
        name: str,
        score: float,
        calibration: Calibration | None,
        components: tuple[ComponentScore, ...] = (),
        caution: str | None = None,
        number: int = 0,
    ) -> Self:
        """The prediction of a score by the calibration; without one it has no p-value and no decision.

        number: of its class, for a calibration with classes.
        """
        p_value, is_ood, class_name = (None,) * 3 if calibration is None else calibration.decide(score, number)
        return cls(name, score, p_value, is_ood, None, components, caution, class_name)

    @property
    def significant(self) -> tuple[ComponentScore, ...]:
        """The significant components, strongest first."""
        return tuple(sorted((each for each in self.components if each.significant), key=lambda each: -each.z))


class Predictions(tuple[Prediction, ...]):
    """The predictions of many images, in their order, as a tuple and as arrays (images,)."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Prediction | Predictions":
        return Predictions(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __repr__(self) -> str:
        flagged, refused = int(self.is_ood.sum()), sum(error is not None for error in self.errors)
        return f"<Predictions of {counted(len(self), 'image')}: {flagged} out-of-distribution, {refused} refused>"

    @cached_property
    def names(self) -> NDArray[np.str_]:
        return np.array([each.name for each in self], np.str_)

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """NaN where an image was refused."""
        return np.array([each.score for each in self], np.float64)

    @cached_property
    def p_values(self) -> NDArray[np.float64]:
        """NaN where an image was refused."""
        return np.array([each.p_value for each in self], np.float64)

    @cached_property
    def is_ood(self) -> "np.ma.MaskedArray[Any, np.dtype[np.bool_]]":
        """The decisions; masked, with False below the mask, where an image was refused."""
        flags = [bool(each.is_ood) for each in self]
        return np.ma.array(flags, bool, mask=[each.is_ood is None for each in self])

    @cached_property
    def errors(self) -> NDArray[np.object_]:
        """None where an image was scored."""
        return np.array([each.error for each in self], np.object_)

    def select(self, *, fdr: float) -> "Predictions":
        """The images to look at, highest score first, of which on average at most the share `fdr` are normal.

        The procedure of Benjamini and Hochberg on the p-values. Fewer are selected with few calibration images.
        """
        found = [self[int(index)] for index in select(self.p_values, fdr)]
        return Predictions(sorted(found, key=lambda each: -(each.score or 0.0)))

    def to_pandas(self) -> "pandas.DataFrame":
        """One row an image with the columns of `as_row`."""
        require("pandas", extra="bench")
        import pandas

        names = next(([each.name for each in one.components] for one in self if one.components), [])
        names += [CLASS] * any(each.class_name for each in self)
        frame = pandas.DataFrame([as_row(each, names) for each in self], columns=list(column_types(names)))
        return frame.astype({"is_ood": "boolean"})


class Reason(NamedTuple):
    """A known change that an image looks like."""

    id: str  # one of `discopatch.heads.PROBES`
    z: float  # how much more likely than in normal images, in standard deviations
    text: str  # such as "less fine detail than normal"


class Component(NamedTuple):
    """A significant component of the head, in words."""

    name: str  # acquisition, content or place
    z: float  # relative to normal images
    text: str  # such as "a place in it: upper left"


@dataclass(frozen=True, eq=False)
class Explanation:
    """A prediction, the image after the transform, and where and how it differs from normal images."""

    prediction: Prediction
    image: Pixels  # (H, W, 3)
    anomaly_map: NDArray[np.float32]  # (H, W): how unusual each pixel is, above 1 more than nearly all of normal images
    reasons: tuple[Reason, ...]  # strongest first
    components: tuple[Component, ...] = ()  # the significant ones, strongest first
    size: tuple[int, int] = (0, 0)  # height and width of the image before the transform; that of `image` by default

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.size if any(self.size) else self.image.shape[:2])

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The unusual regions, in pixels of the original image, largest peak first."""
        return find_regions(self.anomaly_map, self.size)

    @property
    def findings(self) -> tuple[Component | Reason, ...]:
        """Components and reasons, without the first reason where the acquisition component names it."""
        named = any(each.name == "acquisition" for each in self.components)
        return (*self.components, *self.reasons[named:])

    def as_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """The row of the prediction with components, reasons, regions and the original size, ready for JSON."""
        fields = {
            name: [each._asdict() for each in getattr(self, name)] for name in ("components", "reasons", "regions")
        }
        return {**as_row(self.prediction, names), **fields, "size": list(self.size)}


class PredictedImage(NamedTuple):
    """A prediction with the image after the transform, or with its refusal."""

    prediction: Prediction
    image: NamedImage | None
    refusal: Refusal | None

    @property
    def pixels(self) -> Pixels | None:
        """(size, size, 3), copied from the GPU where the image is there."""
        return None if self.image is None else self.image.pixels

    @classmethod
    def refused(cls, refusal: Refusal) -> Self:
        return cls(Prediction(refusal.name, None, None, None, refusal.error), None, refusal)

    @classmethod
    def scored(
        cls,
        image: NamedImage,
        score: float,
        calibration: Calibration | None,
        components: tuple[ComponentScore, ...] = (),
        aspects: Aspects | None = None,
        number: int = 0,
    ) -> Self:
        """The prediction of a score; a score that is not a finite number is a refusal."""
        if not isfinite(score):
            return cls.refused(Refusal.not_finite(image.name))
        caution = image_caution(image, aspects)
        return cls(Prediction.make(image.name, score, calibration, components, caution, number), image, None)


class PredictedBatch(NamedTuple):
    """Predictions of images that passed the network together."""

    images: list[PredictedImage]
    ends: bool  # whether their source has no more


class Predictor(ABC):
    """Base of everything that predicts images."""

    @property
    def component_names(self) -> tuple[str, ...]:
        """The names of the components that its predictions have."""
        return ()

    @abstractmethod
    def predict_batches(
        self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[PredictedBatch]:
        """One source after another, in batches that end where a source ends."""

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        """Predictions with their pixels, one by one, in constant memory."""
        for batch in self.predict_batches([images], workers=workers):
            yield from batch.images

    def predict_iter(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Prediction]:
        """A prediction for every image, one by one, in constant memory."""
        return (each.prediction for each in self.predict_images(images, workers=workers))

    def predict(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Predictions:
        """A prediction for every image, in order; one that cannot be read is a prediction with an error."""
        return Predictions(self.predict_iter(images, workers=workers))

    def score(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> NDArray[np.float64]:
        """The scores (images,), higher for more out-of-distribution; NaN where an image was refused."""
        return self.predict(images, workers=workers).scores


class FittedDetector(Predictor):
    """What a fitted `Detector`, which needs torch, and a `Runtime`, an export without torch, have in common."""

    max_pixels: int
    max_bytes: int

    @property
    @abstractmethod
    def calibration_(self) -> Calibration:
        """The scores of held-out normal images, and the false-alarm rate."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """What the columns of stored predictions depend on: the components, and CLASS where there are classes."""
        return (*self.component_names, *[CLASS] * bool(self.calibration_.classes))

    @property
    def classes_(self) -> tuple[NormalClass, ...]:
        """The classes, each with a calibration of its own; none without `classes`."""
        found = self.settings().get("classes", ())
        return tuple(NormalClass(**{**each, "members": tuple(each["members"])}) for each in found)

    @property
    @abstractmethod
    def transform_(self) -> Transform:
        """The transform through which images pass."""

    @property
    @abstractmethod
    def digest_(self) -> str:
        """16 hex digits of everything that a score depends on: networks, transform and fitted head."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that a result depends on, by name and digest, ready for JSON."""

    @abstractmethod
    def explain(self, image: object) -> Explanation:
        """The prediction of one image, where it differs from normal images, and in which way."""

    @abstractmethod
    def with_rate(self, false_alarm_rate: float) -> Self:
        """The same detector at another false-alarm rate. Scores and p-values stay, decisions change."""

    def evaluate(
        self,
        normal: object,
        defects: object,
        masks: object | None = None,
        *,
        seed: int = 0,
        workers: Workers = DEFAULT_WORKERS,
        progress: Progress | None = None,
    ) -> Evaluation:
        """How well it separates labelled images: AUROC, AUPRO, and shares of flagged images at promised rates.

        Parameters
        ----------
        normal
            Normal images that the detector was not fitted on. A folder inside `defects` is left out there.
        defects
            Images with defects. The subfolders of a folder are kinds of defects.
        masks
            The folder of masks, white where the defect is, with the names and subfolders of the defect images; or a
            list with a mask, as an array or a path, or None for each defect image.
        seed
            Seed of the resamples, from which the intervals of AUROC, AUPRO and pixel AUROC are computed.
        workers
            Threads, or `Processes`, that decode images.
        progress
            Called with the number of images done and the total, which is None where it is unknown.

        Examples
        --------
        >>> found = detector.evaluate("test/good", "test", "ground_truth")
        >>> found.auroc.value, found.suggestion
        """
        return evaluate(self, normal, defects, masks, seed=seed, workers=workers, progress=progress)

    @property
    def cautions_(self) -> tuple[str, ...]:
        """Warnings about the normal images: near-copies, copies, drift."""
        return tuple(self.settings().get("cautions", ()))

    @property
    def limits(self) -> Limits:
        """Images beyond these limits are refused before they are decoded."""
        return Limits(max_pixels=self.max_pixels, max_bytes=self.max_bytes)

    @property
    def calibration_scores_(self) -> NDArray[np.float64]:
        """The ascending scores of the normal images that were held out."""
        return self.calibration_.scores

    @property
    def false_alarm_rate_(self) -> float:
        """The rate in force: the one asked for, or what `auto` chose."""
        return self.calibration_.rate

    @property
    def threshold_(self) -> float:
        """Scores above it are flagged; infinite where no p-value can be as small as the rate.

        With classes it is that of all images together; each class has its own, `calibration_.classes[name].threshold`.
        """
        return self.calibration_.threshold

    @property
    def guarantee_(self) -> Guarantee:
        """The false-alarm rate, and the numbers of images that it rests on."""
        settings = self.settings()
        known = {name: settings.get(name) for name in ("n_groups", "confidence", "promised_rate")}
        classes = {}
        for each in self.classes_:
            own = self.calibration_.classes[each.name]
            classes[each.name] = Guarantee(each.images, len(own.scores), own.rate)
        calibration = self.calibration_
        return Guarantee(settings["images"], len(calibration.scores), calibration.rate, classes=classes, **known)

    @property
    def detection_rates_(self) -> tuple[DetectionRate, ...]:
        """How many made-up changes of held-out images were found at fit; empty at another false-alarm rate."""
        return tuple(DetectionRate(**each) for each in self.settings().get("detection_rates", ()))


def image_caution(image: NamedImage, aspects: Aspects | None) -> str | None:
    """What is unusual about an image, whatever its score."""
    found = (shape_caution(image.size, aspects), OUT_OF_RANGE if image.out_of_range else None)
    return ",".join(filter(None, found)) or None


def shape_caution(size: tuple[int, int], aspects: Aspects | None) -> str | None:
    """UNUSUAL_SHAPE if an image of this height and width has another ratio than all normal images; None otherwise.

    aspects: the smallest and the largest ratio of width to height of normal images.
    """
    if aspects is None:
        return None
    aspect = size[1] / size[0]
    usual = aspects[0] / ASPECT_MARGIN <= aspect <= aspects[1] * ASPECT_MARGIN
    return None if usual else UNUSUAL_SHAPE


def check_finite(name: str, score: float) -> None:
    """Raises ImageError where there is no finite score to explain."""
    if not isfinite(score):
        refusal = Refusal.not_finite(name)
        raise ImageError(refusal.reason, f"{name}: {refusal.error}")


def column_types(names: Sequence[str] = ()) -> dict[str, type]:
    """The columns of a stored prediction and their types, for a detector with these `column_names`.

    They are the same in CSV, JSON, Parquet, SQLite and over HTTP. Every column but the name may be null.
    """
    types = {"name": str, "score": float, "p_value": float, "is_ood": bool, "error": str, "caution": str}
    if components := [name for name in names if name != CLASS]:
        types |= {f"z_{name}": float for name in components} | {"significant": str}
    return types | {CLASS: str} if CLASS in names else types


def as_row(prediction: Prediction, names: Sequence[str] = ()) -> dict[str, Any]:
    """The prediction as the columns of `column_types`; `significant` lists components, separated by commas."""
    row = {name: getattr(prediction, name) for name in ("name", "score", "p_value", "is_ood", "error", "caution")}
    if components := [name for name in names if name != CLASS]:
        z = {each.name: each.z for each in prediction.components}
        row |= {f"z_{name}": z.get(name) for name in components}
        row["significant"] = ",".join(each.name for each in prediction.significant) if z else None
    return row | {CLASS: prediction.class_name} if CLASS in names else row


def from_row(row: Mapping[str, Any]) -> Prediction:
    """The prediction that `as_row` turned into the row."""
    significant = (row.get("significant") or "").split(",")
    z = {name.removeprefix("z_"): value for name, value in row.items() if name.startswith("z_") and value is not None}
    components = tuple(ComponentScore(name, value, name in significant) for name, value in z.items())
    is_ood = None if row.get("is_ood") is None else bool(row["is_ood"])
    numbers = row.get("score"), row.get("p_value"), is_ood
    return Prediction(row["name"], *numbers, row.get("error"), components, row.get("caution"), row.get(CLASS))


def explain_components(
    prediction: Prediction, reasons: Sequence[Reason], place_map: NDArray[np.floating] | None
) -> tuple[Component, ...]:
    """The significant components in words; the place is where the map (side, side) has its largest value."""
    details = {"content": "unlike any normal image"}
    if reasons:
        details["acquisition"] = reasons[0].text.removesuffix(" than normal")
    if place_map is not None:
        details["place"] = position_of(place_map)
    return tuple(
        Component(name, z, ": ".join(filter(None, (COMPONENT_WORDS[name], details.get(name)))))
        for name, z, _ in prediction.significant
    )


def position_of(values: NDArray[np.floating]) -> str:
    """The part of the image, one of nine, with the largest value, or "in many places" if most are above 1."""
    if (values > 1).mean() > MANY_PLACES:
        return "in many places"
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    down, across = (int(3 * (place + 0.5) / side) for place, side in zip((row, column), values.shape, strict=True))
    if down == across == 1:
        return "centre"
    return f"{('upper', 'middle', 'lower')[down]} {('left', 'middle', 'right')[across]}"
