"""Scoring a source into a folder, one part after another, by one or several processes."""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from discopatch.batch.claims import Claims, repeated
from discopatch.batch.folder import NOTES, Out, ScoresFolder, begin_scores
from discopatch.batch.output import ROW_GROUP, arrow_schema, to_table
from discopatch.batch.plan import Part
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_WORKERS, Source, Workers, list_source
from discopatch.images.items import Reading
from discopatch.results import FittedDetector, Prediction
from discopatch.utils import check_output, legible

if TYPE_CHECKING:
    import pyarrow

MINUTE = 60.0  # seconds between two lines of a progress file
PAUSE = 2.0  # seconds between two looks at the parts of other processes
LISTED = 10.0  # seconds for which a listing of the folder is kept


def local_device(device: str, environment: Mapping[str, str] = os.environ) -> str:
    """The device, where `auto` assigns the GPUs of a machine round-robin to the processes of torchrun or SLURM."""
    local = environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID", "0"))
    if device != "auto" or local == "0":
        return device
    if not local.isdecimal():
        raise ParameterError(f"LOCAL_RANK or SLURM_LOCALID is {local}, no number: unset it, or give --device")
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{int(local) % count}" if count else device


class Run:
    """The progress of one process; it is used inside `with`, which holds the claims on its parts.

    todo, before: the parts that were left to do, and the number of those done, at the start.
    parts, elsewhere: numbers of parts that were written, and of those that another process wrote in the meantime.
    claimed: the parts that other processes had claimed; watched: their number, while no others are left.
    images, refused: numbers of scored images, written or not, and of those that could not be read.
    failed: the parts that Ray set aside, with the last error.
    """

    def __init__(self, folder: ScoresFolder, progress: "Progress | None" = None) -> None:
        self._names, self._listed = folder.scored(), time.monotonic()
        self.folder, self.todo = folder, [part for part in folder.parts if part.file not in self._names]
        counts = [part.images for part in self.todo]
        self._total = None if None in counts else sum(filter(None, counts))
        self.before = len(folder.parts) - len(self.todo)
        self.parts = self.elsewhere = self.images = self.refused = self._images_elsewhere = 0
        self.failed: dict[Part, str] = {}
        self._free, self.claimed, self.watched = deque(self.todo), list[Part](), 0
        self._claims = Claims(folder.out, folder.schema)
        self._started, self._ended, self._progress = time.monotonic(), 0.0, progress

    def __enter__(self) -> Self:
        self.report()
        self._claims.clean(self._names)
        self._claims.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = time.monotonic()
        self._claims.__exit__(*error)

    def next_part(self) -> Part | None:
        """A part, now claimed by this process; None if all that are left are claimed by others."""
        while self._free:
            part = self._free.popleft()
            if time.monotonic() - self._listed > LISTED:
                self._names, self._listed = self.folder.scored(), time.monotonic()
            if part.file in self._names:
                self._skip(part)
            elif not self._claims.take(part.file):
                self.claimed.append(part)
            elif self.folder.is_scored(part):  # written since the listing
                self._claims.release(part.file)
                self._skip(part)
            else:
                return part
        return None

    def _skip(self, part: Part) -> None:
        self.elsewhere += 1
        self._images_elsewhere += part.images or 0

    def end_part(self, part: Part, images: int = 0, refused: int = 0, *, is_written: bool = True) -> None:
        """Gives up the claim on a part that was written, here or elsewhere, or that failed."""
        self._claims.release(part.file)
        if is_written:
            self.parts += 1
        elif part not in self.failed:
            self._skip(part)
        self.report(images, refused)

    def watch(self, seconds: float = PAUSE) -> None:
        """After a pause, the parts of other processes may be written, or their claims may have expired."""
        self.watched = len(self.claimed)
        self.report()
        time.sleep(seconds)
        self._free.extend(self.claimed)
        self.claimed, self.watched, self._listed = [], 0, 0.0

    def report(self, images: int = 0, refused: int = 0) -> None:
        """Adds images that were scored, and calls `progress`."""
        self.images += images
        self.refused += refused
        if self._progress is not None:
            self._progress(self)

    @property
    def left(self) -> int:
        """Parts that this process still has to do."""
        return len(self.todo) - self.parts - self.elsewhere - len(self.failed)

    @property
    def seconds(self) -> float:
        """Since the start, up to the end."""
        return (self._ended or time.monotonic()) - self._started

    @property
    def seconds_left(self) -> float | None:
        """Until all parts are written, at the rate of all processes so far; None before anything is done."""
        done, left = self.parts + self.elsewhere, self.left
        if self.total is not None:
            done, left = self.images + self._images_elsewhere, self.total - self.images
        return self.seconds * left / done if done else None

    @property
    def rate(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def total(self) -> int | None:
        """Images of all parts to do but those done elsewhere; None if some are in shards, whose length is unknown."""
        return None if self._total is None else self._total - self._images_elsewhere


Progress = Callable[[Run], object]  # called at the start, after each batch and after each part


@contextmanager
def progress_file(path: Path) -> Iterator[Progress]:
    """Appends a line of JSON about a run to the file at its start, each minute, and at its end."""
    check_output(path)
    runs = list[Run]()

    def write(event: str) -> None:
        for run in runs:
            line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, "images": run.images}
            line |= {"refused": run.refused, "images_left": None if run.total is None else run.total - run.images}
            line |= {"parts": run.parts, "parts_elsewhere": run.elsewhere, "parts_failed": len(run.failed)}
            line |= {"parts_left": run.left, "seconds": round(run.seconds, 1), "images_per_second": round(run.rate, 2)}
            line |= {"seconds_left": None if run.seconds_left is None else round(run.seconds_left, 1)}
            with suppress(OSError), path.open("a") as file:  # a full disk does not end the run
                file.write(f"{json.dumps(line)}\n")

    def follow(run: Run) -> None:
        if not runs:
            runs.append(run)
            write("start")

    try:
        with repeated(lambda: write("running"), MINUTE):
            yield follow
    except BaseException:
        write("stopped")
        raise
    write("end")


def score_to(
    detector: FittedDetector,
    source: object,
    out: Out,
    *,
    per_part: int | None = None,
    workers: Workers = DEFAULT_WORKERS,
    allow_missing: bool = False,
    retry: bool = False,
    member: str | None = None,
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> Run:
    """Scores a source into a folder of Parquet, a file for each shard or `per_part` loose images (10,000).

    Large shards are split into parts of about as many images.

    A part whose file is there is done, so the same call continues a run that was stopped or killed. The files are equal
    byte by byte, however many processes, workers and starts made them. Any number of processes may share the folder:
    each claims a part before it scores it, and all return when every part is written.

    A source may grow between two calls. Planned images that are gone from it are an error, or refused images if
    `allow_missing`. With `retry` parts with refused images or damaged shards are scored again. `member` is that of
    `list_source`; `keep` names columns of Parquet tables that are written beside the scores. Raises RunError if the
    folder was begun with another detector or source.

    Examples
    --------
    >>> score_to(detector, "images", "scores")  # doctest: +SKIP
    >>> read_scores("scores").to_table(columns=["name", "score"])  # doctest: +SKIP
    """
    shared: dict[str, Any] = {"allow_missing": allow_missing, "retry": retry, "member": member, "keep": keep}
    folder = begin_scores(out, detector, source, per_part=per_part, **shared)
    with Run(folder, progress) as run:
        while run.left:
            free = iter(run.next_part, None)
            with closing(score_parts(detector, free, workers=workers, progress=run.report)) as scored:
                for part, table in scored:
                    folder.write(part, table)
                    run.end_part(part)
            if run.left:
                run.watch()
    return run


def score_parts(
    detector: FittedDetector,
    parts: Iterable[Part],
    *,
    workers: Workers = DEFAULT_WORKERS,
    progress: Callable[[int, int], object] = lambda images, refused: None,
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

    names = detector.column_names
    predictions, tables = list[Prediction](), list[pyarrow.Table]()
    for batch in detector.predict_batches(sources(), workers=workers):
        predictions += [each.prediction for each in batch.images]
        progress(len(batch.images), sum(each.refusal is not None for each in batch.images))
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
    first, good = part.rows.first if part.rows else 0, rows - len(reading.damaged)
    numbers = [first + row if is_shard and row < good else None for row in range(rows)]
    shards = [legible(part.names[0]) if is_shard else None] * rows
    table = table.append_column("shard", pyarrow.array(shards, pyarrow.string()))
    table = table.append_column("row", pyarrow.array(numbers, pyarrow.int64()))
    notes = {"passed_over": reading.passed_over, "names": list(map(legible, reading.names))}
    notes |= {"several": list(map(legible, reading.several))}
    return table.replace_schema_metadata({NOTES: json.dumps(notes)}) if any(notes.values()) else table
