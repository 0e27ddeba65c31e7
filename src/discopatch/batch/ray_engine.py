"""Scoring by actors of a Ray cluster, each with a detector of its own, which take part after part.

Ray restarts actors that died and gives them their part again without limit. Attempts are therefore counted in files
beside the scores: a part that failed three times is set aside, and the others continue.
"""

import logging
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.batch.batch_scorer import PackedDetector
from discopatch.batch.folder import MANIFEST, Manifest, Out, ScoresFolder, begin_scores
from discopatch.batch.output import OutputFolder
from discopatch.batch.plan import Part
from discopatch.batch.run import Progress, Ranks, Run, score_parts
from discopatch.errors import DiscopatchError, ParameterError, RunError, StoreError, WorkerError
from discopatch.images import Processes, Workers
from discopatch.results import FittedDetector
from discopatch.utils import require

ATTEMPTS = 3
ATTEMPT = "_attempt-"  # prefix of their files
KILLED = "its worker ended without an error, as a process that is killed or out of memory"
MOST_NAMED = 5  # parts in an error
MOST_TASKS = 10_000  # of Ray; with more parts, several are one task
FEW_CORES = 4  # with more of them processes decode, since threads stop gaining


class Room(NamedTuple):
    """The number of actors, and the cores and GPUs of each."""

    actors: int
    cpus: int
    gpus: int


class Work(NamedTuple):
    """The arguments of an actor."""

    detector: Any  # reference to the `PackedDetector` in Ray's object store
    cores: int
    options: Mapping[str, Any]  # of `discopatch.load`
    out: OutputFolder
    manifest: Manifest
    working_folder: str  # of relative names


def score_on_ray(
    detector: Path | str,
    source: object,
    out: Out,
    *,
    per_part: int | None = None,
    allow_missing: bool = False,
    address: str | None = None,
    actors: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Scores a source into a folder as `score_to` does, byte by byte, by actors of a Ray cluster.

    All nodes must see the source and the folder under the same names: an object store, or a network share. The
    detector is sent as bytes; `options` are those of `discopatch.load`. Without an `address` it is the cluster of
    RAY_ADDRESS, or of this machine, or a new one here. Without `actors` they fill the cluster. A part that failed three
    times is set aside until the next run; RunError names such parts when all others are done.
    """
    if actors is not None and actors < 1:
        raise ParameterError(f"actors is {actors}: give at least 1")
    packed = PackedDetector.read(Path(detector))
    folder = begin_scores(out, packed.load(None, options), source, per_part=per_part, allow_missing=allow_missing)
    forget_attempts(folder.out, (name for name in folder.out.names() if name.startswith(ATTEMPT)))
    done = {part.number for part in folder.done()}
    run = Run(folder, Ranks(), [part for part in folder.parts if part.number not in done], len(done))
    if progress is not None:
        progress(run)
    if run.todo:
        with connected_ray(address) as ray:
            room = find_room(ray, actors, options.get("device", "auto"))
            work = Work(ray.put(packed), room.cpus, options, folder.out, folder.manifest, str(Path.cwd()))
            follow(ray, run, room, work, progress)
    if run.failed:
        named = [f"{part.names[0]} ({reason})" for part, reason in run.failed.items()]
        more = f" and {len(named) - MOST_NAMED:,} more" if len(named) > MOST_NAMED else ""
        raise RunError(
            f"{len(named):,} parts failed {ATTEMPTS} times: {'; '.join(named[:MOST_NAMED])}{more}. The others are "
            "done: repair or remove these, and run the same command again"
        )
    return run


def follow(ray: Any, run: Run, room: Room, work: Work, progress: Progress | None) -> None:
    """Runs the parts by Ray Data, and counts the results."""
    parts, started = {part.number: part for part in run.todo}, time.monotonic()
    tasks = min(len(parts), MOST_TASKS)
    rows = [{"part": ray.cloudpickle.dumps(part)} for part in run.todo]
    data = ray.data.from_items(rows, override_num_blocks=tasks).map_batches(
        PartActor,
        fn_constructor_args=(work,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(room.actors, tasks), max_tasks_in_flight_per_actor=1),
        num_cpus=room.cpus,
        num_gpus=room.gpus or None,
    )
    for row in data.iter_rows():
        match row["outcome"]:
            case "done":
                run.parts += 1
                run.images += row["images"]
            case "elsewhere":
                run.elsewhere += 1
            case "failed":
                run.failed[parts[row["number"]]] = row["note"].decode()
            case _:
                raise ray.cloudpickle.loads(row["note"])
        run.seconds = time.monotonic() - started
        if progress is not None:
            progress(run)


def find_room(ray: Any, actors: int | None, device: str) -> Room:
    """One actor per GPU with its share of the cores, or without GPUs one per core, unless a number is given."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpu = [] if device == "cpu" else [node for node in nodes if node.get("GPU", 0) >= 1]
    if with_gpu:
        cpus = max(1, min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpu))
        return Room(actors or int(sum(node["GPU"] for node in with_gpu)), cpus, 1)
    return Room(actors or max(1, int(sum(node.get("CPU", 0) for node in nodes))), 1, 0)


class PartActor:
    """A process with a detector, to which Ray Data gives part after part."""

    def __init__(self, work: Work) -> None:
        self._work, self._folder = work, ScoresFolder(work.out, work.manifest, ())
        self._workers: Workers = work.cores if work.cores <= FEW_CORES else Processes(work.cores)

    @cached_property
    def _detector(self) -> FittedDetector:
        """The detector, loaded with the first part, whose outcome may then be the error."""
        import ray

        with suppress(OSError):
            os.chdir(self._work.working_folder)
        if not self._work.out.has(MANIFEST):
            raise RunError(
                f"{self._work.out.name} is not visible on all nodes of the cluster: choose a folder on a network share "
                "or in an object store"
            )
        packed: PackedDetector = ray.get(self._work.detector)
        return packed.load(self._work.cores, self._work.options)

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outcome of one part: its number, done, elsewhere, failed or error, images, and an error."""
        import ray

        part: Part = ray.cloudpickle.loads(batch["part"][0])
        try:
            outcome, images, note = self._score(part)
        except DiscopatchError as error:
            outcome, images, note = "error", 0, ray.cloudpickle.dumps(error)
        row = {"number": part.number, "outcome": outcome, "images": images, "note": note}
        return {name: np.array([value], object if isinstance(value, bytes) else None) for name, value in row.items()}

    def _score(self, part: Part) -> tuple[str, int, bytes]:
        """Raises DiscopatchError for errors that another attempt would not avoid: a full disk, a changed shard."""
        detector, out = self._detector, self._folder.out
        if out.has(part.file):
            return "elsewhere", 0, b""
        check_visible(part)
        names = attempts_of(part)
        current = next((name for name in names if not out.has(name)), None)
        if current is None:
            return "failed", 0, next(filter(None, map(out.read, reversed(names))), KILLED.encode())
        out.write(current, b"")
        try:
            ((_, table),) = score_parts(detector, [part], workers=self._workers)
            self._folder.write(part, table)
        except Exception as error:
            if not isinstance(error, DiscopatchError) or isinstance(error, StoreError | WorkerError):
                out.write(current, f"{type(error).__name__}: {error}".encode(errors="backslashreplace"))
                os._exit(1)  # the process may be broken, such as its GPU: Ray starts another
            forget_attempts(out, names)
            raise
        forget_attempts(out, names)
        return "done", table.num_rows, b""


def attempts_of(part: Part) -> list[str]:
    """The files of the attempts of a part."""
    return [f"{ATTEMPT}{part.file.removesuffix('.parquet')}-{number}" for number in range(1, ATTEMPTS + 1)]


def forget_attempts(out: OutputFolder, names: Iterable[str]) -> None:
    for name in out.names().intersection(names):
        out.remove(name)


def check_visible(part: Part) -> None:
    """Raises RunError if this node sees none of the local images, which would all count as missing."""
    if not part.entries and not any(Path(name).exists() for name in part.names):
        raise RunError(
            f"{part.names[0]} is not visible on all nodes of the cluster: put the images on a network share or in an "
            "object store, and give absolute paths"
        )


@contextmanager
def connected_ray(address: str | None = None, **options: Any) -> Iterator[Any]:
    """The module `ray`, connected to a cluster or to a new one here; its errors become RunErrors.

    Nothing is uploaded, no dashboard is started, only errors are logged. `options` are those of `ray.init`.
    """
    require("ray", extra="ray")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # `uv run` would upload the working folder
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    import ray.exceptions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray sets options of its own that it calls deprecated
        import ray.data

        context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    own = not ray.is_initialized()
    try:
        if own:
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
            ray.init(address, **quiet, **options)
        yield ray
    except (ConnectionError, ray.exceptions.RayError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
        raise RunError(f"Ray failed ({said}): finished parts are kept; run the same command again") from error
    finally:
        if own:
            ray.shutdown()
