"""From normal images to the fitted state of a detector: features of all, some held out, a few images kept."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import (
    Index,
    Rate,
    calibration_size,
    check_calibration,
    check_enough,
    choose_rate,
    images_needed,
    one_of_each_group,
    smallest_rate,
    split_images,
    threshold,
)
from discopatch.checks import check_distinct, check_not_fitted, find_drift
from discopatch.decoders import DecoderParity
from discopatch.encoders import (
    Encoder,
    Features,
    OutsideNetwork,
)
from discopatch.errors import ParameterError
from discopatch.explain import ReasonModel, RegionModel
from discopatch.explain.anomaly_map import USUAL_SHARE
from discopatch.groups import Grouped, Groups, find_groups, is_auto, is_given, numbers_of
from discopatch.heads import (
    DEFAULT_HEAD,
    ComponentsHead,
    Head,
    LogitHead,
    get_head,
    make_trials,
    measure_shifts,
)
from discopatch.heads.components import N_REMEMBERED
from discopatch.heads.parts import USUAL_WITH_PLACES
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Decoder,
    Limits,
    NamedImage,
    PixelCache,
    Pixels,
    RefusalReport,
    Transform,
    Workers,
    check_same_transform,
    count_images,
    open_cache,
)
from discopatch.model import Weights
from discopatch.normal_images import NormalImages, Progress
from discopatch.scorer import Scorer, score_one_by_one
from discopatch.utils import temporary_folder

MIN_IMAGES = 30  # normal images in all
MIN_FIT_IMAGES = 20
N_SAMPLED = 64  # of those that are fitted, on how many the regions are learnt
N_PROBED = 6  # of those, on how many the probes are tried


@dataclass(frozen=True, eq=False)
class FittedState:
    """All that a fitted detector is: what it was asked for, what it learnt, and what it was calibrated on."""

    parameters: Mapping[str, Any]  # head, false_alarm_rate, patches, sampling, seed, precision
    weights: Weights | None  # of the discriminator, if there is one
    weights_name: str | None  # of released weights
    head: Head
    regions: RegionModel | None  # none for a detector that was fitted on features
    calibration_scores: NDArray[np.float64]  # of normal images that were held out, ascending
    n_fit: int
    n_groups: int | None = None  # of all images given, where they came in groups
    groups: str | None = None  # which: folder, name, auto, or given
    cautions: tuple[str, ...] = ()  # what was noticed about the normal images
    refusals: RefusalReport = field(default_factory=RefusalReport)
    reasons: ReasonModel | None = None  # as the regions
    networks: tuple[OutsideNetwork, ...] = ()  # from outside, which the detector's file only names
    decoder: Decoder = "pillow"  # that the normal images were read with
    decoders: tuple[DecoderParity, ...] = ()  # others, as they were compared with it

    @property
    def transform(self) -> Transform:
        """The one transform of all its networks, by which the normal images were read."""
        return replace(Transform() if self.weights is None else self.weights.transform, decoder=self.decoder)

    @property
    def false_alarm_rate(self) -> float:
        return float(self.parameters["false_alarm_rate"])

    @cached_property
    def threshold(self) -> float:
        """Scores above it are flagged."""
        return threshold(self.calibration_scores, self.false_alarm_rate)

    @cached_property
    def ordered_scores(self) -> list[float]:
        """The calibration scores as numbers of Python's own, among which one place is found the fastest."""
        return sorted(self.calibration_scores.tolist())


class Plan(NamedTuple):
    """What to fit and what to calibrate on, before anything is learnt."""

    fit: Index  # among the normal images
    held_out: Index  # among them, or among a calibration of its own
    rate: float
    grouped: Grouped
    n_groups: int | None
    cautions: tuple[str, ...]

    @classmethod
    def make(
        cls,
        features: Features,
        grouped: Grouped,
        *,
        calibration: Index | None,
        rate: Rate,
        head: str,
        seed: int,
        copies: str | None = None,
    ) -> Self:
        """Splits the images unless there is a calibration of its own, and looks for what is unusual about them.

        `calibration` are the images of that which count.
        """
        drift = find_drift(features, get_head(head), grouped.alike, seed=seed)
        if calibration is None:
            chosen = choose_rate(rate, grouped.numbers, min_fit=MIN_FIT_IMAGES)
            fit, held_out = split_images(grouped.numbers, chosen, seed=seed, min_fit=MIN_FIT_IMAGES)
            n_groups = grouped.total
        else:
            chosen = smallest_rate(len(calibration), rate)
            check_calibration(len(calibration), chosen)
            fit, held_out = np.arange(len(features.logits)), calibration
            n_groups = grouped.total + len(calibration)
        cautions = tuple(filter(None, (copies, grouped.caution, drift.text if drift else None)))
        return cls(fit, held_out, chosen, grouped, None if grouped.kind is None else n_groups, cautions)

    @property
    def groups(self) -> Index | None:
        """The groups of the images to fit, where there are groups."""
        return None if self.grouped.kind is None else self.grouped.numbers[self.fit]

    def fitted(self, scores: NDArray[np.float64]) -> dict[str, Any]:
        """The fields of `FittedState` that follow from the plan and from the scores of what was held out."""
        check_calibration(scores, self.rate)
        return {
            "calibration_scores": np.sort(scores),
            "n_fit": len(self.fit),
            "n_groups": self.n_groups,
            "groups": self.grouped.kind,
            "cautions": self.cautions,
        }


def fit_images(
    encoder: Encoder,
    images: object,
    *,
    head: str,
    rate: Rate,
    seed: int,
    groups: Groups | None = None,
    calibration: object | None = None,
    own_split: bool = False,
    min_images: int = MIN_IMAGES,
    refusals: RefusalReport,
    workers: Workers = DEFAULT_WORKERS,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], float]:
    """What was learnt, as fields of `FittedState`, and the false-alarm rate.

    With `own_split` the calibration images were drawn from the same source: near-copies are no mistake of the caller's.
    """

    def collect(source: object) -> NormalImages:
        stream = encoder.extract(with_transform(source, encoder), workers=workers)
        return NormalImages.collect(stream, refusals, progress, seed=seed, total=known_count(source))

    check_counts(images, calibration, groups, rate, min_images=min_images)
    normal = collect(images)
    check_enough(len(normal), min_images)
    if is_given(groups) and normal.passed != len(groups):
        raise ParameterError(f"{len(groups)} groups for {normal.passed} images: give one id for each image")
    copies = check_distinct(normal.digests, normal.names, needed=min_images)
    grouped = find_groups(groups, normal.features.statistics, normal.names, normal.positions)
    one_each, calibrating = None, normal
    if calibration is not None:
        calibrating = collect(calibration)
        if not own_split:
            check_not_fitted(calibrating, normal)
        one_each = one_of_each_group(calibration_groups(groups, calibrating), seed=seed)
    plan = Plan.make(normal.features, grouped, calibration=one_each, rate=rate, head=head, seed=seed, copies=copies)
    check_enough(len(plan.fit), MIN_FIT_IMAGES)
    sampled = np.intersect1d(plan.fit, list(normal.sample))
    sampled = np.random.default_rng([seed, 3]).permutation(sampled)[:N_SAMPLED]
    pixels = np.stack([normal.sample[index] for index in sampled])
    for each in (normal, calibrating):
        each.sample.clear()  # tens of megabytes that nothing asks for any more
    known = normal.features.statistics[sampled[:N_PROBED]]
    shifts = measure_shifts(encoder.extract_pixels, pixels[:N_PROBED], seed=seed, before=known)
    with_places = calibrating.with_places(plan.held_out)

    def prepared() -> Head:
        found = get_head(head)
        if not isinstance(found, ComponentsHead):
            return found
        # Of very many images only some have places: the part needs enough of those to calibrate with.
        remembered = N_REMEMBERED if len(with_places) >= images_needed(plan.rate) else 0
        rows = np.searchsorted(plan.fit, sampled)
        return ComponentsHead(
            layer_sizes=encoder.layer_sizes,
            trials=make_trials(encoder.extract_pixels, pixels, rows, seed=seed),
            places=normal.some_places(plan.fit, most=remembered),
            seed=seed,
        )

    # What it was prepared with is large, and gone when it is fitted.
    fitted = prepared().fit(normal.features.select(plan.fit), shifts, groups=plan.groups)
    alike = None if plan.groups is None else grouped.numbers[sampled]
    needs_places = "places" in fitted.needs
    usual = USUAL_WITH_PLACES if needs_places else USUAL_SHARE
    regions = RegionModel.fit(encoder, pixels, shifts=shifts, groups=alike, usual=usual, seed=seed)
    reasons = ReasonModel.fit(pixels, groups=alike, seed=seed)
    calibrated = calibrating.select(with_places if needs_places else plan.held_out, places=needs_places)
    scores = Scorer(encoder, fitted).score_features(calibrated)
    return {"head": fitted, "regions": regions, "reasons": reasons, **plan.fitted(scores)}, plan.rate


def fit_features(
    head: str,
    features: Features,
    *,
    layer_sizes: tuple[int, ...],
    groups: Groups | None,
    calibration: Features | None,
    rate: Rate,
    seed: int,
) -> tuple[dict[str, Any], float]:
    """The same from features alone, without regions; layers are told apart if these are the sizes of theirs."""
    count = len(features.logits)
    check_enough(count, MIN_IMAGES)
    if is_given(groups) and len(groups) != count:
        raise ParameterError(f"{len(groups)} groups for {count} images: give one id for each image")
    if groups is not None and not is_given(groups) and not is_auto(groups):
        raise ParameterError("features have no names to group them by: give one id an image, or groups='auto'")
    grouped = find_groups(groups, features.statistics, [str(row) for row in range(count)], np.arange(count))
    calibrating = features if calibration is None else calibration
    others = None if calibration is None else np.arange(len(calibration.logits))
    plan = Plan.make(features, grouped, calibration=others, rate=rate, head=head, seed=seed)
    prepared = get_head(head)
    if isinstance(prepared, ComponentsHead):
        own = layer_sizes if sum(layer_sizes) == features.statistics.shape[1] else ()
        prepared = ComponentsHead(layer_sizes=own, seed=seed)
    fitted = prepared.fit(features.select(plan.fit), groups=plan.groups)
    scores = score_one_by_one(fitted, calibrating.select(plan.held_out))
    return {"head": fitted, "regions": None, **plan.fitted(scores)}, plan.rate


def known_count(source: object) -> int | None:
    """How many images there are, where that is known before they are read."""
    return len(source.names) if isinstance(source, PixelCache) else count_images(source)


def check_counts(
    images: object, calibration: object | None, groups: Groups | None, rate: Rate, *, min_images: int
) -> None:
    """Raises TooFewImagesError before the long work, where counting files is enough to know it."""
    if (count := known_count(images)) is not None:
        check_enough(count, min_images)
        if not isinstance(rate, str) and groups is None and calibration is None:
            calibration_size(count, rate, min_fit=MIN_FIT_IMAGES)
    if calibration is not None and (count := known_count(calibration)) is not None:
        check_calibration(count, smallest_rate(count, rate))


def calibration_groups(groups: Groups | None, images: NormalImages) -> Index:
    """The groups of calibration images by the rule, if there is one, that holds for the images to fit."""
    if groups is None or is_given(groups):
        return np.arange(len(images))
    return numbers_of(groups, images.names, images.positions)[0]


def with_transform(images: object, encoder: Encoder) -> object:
    """A cache becomes its images, if they came through the encoder's transform; any other source stays."""
    if not isinstance(images, PixelCache):
        return images
    check_same_transform(encoder.transform, images.transform)
    return (NamedImage(name, pixels) for name, pixels in zip(images.names, images.pixels, strict=True))


def as_features(features: Features | NDArray[np.floating], head: Head) -> Features:
    """Features of one's own for the head: a `Features`, or an array (images, dimensions), which has no logits."""
    if not isinstance(features, Features):
        values = np.asarray(features, np.float32)
        if values.ndim != 2 or not len(values) or not np.isfinite(values).all():
            raise ParameterError(f"features of shape {values.shape}: give finite numbers of shape (images, dimensions)")
        features = Features.without_logits(values)
    check_logits(features, head)
    return features


def check_logits(features: Features, head: Head) -> None:
    """Raises ParameterError where the head scores by logits and there are none."""
    if isinstance(head, LogitHead) and not features.logits.shape[1]:
        raise ParameterError(f"these features have no logits to score by: choose head={DEFAULT_HEAD!r} or 'statistics'")


class Adapted(NamedTuple):
    """Weights that were trained on, and the images that are left to fit and to calibrate a detector with them."""

    weights: Weights
    images: list[Pixels]
    calibration: object
    rate: Rate
    groups: list[int] | None  # of the images to fit
    refusals: RefusalReport


def adapt(
    weights: Weights,
    images: object,
    *,
    groups: Groups | None,
    calibration: object | None,
    steps: int,
    rate: Rate,
    seed: int,
    device: str,
    workers: Workers,
    limits: Limits = DEFAULT_LIMITS,
    decoder: Decoder = "pillow",
) -> Adapted:
    """Trains the weights for so many more steps on the images that are not held out."""
    if is_auto(groups):
        raise ParameterError("groups='auto' does not go with adapt_steps: give 'folder', 'name' or one id an image")
    transform = replace(weights.transform, decoder=decoder)
    with temporary_folder() as folder:
        if isinstance(images, PixelCache):
            check_same_transform(transform, images.transform)
            decoded = images
        else:
            decoded = open_cache(images, transform, folder, workers=workers, limits=limits)
        count = len(decoded.names)
        check_enough(count, MIN_IMAGES)
        if is_given(groups) and len(groups) != count:
            raise ParameterError(f"{len(groups)} groups for {count} readable images: give one id for each of them")
        numbers = np.arange(count) if groups is None else numbers_of(groups, decoded.names, np.arange(count))[0]
        fit = np.arange(count)
        if calibration is None:
            rate = choose_rate(rate, numbers, min_fit=MIN_FIT_IMAGES)
            fit, held_out = split_images(numbers, rate, seed=seed, min_fit=MIN_FIT_IMAGES)
            calibration = list(np.array(decoded.pixels[held_out]))
        pixels = np.array(decoded.pixels[fit])
        trained = train_on(weights, pixels, steps=steps, seed=seed, device=device)
        left = None if groups is None else numbers[fit].tolist()
        return Adapted(trained, list(pixels), calibration, rate, left, replace(decoded.report, accepted=0))


def train_on(weights: Weights, pixels: Pixels, *, steps: int, seed: int, device: str) -> Weights:
    """The weights after so many more steps of adversarial training on these images (N, size, size, 3)."""
    from discopatch.training import Ending, Hardware, RunOptions, get_preset, train

    natural, architecture = get_preset("natural"), weights.discriminator.architecture
    config = replace(
        natural,
        architecture=architecture,
        transform=weights.transform,
        images=min(len(pixels), natural.images),
        min_scale=max(natural.min_scale, architecture.patch_size / weights.transform.size),
        crop=None if architecture.kind == "plain" else get_preset("natural-v2").crop,
        steps=steps,
        seed=seed,
    )
    with temporary_folder() as folder:
        result = train(
            list(pixels),
            folder / "run",
            config,
            cache=folder / "cache",
            hardware=Hardware(accelerator="cpu" if device == "cpu" else "auto"),
            options=RunOptions(checkpoint_every=steps, samples_every=steps),
            start=weights,
        )
        if result.ending is not Ending.COMPLETE:
            signal.raise_signal(signal.SIGINT)  # the run took it, to end between two steps
            raise KeyboardInterrupt("adaptation was stopped before its end: nothing was fitted")
        return Weights.load(result.weights)
