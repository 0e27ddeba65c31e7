"""From normal images to the fitted state of a detector: features of all, some held out, a few images kept."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import Groups, check_calibration, check_enough, split_groups, split_images
from discopatch.encoders import DiscriminatorEncoder, Encoder, Extracted, Features
from discopatch.errors import ParameterError
from discopatch.heads import Head, LogitHead, RegionModel, get_head, measure_shifts
from discopatch.images import (
    DEFAULT_WORKERS,
    NamedImage,
    PixelCache,
    Pixels,
    Refusal,
    RefusalReport,
    Workers,
    check_same_transform,
    count_images,
    open_cache,
)
from discopatch.model import Weights
from discopatch.scorer import Scorer

MIN_IMAGES = 30  # normal images in all
MIN_FIT_IMAGES = 20
N_SAMPLED = 16  # normal images whose regions are looked at
N_PROBED = 6  # of those, on how many the probes are tried

Progress = Callable[[int, int | None], object]  # images done, images in all where that is known


@dataclass(frozen=True, eq=False)
class FittedState:
    """All that a fitted detector is: what it was asked for, what it learnt, and what it was calibrated on."""

    parameters: Mapping[str, Any]  # head, false_alarm_rate, patches, sampling, seed, precision
    weights: Weights
    weights_name: str | None  # of released weights
    head: Head
    regions: RegionModel | None  # none for a detector that was fitted on features
    calibration_scores: NDArray[np.float64]  # of normal images that were held out, ascending
    n_fit: int
    refusals: RefusalReport = field(default_factory=RefusalReport)


def make_encoder(
    weights: Weights, parameters: Mapping[str, Any], *, device: str, batch_size: int
) -> DiscriminatorEncoder:
    """The encoder of a detector with these parameters."""
    chosen = {name: parameters[name] for name in ("patches", "sampling", "seed", "precision")}
    return DiscriminatorEncoder(weights, **chosen, device=device, batch_size=batch_size)


@dataclass(frozen=True, eq=False)
class NormalImages:
    """The features of normal images, and the pixels of a random few by their index among the accepted."""

    features: Features
    positions: NDArray[np.intp]  # in the source, refused images counted
    sample: dict[int, Pixels]
    passed: int  # images of the source, refused ones counted

    @classmethod
    def collect(
        cls,
        stream: Iterable[Extracted | Refusal],
        refusals: RefusalReport,
        progress: Progress | None,
        *,
        seed: int,
        total: int | None = None,
        sampled_from: Collection[int] | None = None,
    ) -> Self:
        """Reads the whole stream; no more than a few images are in memory at a time."""
        rng = np.random.default_rng(seed)
        found: list[Features] = []
        positions: list[int] = []
        sample: dict[int, Pixels] = {}
        eligible = passed = 0
        for position, item in enumerate(stream):
            passed += 1
            if isinstance(item, Refusal):
                refusals.add(item)
            else:
                if sampled_from is None or position in sampled_from:
                    keep_random(sample, len(found), item.pixels, eligible, rng)
                    eligible += 1
                found.append(item.features)
                positions.append(position)
            if progress is not None:
                progress(passed, total)
        refusals.accepted += len(found)
        if not found:
            raise refusals.nothing_left()
        return cls(Features.concatenate(found), np.array(positions), sample, passed)

    def __len__(self) -> int:
        return len(self.positions)

    def split(self, rate: float, *, seed: int) -> tuple["NormalImages", Features]:
        """The images to fit and the features of those held out; the sample is always fitted: more is learnt from it."""
        fit, held_out = split_images(len(self), rate, seed=seed, min_fit=MIN_FIT_IMAGES, always_fit=self.sample)
        return self.select(self.positions[fit]), self.features.select(held_out)

    def select(self, positions: NDArray[np.intp]) -> "NormalImages":
        """The images at those positions of the source, with what there is of them in the sample."""
        chosen = np.isin(self.positions, positions)
        sample = {index: pixels for index, pixels in self.sample.items() if chosen[index]}
        return replace(self, features=self.features.select(chosen), positions=self.positions[chosen], sample=sample)


def keep_random(sample: dict[int, Pixels], index: int, pixels: Pixels, count: int, rng: np.random.Generator) -> None:
    """Reservoir sampling: keeps each of the images that pass with equal chance; `count` have passed before."""
    if len(sample) < N_SAMPLED:
        sample[index] = pixels
    elif (place := int(rng.integers(count + 1))) < N_SAMPLED:
        del sample[list(sample)[place]]
        sample[index] = pixels


def fit_images(
    encoder: Encoder,
    images: object,
    *,
    head: str,
    rate: float,
    seed: int,
    groups: Groups | None = None,
    calibration: object | None = None,
    min_images: int = MIN_IMAGES,
    refusals: RefusalReport,
    workers: Workers = DEFAULT_WORKERS,
    progress: Progress | None = None,
) -> tuple[Head, RegionModel, NDArray[np.float64], int]:
    """The fitted head and regions, the ascending scores of what was held out, and how many images were fitted."""

    def collect(source: object, sampled_from: Collection[int] | None = None) -> NormalImages:
        return NormalImages.collect(
            encoder.extract(with_transform(source, encoder), workers=workers),
            refusals,
            progress,
            seed=seed,
            total=len(source.names) if isinstance(source, PixelCache) else count_images(source),
            sampled_from=sampled_from,
        )

    if groups is not None:
        split = partial(split_groups, groups, rate, seed=seed, min_fit=MIN_FIT_IMAGES, min_images=min_images)
        found = collect(images, set(split()[0].tolist()))
        if found.passed != len(groups):
            raise ParameterError(f"{len(groups)} groups for {found.passed} images: give one id for each image")
        fit, others = split(readable=found.positions)
        normal, held_out = found.select(fit), found.select(others).features
    else:
        normal = collect(images)
        check_enough(len(normal), min_images)
        if calibration is None:
            normal, held_out = normal.split(rate, seed=seed)
        else:
            held_out = collect(calibration).features
    check_enough(len(normal), MIN_FIT_IMAGES)
    check_calibration(len(held_out.logits), rate)
    sample = np.stack(list(normal.sample.values()))
    shifts = measure_shifts(encoder.extract_pixels, sample[:N_PROBED], seed=seed)
    fitted = get_head(head).fit(normal.features, shifts)
    regions = RegionModel.fit(encoder, sample, seed=seed)
    return fitted, regions, np.sort(Scorer(encoder, fitted).score_features(held_out)), len(normal)


def with_transform(images: object, encoder: Encoder) -> object:
    """A cache becomes its images, if they came through the encoder's transform; any other source stays."""
    if not isinstance(images, PixelCache):
        return images
    check_same_transform(encoder.transform, images.transform)
    return (NamedImage(name, pixels) for name, pixels in zip(images.names, images.pixels, strict=True))


def as_features(features: Features | NDArray[np.floating], head: Head) -> Features:
    """Features of one's own for the head: a `Features`, or an array (images, dimensions), which has no logits."""
    if isinstance(features, Features):
        return features
    values = np.asarray(features, np.float32)
    if values.ndim != 2 or not len(values) or not np.isfinite(values).all():
        raise ParameterError(f"features of shape {values.shape}: give finite numbers of shape (images, dimensions)")
    if isinstance(head, LogitHead):
        raise ParameterError("an array of features has no logits to score by: choose head='combined' or 'statistics'")
    return Features(np.zeros((len(values), 1), np.float32), values)


class Adapted(NamedTuple):
    """Weights that were trained on, and the images that are left to fit and to calibrate a detector with them."""

    weights: Weights
    images: list[Pixels]
    calibration: object
    refusals: RefusalReport


def adapt(
    weights: Weights,
    images: object,
    *,
    calibration: object | None,
    steps: int,
    rate: float,
    seed: int,
    device: str,
    workers: Workers,
) -> Adapted:
    """Trains the weights for so many more steps on the images that are not held out."""
    with TemporaryDirectory(prefix="discopatch-") as folder:
        if isinstance(images, PixelCache):
            check_same_transform(weights.transform, images.transform)
            decoded = images
        else:
            decoded = open_cache(images, weights.transform, Path(folder), workers=workers)
        count = len(decoded.names)
        check_enough(count, MIN_IMAGES)
        fit, held_out = np.arange(count), np.arange(0)
        if calibration is None:
            fit, held_out = split_images(count, rate, seed=seed, min_fit=MIN_FIT_IMAGES)
            calibration = list(np.array(decoded.pixels[held_out]))
        pixels = np.array(decoded.pixels[fit])
        trained = train_on(weights, pixels, steps=steps, seed=seed, device=device)
        return Adapted(trained, list(pixels), calibration, replace(decoded.report, accepted=0))


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
        steps=steps,
        seed=seed,
    )
    with TemporaryDirectory(prefix="discopatch-") as folder:
        result = train(
            list(pixels),
            Path(folder) / "run",
            config,
            cache=Path(folder) / "cache",
            hardware=Hardware(accelerator="cpu" if device == "cpu" else "auto"),
            options=RunOptions(checkpoint_every=steps, samples_every=steps),
            start=weights,
        )
        if result.ending is not Ending.COMPLETE:
            raise KeyboardInterrupt("adaptation was stopped before its end: nothing was fitted")
        return Weights.load(result.weights)
