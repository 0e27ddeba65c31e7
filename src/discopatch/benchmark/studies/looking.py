"""What a model of patches shows of the pictures, and what that is worth."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from discopatch.benchmark.falsealarms import side_by_side
from discopatch.benchmark.studies.figures import THREADS, Draws, Scores, compare_sets
from discopatch.benchmark.studies.gallery import FIT, TEST, Gallery
from discopatch.benchmark.studies.plan import Plan, Precision
from discopatch.fitting import CHANGED
from discopatch.images import Pixels
from discopatch.model.weights import Weights
from discopatch.scoring import CombinedHead, Evidence, Head, Scorer
from discopatch.scoring.changes import displacements
from discopatch.scoring.evidence import Displacements
from discopatch.scoring.scorer import chosen

PATCHES_AT_ONCE = 4096
WHOLE_AT_ONCE = 64


@contextmanager
def rounding(precision: Precision, device: str | torch.device) -> Iterator[None]:
    """Scoring in that precision, by kernels that need no search: the shapes are many, and each is met a few times."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = precision != "fp32"
    cudnn.benchmark = False
    with ExitStack() as stack:
        if precision == "fp16" and chosen(device).type == "cuda":
            stack.enter_context(torch.autocast("cuda", torch.float16))
        try:
            yield
        finally:
            cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def evaluate(weights: Weights, gallery: Gallery, plan: Plan, device: str) -> dict[str, Any]:
    """AUROC of every set and group by four scores.

    patches: the mean logit of random patches, the paper's; logit: that of one dense pass; statistics and combined:
    heads fitted on some training photos in a dense pass.
    """
    groups = gallery.groups(plan.severities)
    by_patches = scorer(weights, plan, device, patches=plan.scored_patches)
    dense = scorer(weights, plan, device)
    with rounding(plan.precision, device), ThreadPoolExecutor(THREADS) as threads:
        fitting = threads.submit(CombinedHead().fit, *normal(dense, gallery, plan.seed))  # while the device goes on
        pixels, places = gallery.after(FIT)
        of_patches = by_patches.score_pixels(pixels)
        evidence = dense.inspect_pixels(pixels)
        scores = judged(evidence, places, members(groups), side_by_side(fitting.result()), threads)
        both = {name: {"patches": of_patches[places[name]], **each} for name, each in scores.items()}
        found = compare_sets(both, groups, Draws(plan.seed, plan.resamples), threads)
    return {"weights digest": weights.digest, "patches": plan.scored_patches, **found}


def patch_counts(weights: Weights, gallery: Gallery, plan: Plan, device: str) -> dict[str, Any]:
    """AUROC of every group by how many random patches an image is looked at through; heads fitted anew each time."""
    groups = {name: each for name, each in gallery.groups([plan.one_severity]).items() if name != "control"}
    names = members(groups)
    pixels, places = together(gallery, names, plan.count_pictures)
    seen: dict[int, tuple[Evidence, Future[CombinedHead]]] = {}
    with rounding(plan.precision, device), ThreadPoolExecutor(THREADS) as threads:
        for count in plan.counts:
            look = scorer(weights, plan, device, patches=count)
            fitting = threads.submit(CombinedHead().fit, *normal(look, gallery, plan.seed))
            seen[count] = look.inspect_pixels(pixels), fitting
        counts = {}
        for count, (evidence, fitting) in seen.items():
            scores = judged(evidence, places, names, side_by_side(fitting.result()), threads)
            found = compare_sets(scores, groups, Draws(plan.seed, plan.resamples), threads)
            counts[str(count)] = found["groups"]
    images = {name: place.stop - place.start for name, place in places.items()}
    return {"weights digest": weights.digest, "severity": plan.one_severity, "images": images, "counts": counts}


def scorer(weights: Weights, plan: Plan, device: str, *, patches: int | None = None) -> Scorer:
    """Through so many random patches, or in one dense pass; the pictures are those of the plan's transform."""
    size = WHOLE_AT_ONCE if patches is None else max(1, PATCHES_AT_ONCE // patches)
    return Scorer(
        replace(weights, transform=plan.transform),
        patches=patches or 1,
        sampling="dense" if patches is None else "random",
        seed=plan.seed,
        device=device,
        batch_size=size,
    )


def normal(look: Scorer, gallery: Gallery, seed: int) -> tuple[Evidence, Displacements]:
    """What a head is fitted on: normal pictures, and how known changes move a few of them, as a detector tries them."""
    pictures = changed_pictures(gallery, seed)
    shown = look.inspect_pixels(np.concatenate(list(pictures.values()))).statistics
    before, *after = np.split(shown, len(pictures))
    moved = {name: each - before for name, each in zip(list(pictures)[1:], after, strict=True)}
    return look.inspect_pixels(gallery.of(FIT)), moved


@lru_cache(maxsize=1)
def changed_pictures(gallery: Gallery, seed: int) -> dict[str, Pixels]:
    """A few pictures as they are, then under each known change: once for all models, as it takes a while."""
    shown: list[Pixels] = []

    def look(pictures: Pixels) -> Evidence:
        shown.append(pictures)
        return Evidence(np.empty((len(pictures), 0), np.float32), np.empty((len(pictures), 0), np.float32))

    names = displacements(look, gallery.of(FIT)[:CHANGED], seed=seed)
    return dict(zip(("", *names), shown, strict=True))


def judged(
    evidence: Evidence,
    places: Mapping[str, slice],
    names: Sequence[str],
    heads: Mapping[str, Head],
    threads: ThreadPoolExecutor,
) -> dict[str, Scores]:
    """Set by set, by each head."""

    def judge(name: str) -> Scores:
        return {title: head.score(evidence.of(places[name])) for title, head in heads.items()}

    return dict(zip(names, threads.map(judge, names), strict=True))


def members(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The test photos, and all sets that are compared with them."""
    return [TEST, *(name for group in groups.values() for name in group)]


def together(gallery: Gallery, names: Sequence[str], most: int) -> tuple[Pixels, dict[str, slice]]:
    """The pictures of these sets, at most so many of each, as one array: all batches but the last have one size."""
    parts = [gallery.of(name)[:most] for name in names]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    places = {name: slice(end - len(part), end) for name, part, end in zip(names, parts, ends, strict=True)}
    return np.concatenate(parts), places
