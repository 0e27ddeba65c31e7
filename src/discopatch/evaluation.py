"""Evaluation of a fitted detector on labelled images: AUROC, AUPRO, and what it flags at promised rates."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.calibration import AUTO_RATES, ROUNDING, Calibration, images_needed, share_interval
from discopatch.errors import ImageError, NoImagesError, ParameterError
from discopatch.images import Item, NamedImage, Refusal, Workers, list_source
from discopatch.images.cache import Progress
from discopatch.images.decode import is_image_name
from discopatch.metrics import (
    RESAMPLES,
    Floats,
    auroc,
    count_pixels,
    draw_resamples,
    middle,
    pixel_metrics,
    resample,
    resample_pixels,
)
from discopatch.utils import counted, resolved

if TYPE_CHECKING:
    from discopatch.results import Explanation, FittedDetector, Prediction

ENOUGH = 0.9  # share of the defects that a suggested rate should find
CLOSE_UPS = 6  # misses, and false alarms, that are explained
MAX_LABEL = 32  # a mask whose largest value is not above it holds numbers of kinds of defects, all of which count
MASK_ENDING = "_mask"  # of the names of masks of MVTec AD


@dataclass(frozen=True)
class Measure:
    """A metric and its 95 % interval from resampled images."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """Such as "0.953 (0.921 to 0.981)"."""
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Share:
    """A number of flagged images, and their share with its exact 95 % interval (Clopper and Pearson)."""

    flagged: int
    images: int
    share: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """Such as "28 of 30: 93.3 % (77.9 to 99.2)"."""
        share, low, high = (f"{100 * each:.1f}" for each in (self.share, self.low, self.high))
        return f"{self.flagged:,} of {self.images:,}: {share} % ({low} to {high})"

    def count_text(self, noun: str) -> str:
        """Such as "28 of 30 defects (93.3 %)"."""
        return f"{self.flagged:,} of {counted(self.images, noun)} ({100 * self.share:.1f} %)"


@dataclass(frozen=True)
class RateResult:
    """What a promised false-alarm rate gives; no shares where the calibration has too few images for it."""

    rate: float
    found: Share | None  # of the defects
    falsely_flagged: Share | None  # of the normal images
    calibration_images_needed: int


@dataclass(frozen=True)
class KindResult:
    """The defects of one subfolder."""

    kind: str  # the subfolder; "." for images that are in none
    images: int
    auroc: Measure
    found: Share | None  # at the detector's own rate


@dataclass(frozen=True)
class Evaluation:
    """The result of `FittedDetector.evaluate`. All intervals are of 95 %."""

    detector: str  # its digest
    false_alarm_rate: float  # the detector's own
    calibration_images: int
    seed: int  # of the resamples
    resamples: int
    normal_images: int  # scored
    defect_images: int  # scored
    masks: int  # defect images with a mask
    regions: int  # in the masks
    auroc: Measure
    aupro: Measure | None  # None without masks
    pixel_auroc: Measure | None  # None without masks
    rates: tuple[RateResult, ...]  # 1, 2, 5 and 10 %, and the detector's own
    kinds: tuple[KindResult, ...]
    suggested_rate: float | None
    suggestion: str  # one sentence with its numbers
    cautions: tuple[str, ...]
    refused: tuple[Refusal, ...]  # images and masks that cannot be read
    without_mask: tuple[str, ...]  # defect images that have no mask, or a black one, where masks were given
    misses: "tuple[Explanation, ...]" = field(repr=False)  # defects that are not flagged, the lowest scores first
    false_alarms: "tuple[Explanation, ...]" = field(repr=False)  # normal images flagged, the highest scores first

    @property
    def measures(self) -> dict[str, Measure]:
        """The metrics that there are, by name."""
        named = {"AUROC": self.auroc, "AUPRO": self.aupro, "pixel AUROC": self.pixel_auroc}
        return {name: measure for name, measure in named.items() if measure is not None}

    @property
    def own_rate(self) -> RateResult:
        """The result at the detector's own rate."""
        return next(each for each in self.rates if each.rate == self.false_alarm_rate)

    def to_dict(self) -> dict[str, Any]:
        """All numbers and names, ready for JSON; of misses and false alarms the name, score and p-value."""
        found = asdict(replace(self, misses=(), false_alarms=()))
        for name in ("misses", "false_alarms"):
            rows = [each.prediction for each in getattr(self, name)]
            found[name] = [{"name": each.name, "score": each.score, "p_value": each.p_value} for each in rows]
        return found


class Labelled:
    """The predictions of images with one label, the counts of their pixels, and the worst wrong decisions."""

    def __init__(self, detector: "FittedDetector", masks: "Masks | None", *, defects: bool) -> None:
        self.detector, self.masks, self.defects = detector, masks, defects
        self.predictions: list[Prediction] = []
        self.counts: list[NDArray[np.float32]] = []
        self.refused: list[Refusal] = []
        self._worst: list[tuple[float, Explanation]] = []

    def read(self, images: object, workers: Workers, done: Callable[[], object]) -> Self:
        """Predicts all images, and calls `done` after each."""
        for place, (prediction, image, refusal) in enumerate(self.detector.predict_images(images, workers=workers)):
            if refusal is not None:
                self.refused.append(refusal)
            elif image is not None:
                self._add(place, prediction, image)
            done()
        if not self.predictions:
            refused = f": {self.refused[0].name}: {self.refused[0].error}" if self.refused else ""
            raise NoImagesError(f"no {'defect' if self.defects else 'normal'} image could be scored{refused}")
        return self

    def _add(self, place: int, prediction: "Prediction", image: NamedImage) -> None:
        """Keeps the prediction; explains the image if its pixels are counted, or if no wrong decision is worse."""
        self.predictions.append(prediction)
        mask = self.masks.read(place, prediction.name) if self.masks and self.defects else None
        is_counted = self.masks is not None and (mask is not None or not self.defects)
        rank = float(prediction.score or 0) * (1 if self.defects else -1)
        is_wrong = bool(prediction.is_ood) != self.defects
        is_worst = is_wrong and (len(self._worst) < CLOSE_UPS or rank < self._worst[-1][0])
        if is_counted or is_worst:
            explanation = self.detector.explain(image)
        if is_counted:
            shape = explanation.image.shape[0], explanation.image.shape[1]
            mask = None if mask is None else resized(mask, shape)
            self.counts.append(count_pixels(resized(explanation.anomaly_map, shape), mask))
        if is_worst:
            self._worst = sorted([*self._worst, (rank, explanation)], key=lambda pair: pair[0])[:CLOSE_UPS]

    @property
    def worst(self) -> "tuple[Explanation, ...]":
        return tuple(explanation for _, explanation in self._worst)

    @property
    def scores(self) -> Floats:
        return np.array([each.score for each in self.predictions], np.float64)

    @property
    def p_values(self) -> Floats:
        return np.array([each.p_value for each in self.predictions], np.float64)


class Masks:
    """Masks of defect images: in a folder by the names of the images, or one for each image in their order."""

    def __init__(self, masks: object, images: int | None, root: Path | None, detector: "FittedDetector") -> None:
        # Pixels that are ignored become grey, which a mask would take for a defect.
        self.transform, self.limits = replace(detector.transform_, ignore=None), detector.limits
        self.refused: list[Refusal] = []
        self.missing: list[str] = []  # names of the images
        self._find: Callable[[int, str], Any]
        if isinstance(masks, str | os.PathLike):
            if (folder := folder_of(masks)) is None:
                raise ParameterError(f"{os.fspath(masks)} is not a folder: give the folder of the masks")
            paths = [path for path in sorted(folder.rglob("*")) if is_image_name(path.name)]
            by_name = {name_below(path, folder).removesuffix(MASK_ENDING): path for path in paths}
            self._find = lambda place, name: by_name.get(name_below(name, root))
        elif isinstance(masks, Sequence | np.ndarray) and images in (None, len(masks)):
            self._find = lambda place, name: masks[place]
        else:
            raise ParameterError("masks that do not fit: give a folder, or a list with a mask or None for each defect")

    def read(self, place: int, name: str) -> NDArray[np.bool_] | None:
        """The mask (H, W) through the transform of the images; None where there is none or it is black."""
        mask = self._find(place, name)
        try:
            if isinstance(mask, str | os.PathLike):
                mask = Item(os.fspath(mask), Path(mask)).decode(self.limits)
        except ImageError as error:
            self.refused.append(Refusal(os.fspath(mask), error.reason, error.detail))
            mask = None
        values = np.asarray(0 if mask is None else mask)
        values = values.max(axis=2) if values.ndim == 3 else values
        white = values > (values.max() / 2 if values.max() > MAX_LABEL else 0)
        if white.any():
            grey = self.transform(np.repeat(white[..., None], 3, axis=2).astype(np.uint8) * 255)[..., 0]
            if grey.any():  # the defect may be outside of the part that the transform cuts out
                return grey >= max(1, int(grey.max()) // 2)  # no pixel of a thin defect need be half white
        self.missing.append(name)
        return None


def evaluate(
    detector: "FittedDetector",
    normal: object,
    defects: object,
    masks: object | None,
    *,
    seed: int,
    workers: Workers,
    progress: Progress | None,
) -> Evaluation:
    """See `FittedDetector.evaluate`."""
    sources = [list_source(without_inner(one, other, masks)) for one, other in ((normal, defects), (defects, normal))]
    counts, numbers, root = [each.count for each in sources], count(1), folder_of(defects)
    found_masks = None if masks is None else Masks(masks, counts[1], root, detector)
    total = None if None in counts else sum(filter(None, counts))
    usual, wrong = (
        Labelled(detector, found_masks, defects=bool(label)).read(
            source, workers, lambda: progress and progress(next(numbers), total)
        )
        for label, source in enumerate(sources)
    )
    aupro = pixel_auroc = None
    if found_masks is not None:
        if not wrong.counts:
            raise ParameterError("no defect image has a mask: masks have the names and subfolders of the defect images")
        aupro, pixel_auroc = pixel_measures(usual.counts, wrong.counts, seed=seed)
    calibration = detector.calibration_
    rates = rate_results(calibration, usual.p_values, wrong.p_values)
    suggested, suggestion = suggest(rates)
    return Evaluation(
        detector=detector.digest_,
        false_alarm_rate=calibration.rate,
        calibration_images=len(calibration.scores),
        seed=seed,
        resamples=RESAMPLES,
        normal_images=len(usual.predictions),
        defect_images=len(wrong.predictions),
        masks=len(wrong.counts),
        regions=round(float(sum(each[2].sum(dtype=np.float64) for each in wrong.counts))),
        auroc=auroc_measure(usual.scores, wrong.scores, seed=seed),
        aupro=aupro,
        pixel_auroc=pixel_auroc,
        rates=rates,
        kinds=kind_results(calibration, usual.scores, wrong.predictions, root, seed=seed),
        suggested_rate=suggested,
        suggestion=suggestion,
        cautions=cautions_of(detector, rates),
        refused=(*usual.refused, *wrong.refused, *(found_masks.refused if found_masks else ())),
        without_mask=tuple(found_masks.missing if found_masks else ()),
        misses=wrong.worst,
        false_alarms=usual.worst,
    )


def share_above(p_values: Floats, calibration: Calibration, rate: float) -> Share | None:
    """The share of p-values that are flagged at the rate; None where the calibration has too few images for it."""
    if images_needed(rate) > min(len(part.scores) for part in calibration.parts.values()):
        return None
    flagged, images = int((p_values <= rate + ROUNDING).sum()), len(p_values)
    return Share(flagged, images, flagged / images, *share_interval(flagged, images))


def rate_results(calibration: Calibration, normal: Floats, defects: Floats) -> tuple[RateResult, ...]:
    found = []
    for rate in sorted({*AUTO_RATES, calibration.rate}):
        shares = share_above(defects, calibration, rate), share_above(normal, calibration, rate)
        found.append(RateResult(rate, *shares, images_needed(rate)))
    return tuple(found)


def kind_results(
    calibration: Calibration, normal: Floats, defects: "Sequence[Prediction]", root: Path | None, *, seed: int
) -> tuple[KindResult, ...]:
    """One result for each subfolder, by name."""
    by_kind: dict[str, list[Prediction]] = {}
    for each in defects:
        kind = "." if root is None else PurePath(name_below(each.name, root)).parent.as_posix()
        by_kind.setdefault(kind, []).append(each)
    found = []
    for kind, own in sorted(by_kind.items()):
        scores, p_values = np.array([(each.score, each.p_value) for each in own], np.float64).T
        measure = auroc_measure(normal, scores, seed=seed, name=kind)
        found.append(KindResult(kind, len(own), measure, share_above(p_values, calibration, calibration.rate)))
    return tuple(found)


def auroc_measure(normal: Floats, defects: Floats, *, seed: int, name: str = "defects") -> Measure:
    drawn = draw_resamples(len(normal), seed=seed, name="normal"), draw_resamples(len(defects), seed=seed, name=name)
    return Measure(auroc(normal, defects), *middle(resample(normal, defects, drawn)[0]))


def pixel_measures(
    normal: Sequence[NDArray[np.float32]], defects: Sequence[NDArray[np.float32]], *, seed: int
) -> tuple[Measure, Measure]:
    """AUPRO and pixel AUROC from the counts of each image."""
    counts = np.stack(normal), np.stack(defects)
    drawn = draw_resamples(len(normal), seed=seed, name="normal"), draw_resamples(len(defects), seed=seed, name="masks")
    values = pixel_metrics(counts[0].sum(axis=0, dtype=np.float64) + counts[1].sum(axis=0, dtype=np.float64))
    samples = resample_pixels(*counts, drawn)
    aupro, pixel_auroc = (Measure(float(one), *middle(some)) for one, some in zip(values, samples, strict=True))
    return aupro, pixel_auroc


def suggest(rates: Iterable[RateResult]) -> tuple[float | None, str]:
    """A rate for these images, and the sentence that gives the reason."""
    usable = [(each.rate, each.found, each.falsely_flagged) for each in rates if each.found and each.falsely_flagged]
    if not usable:
        return None, "No rate can be suggested: the detector has too few calibration images for any of them."
    enough = next((each for each in usable if each[1].share >= ENOUGH), None)
    rate, found, flagged = enough or max(usable, key=lambda each: each[1].share - each[2].share)
    numbers = f"finds {found.count_text('defect')} and flags {flagged.count_text('normal image')}"
    reason = "it is the smallest rate that finds" if enough else "these shares differ most here, since no rate finds"
    return rate, f"Suggestion: a rate of {100 * rate:g} % {numbers}; {reason} {100 * ENOUGH:g} % of the defects."


def cautions_of(detector: "FittedDetector", rates: Iterable[RateResult]) -> tuple[str, ...]:
    """A warning where normal images are flagged more often than the calibration explains."""
    own = next(each.falsely_flagged for each in rates if each.rate == detector.false_alarm_rate_)
    highest = detector.guarantee_.likely_rates[1]
    if own is None or own.low <= highest:
        return ()
    text = f"{own.count_text('normal image')} are flagged, where at most {100 * highest:.1f} % are likely"
    return (f"{text}: they differ from those that the detector was fitted on, so fit it on images like them",)


def folder_of(source: object) -> Path | None:
    """The folder that a source is, if it is one."""
    return Path(source) if isinstance(source, str | os.PathLike) and Path(source).is_dir() else None


def without_inner(images: object, *others: object) -> object:
    """The images without those of other folders that lie in the folder of the images."""
    outer = folder_of(images)
    inner = [resolved(folder) for folder in map(folder_of, others) if folder is not None]
    if outer is None or not any(folder.is_relative_to(resolved(outer)) for folder in inner):
        return images
    if resolved(outer) in inner:
        raise ParameterError(f"{outer} is given twice: give one folder of normal images, one of defects, one of masks")
    paths = [(item, resolved(Path(item.name))) for item in list_source(images).items()]
    return [item for item, path in paths if not any(path.is_relative_to(folder) for folder in inner)]


def name_below(path: str | Path, folder: Path | None) -> str:
    """The name without its suffix, below the folder; the last part alone without a folder."""
    inner = PurePath(path).relative_to(folder) if folder is not None else PurePath(PurePath(path).name)
    return inner.with_suffix("").as_posix()


def resized(values: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """A map or a mask in another shape: a map with straight lines between its values, a mask by the nearest value."""
    if values.shape == shape:
        return values
    method = Image.Resampling.NEAREST if values.dtype == bool else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(values).resize(shape[::-1], method))
