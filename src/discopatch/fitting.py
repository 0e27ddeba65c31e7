"""Fitting: from normal images to everything that a detector has learnt."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from discopatch.calibration import (
    Calibration,
    DetectionRate,
    Index,
    NormalClass,
    Rate,
    calibration_size,
    check_calibration,
    check_enough,
    choose_rate,
    fold_numbers,
    one_of_each_group,
    smallest_rate,
    split_images,
    sure_images,
    sure_level,
    sure_rate,
)
from discopatch.classes import Classes, Partition, assign, names_of, needed_by, within_classes
from discopatch.corruptions.places import Mask
from discopatch.detection import measure_detection
from discopatch.encoders import (
    ChosenNetworks,
    Compare,
    Encoder,
    Features,
    Kind,
    Precision,
    pack_maps,
    stream_on_cores,
    unpack_maps,
)
from discopatch.encoders.places import is_large
from discopatch.errors import ImageError, MissingExtraError, NoImagesError, ParameterError
from discopatch.explain.reasons import ReasonModel
from discopatch.groups import Grouped, Groups, find_groups, is_given, numbers_of
from discopatch.heads import ComponentsHead, Head, PlaceModel, get_head, make_trials, measure_shifts
from discopatch.heads.base import Nearest
from discopatch.heads.modes import Mode
from discopatch.heads.places import PlaceFit, fit_places
from discopatch.heads.probes import central
from discopatch.images import (
    DEFAULT_WORKERS,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    RefusalReport,
    Source,
    Transform,
    Workers,
    list_source,
)
from discopatch.images.levels import BYTES, Bands, Choice, Levels, Values
from discopatch.images.transform import MAX_SIZE, MULTIPLE, Ignore, make_mask
from discopatch.model.patches import PatchCount, Sampling
from discopatch.normal_images import NormalImages, Progress, check_distinct, check_not_fitted, digest_of, find_drift
from discopatch.resolution import STEPS, ResolutionStep
from discopatch.results import Aspects
from discopatch.schema import Count, Name, between
from discopatch.scorer import Scorer
from discopatch.utils import counted, release_memory

Resolution = Annotated[int, between(64, MAX_SIZE)] | Literal["auto", "crop"]

MIN_IMAGES = 30  # normal images in all
MIN_FIT_IMAGES = 20
MAX_IMAGES = 20_000  # of a larger source, so many are drawn evenly
N_SAMPLED, MAX_SAMPLED_BYTES = 64, 2**28  # fitted images on which trials are made and reasons are learnt
NONE = slice(0)
N_MEASURED = 32  # images by whose sizes the shape of the transform is chosen
N_LEVELLED = 200  # images by which levels are chosen
N_PROBED = 6  # of these, images on which the probes are tried


@dataclass(frozen=True, kw_only=True)
class FitParameters:
    """The parameters of a detector that decide what a fit learns, beside networks and images."""

    head: Name
    patches: PatchCount | Literal["dense"]
    sampling: Sampling
    seed: Count
    precision: Precision
    reason_images: Count
    detection_images: Count
    resolution: Resolution
    confidence: Annotated[float, between(1e-9, 1 - 1e-9)] | None = None
    levels: Choice = "auto"
    bands: Bands | None = None


@dataclass(frozen=True, eq=False)
class FitResult:
    """Everything that a fit has learnt."""

    head: Head
    places: PlaceModel  # for the anomaly map, and for the head where places count
    reasons: ReasonModel | None  # none with reason_images=0
    calibration: Calibration
    n_fit: int
    n_groups: int | None = None  # of all images given, where they came in groups
    groups: str | None = None  # folder, name, auto or given
    cautions: tuple[str, ...] = ()  # near-copies, copies and drift among the normal images
    refusals: RefusalReport = field(default_factory=RefusalReport)
    detection_rates: tuple[DetectionRate, ...] = ()  # at the false-alarm rate; none with detection_images=0
    aspects: Aspects | None = None  # of the normal images
    resolutions: tuple[ResolutionStep, ...] = ()  # that were tried; none where it was given
    promised_rate: float | None = None  # with the confidence; the rate of the calibration is lower
    modes: tuple[Mode, ...] = ()  # of images that were accepted after the fit
    classes: tuple[NormalClass, ...] = ()  # each with a calibration of its own


@dataclass(frozen=True, eq=False)
class FittedState:
    """A fitted detector as it is stored."""

    parameters: FitParameters
    networks: ChosenNetworks
    transform: Transform  # that the normal images were read by
    fitted: FitResult

    def with_rate(self, rate: float) -> Self:
        calibration = self.fitted.calibration.with_rate(rate)
        kept = self.fitted.detection_rates if rate == self.fitted.calibration.rate else ()
        fitted = replace(self.fitted, calibration=calibration, detection_rates=kept, promised_rate=None)
        return replace(self, fitted=fitted, parameters=replace(self.parameters, confidence=None))


def possible_transforms(
    images: Source, own: Transform, resolution: Resolution, *, ignore: Ignore | None, limits: Limits
) -> list[Transform]:
    """Transforms of a new detector: that of the network, or of whole images with the usual aspect ratio.

    `auto` has several, of ascending resolution and none above that of the images.

    own: the network's transform.
    """
    if resolution == "crop":
        if ignore is not None:
            raise ParameterError("a mask needs whole images: choose another resolution, or leave out ignore")
        return [own]
    sizes = np.array(list(image_sizes(images, limits)) or [(own.size, own.size)])
    usual = Counter(map(tuple, sizes.tolist())).most_common(1)[0][0]
    aspect, short = float(np.exp(np.median(np.log(sizes[:, 1] / sizes[:, 0])))), int(np.median(sizes.min(1)))
    if resolution == "auto":
        sides = [own.size, *(step for step in STEPS if own.size < step <= short)]
    else:
        sides = [min(resolution, max(short, own.size))]
    found = [Transform.whole(aspect, MULTIPLE * max(2, round(side / MULTIPLE)), like=own) for side in sides]
    if ignore is None:
        return found
    return [replace(each, ignore=make_mask(ignore, usual, each.shape_of(*usual))) for each in found]


def choose_levels(images: Source, choice: Choice, bands: tuple[int, ...] | None, limits: Limits) -> Levels | None:
    """The levels of a new detector; None where half of the images or more have 8 bits."""
    is_given, missing = choice != "auto" or bands is not None, list[MissingExtraError]()

    def read(source: Source, most: int) -> Iterator[Values | None]:
        for item in islice(source.items(limits), most):
            try:
                values = item.values(limits)
            except ImageError as error:
                missing.extend([error.__cause__] if isinstance(error.__cause__, MissingExtraError) else [])
            else:
                yield values if values and (values.deep or (is_given and (bands or values.kind not in BYTES))) else None

    few = images if images.count is None else images.draw(N_MEASURED)  # to draw of shards reads their headers
    are_deep = [values is not None for values in read(few, N_MEASURED)]
    if len(missing) > len(are_deep) / 2:
        raise missing[0]
    if 2 * sum(are_deep) > len(are_deep):
        return Levels.choose(filter(None, read(images.draw(N_LEVELLED), N_LEVELLED)), choice, bands)
    if is_given and are_deep:
        raise ParameterError("most of these images have 8 bits: leave out levels and bands (--levels, --bands)")
    return None


def check_resolution(resolution: object) -> None:
    """Raises ParameterError unless it is a resolution."""
    if resolution not in ("auto", "crop") and not (isinstance(resolution, int) and 64 <= resolution <= MAX_SIZE):
        raise ParameterError(f"resolution is {resolution!r}: give auto, crop, or 64 to {MAX_SIZE} pixels")


def image_sizes(images: Source, limits: Limits) -> Iterator[tuple[int, int]]:
    """Height and width of some of the images; those that cannot be read are left out."""
    for item in islice(images.draw(N_MEASURED).items(limits), N_MEASURED):
        with suppress(ImageError):
            yield item.shape(limits)


class Split(NamedTuple):
    """Which images are fitted and which calibrate."""

    fit: Index  # among the normal images
    held_out: Index  # among them, or among calibration images of their own
    rate: float
    grouped: Grouped
    n_groups: int | None
    promised_rate: float | None = None  # with a confidence

    @classmethod
    def make(
        cls,
        grouped: Grouped,
        measured: Mask | slice = NONE,
        *,
        calibration: Index | None,
        rate: Rate,
        confidence: float | None = None,
        seed: int,
        classes: Partition | None = None,
    ) -> Self:
        """A random split, unless there are calibration images of their own: `calibration` are those that count.

        The groups of images that were `measured` before the fit do not calibrate. With classes, each is split.
        """
        promised = None
        if classes is not None and calibration is None:
            was_measured = np.zeros(len(grouped.numbers), bool)
            was_measured[measured] = True
            split: Any = {"confidence": confidence, "min_fit": MIN_FIT_IMAGES, "seed": seed}
            fit, held_out, chosen = classes.hold_out(grouped.numbers, was_measured, rate=rate, **split)
            total = None if grouped.kind is None else grouped.total
            return cls(fit, held_out, chosen, grouped, total).at(chosen, confidence)
        if confidence is not None:
            spare = grouped.total - MIN_FIT_IMAGES if grouped.kind is None else grouped.total - 1
            most = grouped.total // 2 if isinstance(rate, str) else max(spare, 0)
            promised = sure_rate(rate, confidence, most if calibration is None else len(calibration))
            rate = 1 / (sure_images(promised, confidence) + 1)  # as many images are held out as this rate needs
        if calibration is None:
            chosen, fitted = choose_rate(rate, grouped.numbers, min_fit=MIN_FIT_IMAGES), grouped.numbers[measured]
            fit, held_out = split_images(grouped.numbers, chosen, seed=seed, min_fit=MIN_FIT_IMAGES, fitted=fitted)
            n_groups = grouped.total
        else:
            chosen = smallest_rate(len(calibration), rate)
            check_calibration(len(calibration), chosen)
            fit, held_out = np.arange(len(grouped.numbers)), calibration
            n_groups = grouped.total + len(calibration)
        check_enough(len(fit), MIN_FIT_IMAGES)
        if confidence is not None and promised is not None:
            chosen = sure_level(len(held_out), promised, confidence)
        return cls(fit, held_out, chosen, grouped, None if grouped.kind is None else n_groups, promised)

    def at(self, rate: float, confidence: float | None) -> Self:
        """At another rate, which is promised with the confidence."""
        if confidence is None:
            return self._replace(rate=rate)
        return self._replace(rate=sure_level(len(self.held_out), rate, confidence), promised_rate=rate)

    @property
    def groups(self) -> Index | None:
        """The groups of the images to fit, where there are groups."""
        return None if self.grouped.kind is None else self.grouped.numbers[self.fit]


class MakeEncoder(Protocol):
    """Makes the encoder of a detector."""

    def __call__(self, kinds: Collection[Kind], *, compare: Compare | None = None, dense: bool = False) -> Encoder:
        """The encoder for these kinds of features; `dense` is one pass over the whole image, which places need."""


def fit_images(
    make_encoder: MakeEncoder,
    images: Source,
    parameters: FitParameters,
    *,
    rate: Rate,
    measured: Collection[str] = (),
    groups: Groups | None = None,
    classes: Classes | None = None,
    calibration: object | None = None,
    examples: object | None = None,
    workers: Workers = DEFAULT_WORKERS,
    progress: Progress | None = None,
) -> FitResult:
    """Reads the images, splits them, fits the head on one side and calibrates it on the other.

    measured: the names of images by which the resolution was chosen.
    """
    seed, refusals = parameters.seed, RefusalReport()
    encoder = make_encoder([kind for kind in get_head(parameters.head).needs if kind != "places"])
    local = make_encoder({*get_head(parameters.head).needs, "places"}, compare=pack_maps, dense=True)

    largest = encoder.transform.largest
    # Large images are compared in tiles, and those on a GPU together, with other last digits than from kept maps.
    keeps_maps = parameters.patches == "dense" and encoder.device.type == "cpu" and not is_large(*largest)
    reader = local if keeps_maps else encoder
    collect = partial(NormalImages.collect, reader, refusals=refusals, workers=workers, progress=progress, seed=seed)
    source = images.draw(MAX_IMAGES)
    others = None if calibration is None else list_source(calibration).draw(MAX_IMAGES)
    confidence = parameters.confidence
    check_counts(source, others, classes if groups is None else groups, rate, encoder.limits, confidence=confidence)
    normal = calibrating = collect(source)
    check_enough(len(normal), MIN_IMAGES, refusals.summary() if refusals else "")
    for ids, kind in ((groups, "groups"), (classes, "classes")):
        if is_given(ids) and normal.passed != len(ids):
            wrong = f"{len(ids):,} {kind} for {counted(normal.passed, 'image')}"
            raise ParameterError(f"{wrong}: give one id for each image")
    copies = check_distinct(normal.digests, normal.names, needed=MIN_IMAGES)
    given = None if classes is None else names_of(classes, normal.names, normal.positions)
    statistics = normal.features.statistics
    compared = statistics if given is None else within_classes(statistics, given)
    grouped = find_groups(groups, compared, normal.names, normal.positions)
    one_each = None
    if others is not None:
        calibrating = collect(others)
        check_not_fitted(calibrating, normal)
        one_each = one_of_each_group(calibration_groups(groups, calibrating), seed=seed)
    nearest: Nearest | None = None
    partition, order = None, np.arange(len(normal))
    if given is not None:
        least = MIN_IMAGES if isinstance(rate, str) else MIN_FIT_IMAGES + needed_by(rate, confidence)
        partition = Partition.of(given, grouped.numbers, least)
        order = partition.evenly()
    drift = find_drift(normal.features.select(order), get_head(parameters.head), grouped.alike[order], seed=seed)
    split = Split.make(
        grouped,
        np.isin(normal.names, list(measured)),
        calibration=one_each,
        rate=rate,
        confidence=confidence,
        seed=seed,
        classes=partition,
    )

    def counts(rows: Index) -> Index:
        """The numbers of these calibration images in each class."""
        if partition is None or nearest is None:
            return np.array([len(rows)])
        return np.bincount(assign(nearest, calibrating.features.statistics[rows]), minlength=partition.total)

    if partition is not None:
        deep = deep_statistics(encoder)
        partition = partition.merged(statistics, split.fit, deep)
        nearest = partition.nearest(statistics, split.fit, deep)
        chosen = partition.check(counts(split.held_out), split.promised_rate or split.rate, rate, confidence)
        split = split.at(chosen, confidence)

    rng = np.random.default_rng([seed, 3])
    most = min(N_SAMPLED, max(8, MAX_SAMPLED_BYTES // (3 * prod(largest))))
    sampled = rng.permutation(normal.pixels.among(split.fit))[:most]
    pixels = list(normal.pixels.read(sampled))
    alike = one_shape(pixels)
    pixels = [own if each.shape == own.shape else each for each, own in zip(pixels, alike, strict=True)]  # held once
    probed = central(alike[:N_PROBED]) if parameters.patches == "dense" else alike[:N_PROBED]
    known = normal.features.select(sampled[:N_PROBED]) if probed.shape[1:] == alike.shape[1:] else None
    shifts = measure_shifts(encoder.extract_pixels, probed, seed=seed, before=known)
    release_memory()
    places = compare_places(local, normal, split, seed=seed)
    release_memory()
    kept = calibrating.pixels.among(split.held_out)
    to_change = calibrating.positions[rng.permutation(split.held_out)[: parameters.detection_images]]
    head = get_head(parameters.head)
    if isinstance(head, ComponentsHead):
        # The pixels of some images are kept: the component needs enough of them to calibrate.
        enough = counts(kept).min() >= needed_by(split.promised_rate or split.rate, confidence)
        own = places if parameters.patches == "dense" and enough else None
        rows = np.searchsorted(split.fit, sampled)
        compare = None if own is None else own.compare
        trials = make_trials(local.extract_each, pixels, rows, compare=compare, seed=seed)
        defects = None if examples is None else statistics_of(examples, encoder, normal)
        sizes = encoder.layer_sizes
        head = ComponentsHead(layer_sizes=sizes, trials=trials, places=own, defects=defects, seed=seed)
    head = head.fit(normal.features.select(split.fit), shifts, groups=split.groups)
    head.classes = nearest
    reasons = None
    release_memory()
    if parameters.reason_images:
        belong, embedded = None if split.groups is None else grouped.numbers[sampled], None
        if encoder.embedding and known is not None and len({each.shape for each in pixels}) == 1:
            embedded = normal.features.statistics[sampled, -encoder.embedding :]
        reasons = ReasonModel.fit(
            alike,
            images=parameters.reason_images,
            embed=encoder.embed,
            embedded=embedded,
            groups=belong,
            seed=seed,
        )
    if "places" in head.needs:
        scoring = make_encoder(head.needs, compare=places.model)
        scorer = Scorer(scoring, head)
        held_out = compared_with(places.model, calibrating, kept) or scoring.extract_each(calibrating.pixels.read(kept))
        outputs = [each for features in held_out for each in scorer.outputs(features)]
    else:
        scoring = encoder
        outputs = Scorer(encoder, head).outputs(calibrating.features.select(split.held_out))
    scores, numbers = (np.array([getattr(each, name) for each in outputs]) for name in ("score", "number"))
    check_calibration(scores, split.rate)
    cautions = (*filter(None, (copies, grouped.caution, drift)), *(partition.cautions if partition else ()))
    in_classes = () if partition is None else partition.describe(split.fit, numbers)
    promise = {"confidence": confidence, "promised": split.promised_rate}
    fitted = Calibration.of_classes(scores[np.lexsort((scores, numbers))], split.rate, in_classes, **promise)
    fitted.check()
    release_memory()
    rates = found_changes(Scorer(scoring, head, fitted), others or source, to_change, seed=seed)
    return FitResult(
        head=head,
        places=places.model,
        reasons=reasons,
        calibration=fitted,
        n_fit=len(split.fit),
        n_groups=split.n_groups,
        groups=grouped.kind,
        cautions=cautions,
        refusals=refusals,
        detection_rates=rates,
        promised_rate=split.promised_rate,
        classes=in_classes,
        aspects=(min(normal.aspects[0], calibrating.aspects[0]), max(normal.aspects[1], calibrating.aspects[1])),
    )


def compare_places(encoder: Encoder, normal: NormalImages, split: Split, *, seed: int) -> PlaceFit:
    """The comparison of places of the fitted images, whose rows are counted among these; the encoder gives maps."""
    rows = normal.pixels.among(split.fit)
    numbers = np.searchsorted(split.fit, rows)
    fold = fold_numbers(len(rows), None if split.groups is None else split.groups[numbers])

    return fit_places(
        lambda chosen: read_maps(encoder, normal, rows[chosen]), fold, numbers, blocks=encoder.place_sizes, seed=seed
    )


def read_maps(encoder: Encoder, normal: NormalImages, rows: Index) -> Iterator[Tensor]:
    """The packed maps (1, n) of these images, whose pixels are kept; the encoder gives those that are not."""
    if normal.maps.are_kept:
        yield from normal.maps.read(rows)
        return
    for features in encoder.extract_each(normal.pixels.read(rows)):
        yield torch.from_numpy(features.places[0])


def compared_with(model: PlaceModel, images: NormalImages, rows: Index) -> Iterator[Features] | None:
    """The features of each of these images, with places that the model compares, if their maps are kept."""
    if not images.maps.are_kept:
        return None
    found = stream_on_cores(lambda packed: model(unpack_maps(packed[None])), images.maps.read(rows))
    return (
        images.features.select(slice(row, row + 1))._replace(places=z.numpy())
        for row, z in zip(rows.tolist(), found, strict=True)
    )


def statistics_of(examples: object, encoder: Encoder, normal: NormalImages) -> NDArray[np.float32]:
    """The statistics (images, d) of examples of defects, none of which may be among the normal images."""
    found, known = [], set(normal.digests)
    for item in encoder.extract(examples):
        if isinstance(item, Refusal):
            raise ImageError(item.reason, f"an example cannot be used: {item.name}: {item.error}")
        if digest_of(item[0].pixels) in known:
            raise ParameterError(f"{item[0].name} is an example of a defect and a normal image too: leave out one")
        found.append(item[1].statistics)
    if not found:
        raise NoImagesError("no example of a defect: check the path of examples")
    return np.concatenate(found)


def deep_statistics(encoder: Encoder) -> slice:
    """The statistics of deep layers, which follow the content of an image; all where layers are not known."""
    sizes = encoder.layer_sizes
    return slice(sum(sizes[: (len(sizes) + 1) // 2]), sum(sizes)) if len(sizes) > 1 else slice(None)


def found_changes(scorer: Scorer, source: Source, positions: Index, *, seed: int) -> tuple[DetectionRate, ...]:
    """How many made-up changes of the images at these positions of a source are found."""
    transform, limits = scorer.encoder.transform, scorer.encoder.limits

    def images() -> Iterator[Pixels]:
        """In their own size, one at a time and in the source's order."""
        for position, item in enumerate(islice(source.items(limits), int(positions.max(initial=-1)) + 1)):
            if position in positions:
                with suppress(ImageError):  # it was readable before
                    yield np.asarray(item.decode(limits, levels=transform.levels))

    def flagged(changed: Sequence[Pixels]) -> NDArray[np.bool_]:
        return scorer.predict([NamedImage("", each) for each in changed]).is_ood.filled(False)

    return measure_detection(images(), transform, flagged, seed=seed)


def one_shape(pixels: Sequence[Pixels]) -> Pixels:
    """The images (B, H, W, 3), resized to the shape of most."""
    (height, width, _), _ = Counter(each.shape for each in pixels).most_common(1)[0]
    resized = (Image.fromarray(each).resize((width, height), Image.Resampling.BICUBIC) for each in pixels)
    return np.stack([np.asarray(each) for each in resized])


def check_counts(
    images: Source,
    calibration: Source | None,
    groups: Groups | Classes | None,
    rate: Rate,
    limits: Limits,
    *,
    confidence: float | None = None,
) -> None:
    """Raises TooFewImagesError before the long work, where counting files is enough."""
    if images.count is not None:
        if images.count < MIN_IMAGES:
            check_readable(images, limits)
        if not isinstance(rate, str) and groups is None and calibration is None:
            if confidence is None:
                calibration_size(images.count, rate, min_fit=MIN_FIT_IMAGES)
            else:
                sure_rate(rate, confidence, max(images.count - MIN_FIT_IMAGES, 0))
    if calibration is not None and calibration.count is not None:
        check_calibration(calibration.count, smallest_rate(calibration.count, rate))


def check_readable(images: Source, limits: Limits) -> None:
    """Raises an error about too few images that says which of them, or of the folders, cannot be read."""
    refusals, detail = RefusalReport(), ""
    for item in images.items(limits):
        try:
            item.shape(limits)
        except ImageError as error:
            refusals.add(Refusal(item.name, error.reason, error.detail))
            detail = f"{item.name}: {error.detail}"
        else:
            refusals.accepted += 1
    if images.count == refusals.count == 1:
        raise NoImagesError(detail)
    check_enough(refusals.accepted, MIN_IMAGES, refusals.summary() if refusals else "")


def calibration_groups(groups: Groups | None, images: NormalImages) -> Index:
    """The groups of calibration images, by the rule that holds for the images to fit."""
    if groups is None or is_given(groups):
        return np.arange(len(images))
    return numbers_of(groups, images.names, images.positions)[0]
