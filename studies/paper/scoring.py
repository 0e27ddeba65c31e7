"""What a model of patches is worth: AUROC by set and by group of sets, and by the number of patches."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import compared_heads
from discopatch.bench.bootstrap import Counts, Estimate, draw_resamples, estimate_auroc
from discopatch.encoders import DiscriminatorEncoder, Features, resolve_device
from discopatch.fitting import N_PROBED
from discopatch.heads import CombinedHead, Head, LogitHead, ProbeShifts, measure_shifts
from discopatch.images import Pixels
from discopatch.model import Weights
from paper.dataset import CONTROL, FAR, FIT, NEAR, TEST, Dataset, set_groups
from paper.plan import Plan, Precision

Floats = NDArray[np.float64]
Scores = Mapping[str, Floats]  # by head: (images,), higher for more out-of-distribution

PATCHES_AT_ONCE = 4096
IMAGES_AT_ONCE = 64
THREADS = 8


def evaluate(weights: Weights, dataset: Dataset, plan: Plan, device: str) -> dict[str, Any]:
    """AUROC of every set and group by four scores.

    patches: the mean logit of random patches, the paper's; logit: that of one dense pass; statistics and combined:
    heads fitted on some training photos in a dense pass.
    """
    groups = set_groups(plan, plan.severities)
    of_patches = make_encoder(weights, plan, device, patches=plan.scored_patches)
    dense = make_encoder(weights, plan, device)
    with scoring_precision(plan.precision, device), ThreadPoolExecutor(THREADS) as threads:
        fitting = threads.submit(CombinedHead().fit, *normal_features(dense, dataset, plan.seed))  # beside the device
        pixels, places = dataset.without_fit()
        patch_scores = LogitHead().score(of_patches.extract_pixels(pixels))
        features = dense.extract_pixels(pixels)
        scores = score_sets(features, places, all_members(groups), compared_heads(fitting.result()), threads)
        both = {name: {"patches": patch_scores[places[name]], **each} for name, each in scores.items()}
        figures = compare_sets(both, groups, Resamples(plan.seed, plan.resamples), threads)
    return {"weights digest": weights.digest, "patches": plan.scored_patches, **figures}


def count_patches(weights: Weights, dataset: Dataset, plan: Plan, device: str) -> dict[str, Any]:
    """AUROC of every group by how many random patches of an image are scored; heads are fitted anew each time."""
    groups = {name: each for name, each in set_groups(plan, [plan.one_severity]).items() if name != "control"}
    names = all_members(groups)
    parts = [dataset.images(name)[: plan.count_images] for name in names]
    pixels = np.concatenate(parts)  # all batches but the last have one size
    ends = np.cumsum([len(part) for part in parts]).tolist()
    places = {name: slice(end - len(part), end) for name, part, end in zip(names, parts, ends, strict=True)}
    extracted: dict[int, tuple[Features, Future[CombinedHead]]] = {}
    counts = {}
    with scoring_precision(plan.precision, device), ThreadPoolExecutor(THREADS) as threads:
        for count in plan.counts:
            encoder = make_encoder(weights, plan, device, patches=count)
            fitting = threads.submit(CombinedHead().fit, *normal_features(encoder, dataset, plan.seed))
            extracted[count] = encoder.extract_pixels(pixels), fitting
        for count, (features, fitting) in extracted.items():
            scores = score_sets(features, places, names, compared_heads(fitting.result()), threads)
            figures = compare_sets(scores, groups, Resamples(plan.seed, plan.resamples), threads)
            counts[str(count)] = figures["groups"]
    images = {name: len(part) for name, part in zip(names, parts, strict=True)}
    return {"weights digest": weights.digest, "severity": plan.one_severity, "images": images, "counts": counts}


@contextmanager
def scoring_precision(precision: Precision, device: str | torch.device) -> Iterator[None]:
    """Scoring in that precision, by kernels that need no search: the shapes are many, and each occurs a few times."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = precision != "fp32"
    cudnn.benchmark = False
    with ExitStack() as stack:
        if precision == "fp16" and resolve_device(device).type == "cuda":
            stack.enter_context(torch.autocast("cuda", torch.float16))
        try:
            yield
        finally:
            cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def make_encoder(weights: Weights, plan: Plan, device: str, *, patches: int | None = None) -> DiscriminatorEncoder:
    """An encoder of so many random patches, or of one dense pass, for images of the plan's transform."""
    return DiscriminatorEncoder(
        replace(weights, transform=plan.transform),
        patches=patches or "dense",
        seed=plan.seed,
        device=device,
        batch_size=max(1, PATCHES_AT_ONCE // patches) if patches else IMAGES_AT_ONCE,
    )


def normal_features(encoder: DiscriminatorEncoder, dataset: Dataset, seed: int) -> tuple[Features, ProbeShifts]:
    """What a head is fitted on: features of normal images, and how each probe shifts those of a few."""
    images = probed_images(dataset, seed)
    statistics = encoder.extract_pixels(np.concatenate(list(images.values()))).statistics
    before, *after = np.split(statistics, len(images))
    shifts = {name: each - before for name, each in zip(list(images)[1:], after, strict=True)}
    return encoder.extract_pixels(dataset.images(FIT)), shifts


@lru_cache(maxsize=1)
def probed_images(dataset: Dataset, seed: int) -> dict[str, Pixels]:
    """A few images as they are, then under each probe: once for all models, as it takes a while."""
    images: list[Pixels] = []

    def record(pixels: Pixels) -> Features:
        images.append(pixels)
        return Features(np.empty((len(pixels), 0), np.float32), np.empty((len(pixels), 0), np.float32))

    names = measure_shifts(record, dataset.images(FIT)[:N_PROBED], seed=seed)
    return dict(zip(("", *names), images, strict=True))


def all_members(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The test photos, and all sets that are compared with them."""
    return [TEST, *(name for group in groups.values() for name in group)]


def score_sets(
    features: Features,
    places: Mapping[str, slice],
    names: Sequence[str],
    heads: Mapping[str, Head],
    threads: ThreadPoolExecutor,
) -> dict[str, Scores]:
    """The scores of each set by each head."""

    def score(name: str) -> Scores:
        return {title: head.score(features.select(places[name])) for title, head in heads.items()}

    return dict(zip(names, threads.map(score, names), strict=True))


@dataclass(frozen=True)
class Resamples:
    """Which images each bootstrap resample has: a test photo and its corrupted copies are drawn together."""

    seed: int
    resamples: int

    def auroc(self, normal: Floats, shifted: Floats, name: str) -> Estimate:
        """AUROC of the set of that name against the test photos."""
        own = name if name in (*NEAR, *FAR, *CONTROL) else TEST
        return estimate_auroc(normal, shifted, (self._draw(TEST, len(normal)), self._draw(own, len(shifted))))

    def _draw(self, name: str, images: int) -> Counts:
        return draw_once(images, self.seed, name, self.resamples)


@lru_cache(maxsize=64)
def draw_once(images: int, seed: int, name: str, resamples: int) -> Counts:
    """Once for all figures: drawing takes longer than they do."""
    return draw_resamples(images, seed=seed, name=name, resamples=resamples)


def compare_sets(
    scores: Mapping[str, Scores], groups: Mapping[str, Sequence[str]], resamples: Resamples, threads: ThreadPoolExecutor
) -> dict[str, Any]:
    """AUROC of each set and, as a mean over its sets, of each group, by score; the test photos are the normal ones."""
    normal = scores[TEST]

    def compare(name: str) -> dict[str, Estimate]:
        return {score: resamples.auroc(normal[score], each, name) for score, each in scores[name].items()}

    names = [name for group in groups.values() for name in group]
    sets = dict(zip(names, threads.map(compare, names), strict=True))
    means = {
        group: {score: Estimate.mean([sets[name][score] for name in members]) for score in normal}
        for group, members in groups.items()
    }

    def figures(estimates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, dict[str, list[float]]]:
        return {name: {score: each.rounded() for score, each in row.items()} for name, row in estimates.items()}

    return {"groups": figures(means), "sets": figures(sets)}
