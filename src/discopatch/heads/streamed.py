"""Heads from rows of features that are never in memory together, in three passes over them.

The first pass adds up means and covariances, fold by fold, and keeps the neighbours; the second adds what decides how
far covariances are shrunk; the third measures some rows with what was fitted without their fold, for the scales, and
the rows that are held out. A head is the one that its `fit` gives for the same rows, but for rounding, and but for what
is drawn where there are more than `MAX_MEASURED` rows, or more than `MAX_BANK` neighbours.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.calibration import FOLDS, Index, are_among, draw_rows
from discopatch.encoders import Features
from discopatch.encoders.cores import map_on_cores
from discopatch.errors import ParameterError
from discopatch.heads.base import STATISTICS, Array, Head
from discopatch.heads.combined import CombinedHead, soft_maximum
from discopatch.heads.components import DEEP, EARLY, ComponentsHead, HeldOut
from discopatch.heads.logit import LogitHead
from discopatch.heads.moments import StreamedGaussians
from discopatch.heads.neighbours import MAX_BANK, Neighbours
from discopatch.heads.parts import COLUMNS, PART_NAMES
from discopatch.heads.statistics import SMALLEST_SCALE, StatisticsHead

MAX_MEASURED = 100_000  # fitted rows by which parts are scaled


class RowBatch(NamedTuple):
    """Some rows, in order."""

    features: Features
    fitted: Index  # the number of each among the rows to fit, or -1 for one that is held out

    def to_fit(self) -> tuple[Features, Index]:
        """The rows to fit, and their numbers."""
        chosen = self.fitted >= 0
        return self.features.select(chosen), self.fitted[chosen]

    def held_out(self) -> Features:
        return self.features.select(self.fitted < 0)


class Rows(ABC):
    """Rows of features that can be passed again and again, each time in the same order."""

    n_fit: int  # rows to fit; all others are held out

    @abstractmethod
    def passes(self) -> Iterator[RowBatch]:
        """All rows, a batch at a time; only some features of each batch are in memory."""


def fit_streamed(head: Head, rows: Rows, *, seed: int) -> tuple[Head, Array]:
    """The fitted head, and the scores of the rows that are held out, in order; each as if scored by itself."""
    if isinstance(head, ComponentsHead):
        return fit_components(head, rows, seed=seed)
    if isinstance(head, CombinedHead):
        return fit_combined(head, rows, seed=seed)
    if isinstance(head, StatisticsHead):
        return fit_statistics(head, rows)
    if isinstance(head, LogitHead):
        return head, score_held_out(head, rows)
    raise ParameterError(f"{type(head).__name__} cannot be fitted row by row: give features that fit in memory")


def fit_statistics(head: StatisticsHead, rows: Rows) -> tuple[StatisticsHead, Array]:
    gaussians = StreamedGaussians(folds=1, smallest_scale=SMALLEST_SCALE)
    for features, _ in fitted_rows(rows):
        gaussians.add(features.statistics, np.zeros(len(features.logits), np.intp))
    for features, _ in fitted_rows(rows):
        gaussians.add_lengths(features.statistics, np.zeros(len(features.logits), np.intp))
    found = type(head)()
    found.gaussian = gaussians.fit(size=STATISTICS)
    return found, score_held_out(found, rows)


def fit_combined(head: CombinedHead, rows: Rows, *, seed: int) -> tuple[CombinedHead, Array]:
    gaussians = StreamedGaussians(folds=FOLDS, smallest_scale=SMALLEST_SCALE)
    for features, numbers in fitted_rows(rows):
        gaussians.add(features.statistics, numbers % FOLDS)
    for features, numbers in fitted_rows(rows):
        gaussians.add_lengths(features.statistics, numbers % FOLDS)

    def unscaled(left_out: int | None) -> CombinedHead:
        found = type(head)()
        found.statistics.gaussian = gaussians.fit(left_out, size=STATISTICS)
        return found.hold(filters=np.empty((0, len(found.statistics.gaussian.mean))))

    by_fold, whole = [unscaled(number) for number in range(FOLDS)], unscaled(None)
    measured, held_out = measure_rows(
        rows,
        lambda features, fold: by_fold[fold].evaluate(by_fold[fold].raw_components, features),
        lambda features: whole.evaluate(whole.raw_components, features),
        seed=seed,
    )
    found = whole.hold_scale(measured)
    return found, soft_maxima((held_out - found.centres.numpy()) / found.spreads.numpy())


def fit_components(head: ComponentsHead, rows: Rows, *, seed: int) -> tuple[ComponentsHead, Array]:
    """Without places: those of all rows that are held out would have to be read."""
    early, deep = (StreamedGaussians(folds=FOLDS, smallest_scale=SMALLEST_SCALE) for _ in range(2))
    drawn = draw_rows(rows.n_fit, MAX_BANK, seed=[seed, 12])
    bank: list[NDArray[np.float32]] = []
    offered: tuple[str, ...] = ()
    first = 0
    for features, numbers in fitted_rows(rows):
        if not offered:
            first = head.early_size(features.statistics.shape[1])
            there = {
                "logit": features.logits.shape[1] > 0,
                "early": True,
                "deep": len(head.layer_sizes) > 1,
                "neighbours": features.pooled.shape[1] > 0,
            }
            offered = tuple(part for part in PART_NAMES if there.get(part))
        early.add(features.statistics[:, :first], numbers % FOLDS)
        if "deep" in offered:
            deep.add(features.statistics[:, first:], numbers % FOLDS)
        bank.append(features.pooled[are_among(numbers, drawn)])
    for features, numbers in fitted_rows(rows):
        early.add_lengths(features.statistics[:, :first], numbers % FOLDS)
        if "deep" in offered:
            deep.add_lengths(features.statistics[:, first:], numbers % FOLDS)
    neighbours = Neighbours.fit(np.concatenate(bank), seed=seed) if "neighbours" in offered else None
    bank.clear()
    bank_folds = torch.from_numpy(drawn % FOLDS)

    def unscaled(parts: tuple[str, ...], left_out: int | None = None) -> ComponentsHead:
        means = [each.moments(left_out).mean for each in (early, deep) if each is early or "deep" in offered]
        return head.joined(
            parts,
            mean=np.concatenate(means),
            early=early.fit(left_out, size=EARLY),
            deep=deep.fit(left_out, size=DEEP) if "deep" in parts else None,
            neighbours=neighbours if "neighbours" in parts else None,
        )

    without_neighbours = tuple(part for part in offered if part != "neighbours")
    by_fold, whole = [unscaled(without_neighbours, number) for number in range(FOLDS)], unscaled(offered)

    @torch.inference_mode()
    def measure(features: Features, fold: int) -> Array:
        found = by_fold[fold].measure(features)
        if neighbours is not None:
            pooled = torch.from_numpy(features.pooled)
            found[:, COLUMNS["neighbours"]] = neighbours(pooled, (bank_folds == fold)[None]).numpy()
        return found

    measured, held_out = measure_rows(rows, measure, whole.measure, seed=seed)
    none = np.empty((0, len(PART_NAMES)))
    found = head.scaled(HeldOut(measured, none, np.empty((0, 0))), offered, lambda parts: whole)
    columns = [COLUMNS[part] for part in found.parts]
    return found, soft_maxima(((held_out - found.centres.numpy()) / found.spreads.numpy())[:, columns])


def fitted_rows(rows: Rows) -> Iterator[tuple[Features, Index]]:
    """One pass over the rows to fit, with their numbers."""
    for batch in rows.passes():
        features, numbers = batch.to_fit()
        if len(numbers):
            yield features, numbers


def measure_rows(
    rows: Rows,
    measure: Callable[[Features, int], Array],
    measure_held_out: Callable[[Features], Array],
    *,
    seed: int,
) -> tuple[Array, Array]:
    """One pass: what is found of fitted rows without their fold, and of each held-out row by itself."""
    chosen = draw_rows(rows.n_fit, MAX_MEASURED, seed=[seed, 41]) if rows.n_fit > MAX_MEASURED else None
    measured: list[Array] = []
    held_out: list[Array] = []
    for batch in rows.passes():
        features, numbers = batch.to_fit()
        if chosen is not None:
            own = are_among(numbers, chosen)
            features, numbers = features.select(own), numbers[own]
        found: dict[int, Array] = {}
        for fold in np.unique(numbers % FOLDS).tolist():
            found[fold] = measure(features.select(numbers % FOLDS == fold), fold)
        if found:
            joined = np.empty((len(numbers), next(iter(found.values())).shape[1]))
            for fold, values in found.items():
                joined[numbers % FOLDS == fold] = values
            measured.append(joined)
        held_out += map_on_cores(measure_held_out, batch.held_out().one_by_one())
    return np.concatenate(measured), np.concatenate(held_out) if held_out else measured[0][:0]


def score_held_out(head: Head, rows: Rows) -> Array:
    """One pass: the scores of the held-out rows, each by itself."""
    found = [np.empty(0)]
    for batch in rows.passes():
        found += map_on_cores(head.score, batch.held_out().one_by_one())
    return np.concatenate(found)


def soft_maxima(z: Array) -> Array:
    """(rows, parts) to (rows,), row by row: a batch rounds otherwise."""
    rows = torch.from_numpy(z)
    return np.array([float(soft_maximum(rows[number : number + 1])) for number in range(len(rows))], np.float64)
