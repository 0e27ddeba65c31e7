"""Corrupted images against the same images untouched."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from discopatch.benchmark.bench import HEADS, PAPER, Bench, Report, Seen, compare, figure, figures, score
from discopatch.benchmark.falsealarms import side_by_side
from discopatch.benchmark.metrics import Estimate, auroc
from discopatch.benchmark.plan import GROUPS, Cell, Plan
from discopatch.benchmark.reading import ImageSet
from discopatch.benchmark.routes import LOSSLESS, Storage
from discopatch.images import Pixels
from discopatch.scoring import Evidence, Head

Estimates = dict[str, dict[Cell, Estimate]]  # by head

FIT_SIZE_RATE = 0.1  # asks for few calibration images, so that the smallest fits are allowed


def corruption_estimates(
    bench: Bench, name: str, test: ImageSet, clean: Seen, heads: Mapping[str, Head], *, storage: Storage = LOSSLESS
) -> tuple[Estimates, dict[str, Evidence]]:
    """AUROC of every cell; and the evidence of the first images at one severity, for those who fit other heads.

    The last step of every image is its storage, that of the clean ones. Three things go on at once: processes corrupt,
    the network looks, and a thread scores and resamples.
    """
    same = bench.drawn(f"{name} test", len(test))  # an image and its corrupted copies are drawn together
    normal = score(clean, heads)
    kept: dict[str, Evidence] = {}

    def judge(seen: Seen) -> dict[str, Estimate]:
        return compare(normal, score(seen, heads), (same, same))

    with ThreadPoolExecutor(1) as judging:
        pending: dict[Cell, Future[dict[str, Estimate]]] = {}
        for cell, seen in seen_cells(bench, name, test, storage):
            pending[cell] = judging.submit(judge, seen)
            if cell[1] == bench.plan.fit_size_severity:
                kept[cell[0]] = seen.dense.of(slice(bench.plan.fit_size_test))
        found = {cell: each.result() for cell, each in pending.items()}
    return {head: {cell: each[head] for cell, each in found.items() if head in each} for head in HEADS}, kept


def seen_cells(bench: Bench, name: str, test: ImageSet, storage: Storage) -> Iterator[tuple[Cell, Seen]]:
    """What the network shows of the test images under every corruption, cell by cell, in constant memory."""
    plan, parts, done = bench.plan, list[Seen](), 0
    for corruption, severity, pixels in bench.pool.corrupted(test.pixels, plan.cells, storage):
        parts.append(bench.look(pixels, paper=severity in plan.paper_severities))
        done += len(pixels)
        bench.tell(f"{name}, corrupted", done, len(plan.cells) * len(test))
        if done % len(test) == 0:
            yield (corruption, severity), Seen.concatenate(parts)
            parts = []


def corruption_report(estimates: Estimates, plan: Plan) -> Report:
    """Every cell, and means over groups of them: over all severities, and over those that every head has."""
    everywhere = {head: cells for head, cells in estimates.items() if head != PAPER}
    return {
        "cells": {head: cell_figures(cells) for head, cells in estimates.items() if cells},
        "means": {head: figures(group_means(cells, plan.severities)) for head, cells in everywhere.items()},
        "common severities": list(plan.common_severities),
        "common means": {
            head: figures(group_means(cells, plan.common_severities)) for head, cells in estimates.items() if cells
        },
        "severity means": {
            head: {str(each): figure(over(cells, GROUPS["all 19"], (each,))) for each in plan.severities}
            for head, cells in everywhere.items()
        },
    }


def cell_figures(cells: Mapping[Cell, Estimate]) -> dict[str, dict[str, list[float]]]:
    """By corruption, then by severity."""
    found: dict[str, dict[str, list[float]]] = {}
    for (name, severity), each in cells.items():
        found.setdefault(name, {})[str(severity)] = figure(each)
    return found


def group_means(cells: Mapping[Cell, Estimate], severities: tuple[int, ...]) -> dict[str, Estimate]:
    """The mean of each group of corruptions; a group of which nothing was measured is left out."""
    measured = {name for name, severity in cells if severity in severities}
    return {group: over(cells, names, severities) for group, names in GROUPS.items() if measured & set(names)}


def over(cells: Mapping[Cell, Estimate], names: tuple[str, ...], severities: tuple[int, ...]) -> Estimate:
    """The mean over the cells of these corruptions and severities that were measured."""
    return Estimate.mean([each for (name, severity), each in cells.items() if name in names and severity in severities])


def severity_0(bench: Bench, pixels: Pixels, clean: Seen, heads: Mapping[str, Head]) -> Report:
    """Half of the untouched images against the other half, stored as PNG and read again: near 0.5, or a fault.

    The interval holds 95 % of the halvings: how far chance alone takes a figure with so few images.
    """
    again = bench.look(np.stack([LOSSLESS.store(each) for each in pixels]))
    first, second = score(clean, heads), score(again, heads)
    found = {}
    for head in first:
        rng = np.random.default_rng(bench.plan.seed)
        halves = [np.array_split(rng.permutation(len(pixels)), 2) for _ in range(bench.plan.halvings)]
        values = np.array([auroc(first[head][these], second[head][those]) for these, those in halves])
        found[head] = Estimate(float(values.mean()), values)
    return figures(found)


def fit_size_report(bench: Bench, fit: ImageSet, clean: Evidence, corrupted: Mapping[str, Evidence]) -> Report:
    """Mean AUROC at one severity by how many images were given to fit, calibration included."""
    found: Report = {}
    tested = next(iter(corrupted.values())).logits.shape[0] if corrupted else 0
    drawn = bench.drawn("fit size", tested) if tested else None
    for size in bench.plan.fit_sizes:
        if drawn is None or size > len(fit):
            continue
        detector = bench.detector(false_alarm_rate=FIT_SIZE_RATE).fit(fit.of(slice(size)).pictures)
        heads = side_by_side(detector.fitted.head)  # type: ignore[arg-type]  # the default head is the combined one
        normal = score(Seen(clean.of(slice(tested)), None), heads)
        cells = [compare(normal, score(Seen(each, None), heads), (drawn, drawn)) for each in corrupted.values()]
        found[str(size)] = {
            "fitted": detector.fitted.images,
            **figures({head: Estimate.mean([cell[head] for cell in cells]) for head in normal}),
        }
    return {"severity": bench.plan.fit_size_severity, "test": tested, "sizes": found}
