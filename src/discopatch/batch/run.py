"""Scoring a source into a folder, one part after another, by one of several processes."""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from discopatch.batch.folder import NOTES, Out, Part, ScoresFolder, begin_scores
from discopatch.batch.output import ROW_GROUP, arrow_schema, to_table
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_WORKERS, Source, Workers, list_source
from discopatch.images.items import Reading
from discopatch.results import FittedDetector, Prediction
from discopatch.utils import legible

if TYPE_CHECKING:
    import pyarrow

# Environment variables with the rank, the number of processes, and the rank on the machine.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


class Ranks(NamedTuple):
    """The share of one of several processes: parts are assigned round-robin."""

    rank: int = 0
    world: int = 1
    local: int = 0  # rank on its machine

    def device(self, device: str) -> str:
        """The device, where `auto` assigns the GPUs of a machine round-robin."""
        if device != "auto" or self.local == 0:
            return device
        import torch

        count = torch.cuda.device_count()
        return f"cuda:{self.local % count}" if count else device


def find_ranks(rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ) -> Ranks:
    """The given rank, or the one that torchrun or SLURM set, or the only process."""
    ranks = Ranks(rank or 0, 1 if world is None else world)
    if rank is None and world is None:
        for own, count, local in LAUNCHERS:
            if own in environment and count in environment:
                numbers = environment[own], environment[count], environment.get(local, "0")
                if not all(each.isdecimal() for each in numbers):
                    raise ParameterError(f"{own}={numbers[0]} and {count}={numbers[1]} are no numbers: give --rank I/N")
                ranks = Ranks(*map(int, numbers))
                break
    if not 0 <= ranks.rank < ranks.world:
        raise ParameterError(f"rank {ranks.rank} of {ranks.world}: ranks count from 0 to below the number of processes")
    return ranks


class Run:
    """The progress of one process.

    todo, before: the parts of its share that were left to do, and the number of those done, at the start.
    parts, elsewhere: numbers of parts that were written, and of those that another process wrote in the meantime.
    images: number of scored images, written or not.
    failed: the parts that Ray set aside, with the last error.
    """

    def __init__(self, folder: ScoresFolder, ranks: Ranks, progress: "Progress | None" = None) -> None:
        done = {part.number for part in folder.done() if part.file not in folder.again}
        share = [part for part in folder.parts if part.number % ranks.world == ranks.rank]
        self.folder, self.ranks = folder, ranks
        self.todo = [part for part in share if part.number not in done]
        self.before = len(share) - len(self.todo)
        self.parts = self.elsewhere = self.images = 0
        self.failed: dict[Part, str] = {}
        self.seconds, self._started, self._progress = 0.0, time.monotonic(), progress
        self.report()

    def report(self, images: int = 0) -> None:
        """Adds images that were scored, and calls `progress`."""
        self.images += images
        self.seconds = time.monotonic() - self._started
        if self._progress is not None:
            self._progress(self)

    @property
    def left(self) -> int:
        """Parts that this process still has to do."""
        return len(self.todo) - self.parts - self.elsewhere - len(self.failed)

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def total(self) -> int | None:
        """Images of all parts to do; None if some are in shards, whose length is unknown."""
        counts = [part.images for part in self.todo]
        return None if None in counts else sum(filter(None, counts))


Progress = Callable[[Run], object]  # called at the start, after each batch and after each part


def score_to(
    detector: FittedDetector,
    source: object,
    out: Out,
    *,
    per_part: int | None = None,
    rank: int | None = None,
    world: int | None = None,
    workers: Workers = DEFAULT_WORKERS,
    allow_missing: bool = False,
    retry: bool = False,
    member: str | None = None,
    progress: Progress | None = None,
) -> Run:
    """Scores a source into a folder of Parquet, one file for each shard or each `per_part` loose images (10,000).

    A part whose file is there is done, so the same call continues a run that was stopped or killed. The files are equal
    byte by byte, however many processes, workers and starts made them. Of `world` processes that share the folder the
    one with number `rank` takes every `world`-th part; torchrun and SLURM set both.

    A source may grow between two calls. Planned images that are gone from it are an error, or refused images if
    `allow_missing`. With `retry` parts with refused images or damaged shards are scored again. `member` is that of
    `list_source`. Raises RunError if the folder was begun with another detector or source.

    Examples
    --------
    >>> score_to(detector, "images", "scores")  # doctest: +SKIP
    >>> read_scores("scores").to_table(columns=["name", "score"])  # doctest: +SKIP
    """
    ranks = find_ranks(rank, world)
    folder = begin_scores(
        out, detector, source, per_part=per_part, allow_missing=allow_missing, retry=retry, member=member
    )
    run = Run(folder, ranks, progress)

    def remaining() -> Iterator[Part]:
        """Parts that no other process has written in the meantime."""
        for part in run.todo:
            if folder.is_scored(part):
                run.elsewhere += 1
            else:
                yield part

    with closing(score_parts(detector, remaining(), workers=workers, progress=run.report)) as scored:
        for part, table in scored:
            folder.write(part, table)
            run.parts += 1
            run.report()
    return run


def score_parts(
    detector: FittedDetector,
    parts: Iterable[Part],
    *,
    workers: Workers = DEFAULT_WORKERS,
    progress: Callable[[int], object] = lambda images: None,
) -> "Generator[tuple[Part, pyarrow.Table], None, None]":
    """The tables of the parts, in order; images of the next part are prefetched.

    No batch holds images of two parts: on a GPU the size of a batch changes the last floating-point digits.
    """
    import pyarrow

    begun = deque[tuple[Part, Source]]()

    def sources() -> Iterator[object]:
        for part in parts:
            begun.append((part, list_source(part.source)))
            yield begun[-1][1]

    names = detector.component_names
    predictions, tables = list[Prediction](), list[pyarrow.Table]()
    for batch in detector.predict_batches(sources(), workers=workers):
        predictions += [each.prediction for each in batch.images]
        progress(len(batch.images))
        if batch.ends or len(predictions) >= ROW_GROUP:
            tables.append(to_table(predictions, names))
            predictions = []
        if batch.ends:
            part, source = begun.popleft()
            table = pyarrow.concat_tables([arrow_schema(names).empty_table(), *tables])
            yield part, with_places(table, part, source.reading)
            tables = []


def with_places(table: "pyarrow.Table", part: Part, reading: Reading) -> "pyarrow.Table":
    """The rows with their shard and their number in it; a damaged shard itself, the last row, has no number."""
    import pyarrow

    is_shard, rows = part.version is not None, table.num_rows
    numbers = [row if is_shard and row < rows - len(reading.damaged) else None for row in range(rows)]
    shards = [legible(part.names[0]) if is_shard else None] * rows
    table = table.append_column("shard", pyarrow.array(shards, pyarrow.string()))
    table = table.append_column("row", pyarrow.array(numbers, pyarrow.int64()))
    notes = {"passed_over": reading.passed_over, "names": list(map(legible, reading.names))}
    notes |= {"several": list(map(legible, reading.several))}
    return table.replace_schema_metadata({NOTES: json.dumps(notes)}) if any(notes.values()) else table
