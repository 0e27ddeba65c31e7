"""A fit on features that are never in memory together: of ten million images as of ten thousand, in the same memory."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import (
    Index,
    Rate,
    are_among,
    calibration_size,
    check_calibration,
    check_enough,
    draw_rows,
    smallest_rate,
)
from discopatch.checks import MAX_ORDERED, find_drift
from discopatch.encoders import Features
from discopatch.errors import ParameterError
from discopatch.fitting import MIN_FIT_IMAGES, MIN_IMAGES, check_logits
from discopatch.groups import comparable_images, find_near_copies
from discopatch.heads import ComponentsHead, Head, get_head
from discopatch.heads.streamed import RowBatch, Rows, fit_streamed
from discopatch.scorer import score_one_by_one

MAX_CALIBRATION = 100_000  # rows that are held out
MAX_HELD = 2**28  # bytes of features that are rather read at once


class FeatureStream(ABC):
    """Features of normal images, a batch at a time: as often as they are asked for, each time the same ones."""

    name: str  # as it is told to users

    @abstractmethod
    def __len__(self) -> int:
        """Images in all."""

    @abstractmethod
    def batches(self) -> Iterator[Features]:
        """All features, in order, some thousand images at a time; places are left out."""

    def read_small(self, most: int = MAX_HELD) -> Features | None:
        """All of them at once, or None where they take more bytes than that."""
        found: list[Features] = []
        for batch in self.batches():
            found.append(batch.without_places())
            most -= sum(each.nbytes for each in batch)
            if most < 0:
                return None
        if not found:
            raise ParameterError(f"{self.name} has no features: give those of normal images")
        return Features.concatenate(found)


AnyFeatures: TypeAlias = Features | NDArray[np.floating] | str | os.PathLike[str] | FeatureStream


class StreamedRows(Rows):
    """The rows of a stream, some of them held out; what is looked at for cautions is kept as it first passes."""

    def __init__(self, stream: FeatureStream, held_out: Index) -> None:
        self._stream, self._held_out = stream, held_out
        self.n_fit = len(stream) - len(held_out)
        self._ordered = np.unique(np.linspace(0, len(stream) - 1, MAX_ORDERED).astype(np.intp))
        self._compared = comparable_images(len(stream))
        self._in_order: list[Features] = []
        self._to_compare: list[NDArray[np.float32]] = []
        self._first = True

    def passes(self) -> Iterator[RowBatch]:
        done, sizes = 0, None
        for features in self._stream.batches():
            sizes = sizes or [each.shape[1] for each in features[:3]]
            check_rows(features, sizes, self._stream.name, done)
            rows = np.arange(done, done + len(features.logits))
            done += len(rows)
            if self._first:
                self._in_order.append(features.select(are_among(rows, self._ordered)).without_places())
                self._to_compare.append(features.statistics[are_among(rows, self._compared)])
            out = are_among(rows, self._held_out)
            numbers = rows - np.searchsorted(self._held_out, rows)
            yield RowBatch(features.without_places(), np.where(out, -1, numbers))
        self._first = False
        if done != len(self._stream):
            raise ParameterError(
                f"{self._stream.name} has {done:,} images, where there were {len(self._stream):,}: let nothing change "
                "it while it is read"
            )

    def cautions(self, head: str, *, seed: int) -> tuple[str, ...]:
        """What was noticed about the images, after a pass."""
        near = find_near_copies(np.concatenate(self._to_compare))
        alike = self._ordered.copy()
        if near is not None:
            known = are_among(alike, self._compared)
            alike[known] = len(self._stream) + near.groups[np.searchsorted(self._compared, alike[known])]
        drift = find_drift(Features.concatenate(self._in_order), get_head(head), alike, seed=seed)
        found = (near.text(len(self._stream)) if near else None, drift.text if drift else None)
        return tuple(filter(None, found))


def check_rows(features: Features, sizes: list[int], name: str, done: int) -> None:
    """Raises ParameterError where rows have no numbers, or other numbers of features than the first ones."""
    if [each.shape[1] for each in features[:3]] != sizes:
        raise ParameterError(f"{name}: images from {done:,} on have other numbers of features than those before")
    if not sizes[1]:
        raise ParameterError(f"{name} has no statistics: score again with --features")
    if not features.are_finite:
        raise ParameterError(
            f"{name}: images from {done:,} on have features that are not finite: leave such images out"
        )


def fit_stream(
    head: str,
    stream: FeatureStream,
    *,
    layer_sizes: tuple[int, ...],
    calibration: Features | FeatureStream | None,
    rate: Rate,
    seed: int,
) -> tuple[dict[str, Any], float]:
    """The same as `fit_features`, in three passes over the stream; of very many images fewer are held out.

    The head is that of `fit_features`, but for rounding, as far as nothing is drawn: see `discopatch.heads.streamed`.
    At most `MAX_CALIBRATION` rows are held out, in a number with which the rate is met exactly.
    """
    count = len(stream)
    check_enough(count, MIN_IMAGES)
    if calibration is None:
        chosen = smallest_rate(int(min(count / 2, count - MIN_FIT_IMAGES)), rate)
        size = calibration_size(count, chosen, min_fit=MIN_FIT_IMAGES, most=MAX_CALIBRATION)
        held_out = draw_rows(count, size, seed=seed)
    else:
        given = len(calibration) if isinstance(calibration, FeatureStream) else len(calibration.logits)
        chosen = smallest_rate(given, rate)
        check_calibration(given, chosen)
        held_out = np.empty(0, np.intp)
    first = next(stream.batches())
    prepared = get_head(head)
    check_logits(first, prepared)
    if isinstance(prepared, ComponentsHead):
        own = layer_sizes if sum(layer_sizes) == first.statistics.shape[1] else ()
        prepared = ComponentsHead(layer_sizes=own, seed=seed)
    rows = StreamedRows(stream, held_out)
    fitted, scores = fit_streamed(prepared, rows, seed=seed)
    if isinstance(calibration, FeatureStream):
        scores = score_some(fitted, calibration, seed=seed)
    elif calibration is not None:
        scores = score_one_by_one(fitted, calibration)
    check_calibration(scores, chosen)
    found = {
        "head": fitted,
        "regions": None,
        "calibration_scores": np.sort(scores),
        "n_fit": rows.n_fit,
        "cautions": rows.cautions(head, seed=seed),
    }
    return found, chosen


def score_some(head: Head, stream: FeatureStream, *, seed: int) -> NDArray[np.float64]:
    """The scores of all rows of a stream, or of `MAX_CALIBRATION` that are drawn."""
    drawn = draw_rows(len(stream), MAX_CALIBRATION, seed=seed)
    scores, done = [np.empty(0)], 0
    for features in stream.batches():
        rows = np.arange(done, done + len(features.logits))
        done += len(rows)
        scores.append(score_one_by_one(head, features.select(are_among(rows, drawn))))
    return np.concatenate(scores)
