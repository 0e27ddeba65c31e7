"""Another false-alarm rate, or another head, for scores that are there: no image is read again."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discopatch.batch.folder import ScoresFolder, begin_copy, file_of, finish_part, open_scores
from discopatch.batch.identity import Identity
from discopatch.batch.manifest import Manifest, Rescored
from discopatch.batch.plan import Part
from discopatch.batch.ranks import find_ranks
from discopatch.batch.run import Progress, Run
from discopatch.batch.store import Store, open_store
from discopatch.batch.table import Counts, score_schema
from discopatch.calibration import alarms_allowed, p_values
from discopatch.errors import ParameterError, ScoresError
from discopatch.images import Refusal

if TYPE_CHECKING:
    import pyarrow

    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime
    from discopatch.heads import Head

ROWS_TOGETHER = 512  # that pass a head at once, in bounded memory


def rescore(
    scores: str | os.PathLike[str] | Store,
    predictor: "Detector | Runtime",
    out: str | os.PathLike[str] | Store,
    *,
    threads: int | None = None,
    rank: int | None = None,
    world: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """Writes the scores of a folder anew, as `predictor` has them, into another one, part by part as `score_to` does.

    The same detector at another false-alarm rate needs the scores alone, and leaves them as they are. Another one, with
    the same networks and transform, needs the features; they were rounded to float16, and pass the head many at a time,
    so that scores differ a little from those that it would give the images themselves. The manifest says which.

    `threads` do a part each, as many as torch uses unless said otherwise. ScoresError where the features are not what
    the detector needs. Parts that are still to be scored are left to a later call.
    """
    if threads is not None and threads < 1:
        raise ParameterError(f"threads is {threads}: give at least 1")
    ranks, old, store = find_ranks(rank, world), open_scores(open_store(scores)), open_store(out)
    if old.store.name == store.name:
        raise ParameterError(f"{store.name} holds the scores themselves: choose another folder for the new ones")
    method = choose_method(old, predictor)
    folder = begin_copy(store, old, method.manifest())
    there = {part.number for part in old.present()}
    done = {part.number for part in folder.present()}
    mine = [part for part in old.parts if ranks.takes(part.number) and part.number in there]
    run = Run(folder, ranks, len(mine), sum(part.number in done for part in mine))
    todo = [part for part in mine if part.number not in done]
    for part in todo:
        run.plan(part)
    started = time.monotonic()
    if progress is not None:
        progress(run)
    for part, counts in in_threads(method, folder, todo, threads):
        run.finish(part, counts)
        run.seconds = time.monotonic() - started
        if progress is not None:
            progress(run)
    return run


def in_threads(
    method: "Method", folder: ScoresFolder, parts: list[Part], threads: int | None
) -> Iterator[tuple[Part, Counts]]:
    """Each part, and what was found in each part, once it is written."""

    def do(part: Part) -> tuple[Part, Counts]:
        return part, finish_part(folder, part, method.table(part))

    with method.pool(threads) as (pool, count):
        waiting, todo = list[Future[tuple[Part, Counts]]](), iter(parts)
        try:
            waiting += [pool.submit(do, part) for part in islice(todo, 2 * count)]
            while waiting:
                found = waiting.pop(0).result()
                waiting += [pool.submit(do, part) for part in islice(todo, 1)]
                yield found
        finally:
            for each in waiting:
                each.cancel()


class Method:
    """How the rows of a part become those of another detector, with the same scores: only the rate is another."""

    def __init__(self, old: ScoresFolder, predictor: "Detector | Runtime", of: Any = "scores") -> None:
        self._old, self._predictor, self._of = old, predictor, of
        self._schema = score_schema(predictor.component_names)

    def manifest(self) -> Manifest:
        before = self._old.manifest
        return replace(
            before,
            discopatch=Manifest.discopatch,
            detector=Identity.of(self._predictor),
            components=self._predictor.component_names,
            features=None,
            rescored=Rescored(self._of, before.detector.digest),
        )

    def table(self, part: Part) -> "pyarrow.Table":
        import pyarrow

        with self._old.store.open_parquet(file_of(part)) as file:
            groups = [
                batch
                for number in range(file.num_row_groups)
                for batch in self._batches(file.read_row_group(number, columns=self._columns(), use_threads=False))
            ]
        return pyarrow.Table.from_batches(groups, self._schema)

    @contextmanager
    def pool(self, threads: int | None) -> Iterator[tuple[Executor, int]]:
        """Threads for parts, and how many they are."""
        count = threads or os.cpu_count() or 1
        with ThreadPoolExecutor(count, "discopatch-rescore") as pool:
            yield pool, count

    def _columns(self) -> list[str]:
        return list(self._schema.names)

    def _batches(self, group: "pyarrow.Table") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for batch in group.to_batches():
            p = batch.column("p_value").to_numpy(zero_copy_only=False)
            n = len(self._predictor.calibration_scores_)
            is_ood = np.rint(p * (n + 1)) - 1 < alarms_allowed(n, self._predictor.false_alarm_rate_)
            columns = {name: batch.column(name) for name in self._schema.names}
            columns["is_ood"] = pyarrow.array(is_ood, mask=np.isnan(p))
            yield pyarrow.RecordBatch.from_arrays(list(columns.values()), schema=self._schema)


class FeatureMethod(Method):
    """Another head over the stored features."""

    def __init__(self, old: ScoresFolder, detector: "Detector") -> None:
        super().__init__(old, detector, "features in float16")
        assert old.manifest.features is not None
        self._layout, self._head = old.manifest.features, for_many_rows(detector.head_)
        self._kinds = [kind for kind in self._layout.kinds if kind in self._head.needs]
        self._calibration, self._threshold = detector.calibration_scores_, detector.threshold_

    @contextmanager
    def pool(self, threads: int | None) -> Iterator[tuple[Executor, int]]:
        """Those in each of which torch computes without others."""
        import torch

        from discopatch.encoders.cores import one_thread_each

        count = threads or torch.get_num_threads()
        yield one_thread_each(count, os.getpid()), count

    def _columns(self) -> list[str]:
        return ["name", "error", *self._kinds]

    def _batches(self, group: "pyarrow.Table") -> "Iterator[pyarrow.RecordBatch]":
        for batch in group.to_batches(max_chunksize=ROWS_TOGETHER):
            present = np.array(batch.column("error").is_null())
            features = self._layout.features(batch, self._kinds)
            if len(features.logits) != present.sum():
                raise ScoresError(f"{self._old.store.name} has images without features: score them again")
            yield self._rows(batch, present, *self._head.outputs(features)[:2])

    def _rows(
        self,
        batch: "pyarrow.RecordBatch",
        present: NDArray[np.bool_],
        found: NDArray[np.float64],
        z: NDArray[np.float64],
    ) -> "pyarrow.RecordBatch":
        """The columns of a batch, from the scores of those of its images that have features."""
        import pyarrow

        scores, components = np.full(len(present), np.nan), np.full((len(present), z.shape[1]), np.nan)
        scores[present], components[present] = found, z
        names, errors = batch.column("name"), batch.column("error")
        known = np.isfinite(scores)
        if (lost := np.flatnonzero(present & ~known)).size:
            texts = errors.to_pylist()
            for place in lost.tolist():
                texts[place] = Refusal.not_finite(names[place].as_py()).error
            errors = pyarrow.array(texts, pyarrow.string())
        columns = [
            names,
            pyarrow.array(scores, mask=~known),
            pyarrow.array(p_values(np.where(known, scores, 0), self._calibration), mask=~known),
            pyarrow.array(scores > self._threshold, mask=~known),
            errors,
            *(pyarrow.array(column, mask=~known) for column in components.T),
        ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)


def for_many_rows(head: "Head") -> "Head":
    """A copy of the head that takes less time for a row, and differs in the last digits."""
    from discopatch.heads.gaussian import ShrunkGaussian

    found = deepcopy(head).cpu()
    for module in found.modules():
        if isinstance(module, ShrunkGaussian):
            module.many_rows = True
    return found


def choose_method(old: ScoresFolder, predictor: "Detector | Runtime") -> Method:
    """By the scores themselves where they would be the same, else by the features."""
    from discopatch.export.runtime import Runtime

    before, now = old.manifest.detector, Identity.of(predictor)
    if all(getattr(before, part) == getattr(now, part) for part in ("kind", "encoder", "head", "calibration")):
        return Method(old, predictor)
    if isinstance(predictor, Runtime):
        raise ScoresError(
            "an export scores images alone, and these were not scored by it: give the detector that was exported"
        )
    if before.encoder != now.encoder:
        raise ScoresError(
            f"{old.store.name} has features of other networks, or through another transform, than those of this "
            f"detector (in its {', '.join(before.differences(now))}): score the images with it"
        )
    layout = old.manifest.features
    if layout is None:
        raise ScoresError(
            f"{old.store.name} was scored without features, which another head needs: score with --features"
        )
    if missing := [kind for kind in ("pooled", "places") if kind in predictor.head_.needs and kind not in layout.kinds]:
        option = "--places" if "places" in missing else "--features"
        raise ScoresError(
            f"the head of this detector compares {' and '.join(missing)}, which {old.store.name} does not have: score "
            f"the images with {option} (places are some fifty kilobytes an image), or fit with head='combined', which "
            "needs none"
        )
    return FeatureMethod(old, predictor)
