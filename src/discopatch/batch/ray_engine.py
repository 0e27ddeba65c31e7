"""Scoring by actors of a Ray cluster, each with a detector of its own, which take part after part."""

import logging
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from discopatch.batch.batch_scorer import Packed, load_detector, pack
from discopatch.batch.folder import MANIFEST, Out, ScoresFolder, begin_scores
from discopatch.batch.plan import Part
from discopatch.batch.run import PAUSE, Progress, Run, score_parts
from discopatch.errors import DiscopatchError, ParameterError, RunError, StoreError, WorkerError
from discopatch.images import Item, Processes, Workers
from discopatch.utils import require

ATTEMPTS = 3
INTERRUPTIONS = 30  # of a part, that are no attempts: a part that fills the memory may have its worker terminated too
INTERRUPTED = ("SIGTERM", "node has died", "node was", "preempt")  # in Ray's text on a worker that has ended
KILLED = "its worker ended without an error, as a process that is killed or out of memory"
MOST_NAMED = 5  # parts in an error
FEW_CORES = 4  # with more of them processes decode, since threads stop gaining


def score_on_ray(
    detector: Path | str,
    source: object,
    out: Out,
    *,
    per_part: int | None = None,
    allow_missing: bool = False,
    retry: bool = False,
    member: str | None = None,
    keep: Sequence[str] = (),
    address: str | None = None,
    actors: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Scores a source into a folder as `score_to` does, byte by byte, by actors of a Ray cluster.

    All nodes must see the source and the folder under the same names: an object store, or a network share. The
    detector is sent as bytes; `options` are those of `discopatch.load`. Without an `address` it is the cluster of
    RAY_ADDRESS, or of this machine, or a new one here. Without `actors` they fill the cluster. A part that failed three
    times is set aside until the next run, where a worker or node that was stopped is no failure; RunError names such
    parts when all others are done.
    """
    if actors is not None and actors < 1:
        raise ParameterError(f"actors is {actors}: give at least 1")
    packed = pack(Path(detector))
    loaded = load_detector(packed, None, options)
    shared: dict[str, Any] = {"allow_missing": allow_missing, "retry": retry, "member": member, "keep": keep}
    folder = begin_scores(out, loaded, source, per_part=per_part, **shared)
    with Run(folder, progress) as run:
        if not run.todo:
            return run
        with connected_ray(address) as ray:
            count, cores, gpus = find_room(ray, actors, options.get("device", "auto"))
            kind = ray.remote(num_cpus=cores, num_gpus=gpus)(PartActor)
            arguments = (
                ray.put(packed),
                cores,
                options,
                ScoresFolder(folder.out, folder.manifest, (), folder.again),
                str(Path.cwd()),
            )
            give_parts(ray, run, count, lambda: kind.remote(*arguments))
    if run.failed:
        named = [f"{part.names[0]} ({reason})" for part, reason in run.failed.items()]
        raise RunError(
            f"{len(named):,} parts failed {ATTEMPTS} times, such as {'; '.join(named[:MOST_NAMED])}. The others are "
            "done: repair or replace these, and run the same command again"
        )
    return run


def give_parts(ray: Any, run: Run, count: int, new_actor: Callable[[], Any]) -> None:
    """Gives part after part to `count` actors that have started; a new actor replaces one that fails.

    The claims are those of this process, so that a part whose actor has ended is given to another at once.
    """
    again, failures, interruptions = deque[Part](), Counter[Part | None](), Counter[Part | None]()
    tasks: dict[Any, tuple[Any, Part | None]] = {}  # the actor and the part of each task, None while the actor starts
    idle = list[Any]()

    def start_actor() -> None:
        actor = new_actor()
        tasks[actor.start.remote()] = actor, None

    for _ in range(min(count, len(run.todo))):
        start_actor()
    while run.left:
        while idle and (part := again.popleft() if again else run.next_part()) is not None:
            actor = idle.pop()
            tasks[actor.score.remote(part)] = actor, part
        if not run.left:
            return
        if not tasks:
            run.watch()
            continue
        ready, _ = ray.wait(list(tasks), timeout=PAUSE if run.claimed else None)
        if not ready:
            run.watch(0)
            continue
        actor, part = tasks.pop(ready[0])
        try:
            scored = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            reason = reason_of(error)
            interrupted = is_interruption(error) and interruptions[part] < INTERRUPTIONS
            (interruptions if interrupted else failures)[part] += 1
            is_last = not interrupted and failures[part] == ATTEMPTS
            if part is None and is_last:
                raise RunError(
                    f"workers do not start ({reason}): repair the nodes, and run the command again"
                ) from error
            if part is not None and is_last:
                run.failed[part] = reason
                run.end_part(part, is_written=False)
            elif part is not None:
                again.append(part)
            ray.kill(actor)  # the process may be broken, such as its GPU
            start_actor()
        else:
            failures[None] = 0
            idle.append(actor)
            if part is not None:
                run.end_part(part, *scored or (), is_written=scored is not None)


def reason_of(error: Exception) -> str:
    """Why an actor failed; raises the errors that another attempt would not avoid: a full disk, a changed shard."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, DiscopatchError) and not isinstance(cause, StoreError | WorkerError):
        raise cause
    return KILLED if cause is None else f"{type(cause).__name__}: {cause}"


def is_interruption(error: Exception) -> bool:
    """Whether a worker was stopped from outside, such as by a time limit or with its node, and not by its part."""
    return bool(getattr(error, "preempted", False)) or (
        getattr(error, "cause", None) is None and any(text in str(error) for text in INTERRUPTED)
    )


def find_room(ray: Any, actors: int | None, device: str) -> tuple[int, int, int]:
    """The number of actors, and the cores and GPUs of each: one actor per GPU, or one per core without GPUs."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    with_gpu = [] if device == "cpu" else [node for node in nodes if node.get("GPU", 0) >= 1]
    if with_gpu:
        cpus = max(1, min(int(node.get("CPU", 0) // node["GPU"]) for node in with_gpu))
        return actors or int(sum(node["GPU"] for node in with_gpu)), cpus, 1
    return actors or max(1, int(sum(node.get("CPU", 0) for node in nodes))), 1, 0


class PartActor:
    """A process with a detector; relative names begin at its `working_folder`."""

    def __init__(
        self, packed: Packed, cores: int, options: Mapping[str, Any], folder: ScoresFolder, working_folder: str
    ) -> None:
        self._load = partial(load_detector, packed, cores, options)
        self._folder, self._working_folder = folder, working_folder
        self._workers: Workers = cores if cores <= FEW_CORES else Processes(cores)

    def start(self) -> None:
        """Loads the detector; RunError if this node does not see the folder."""
        with suppress(OSError):
            os.chdir(self._working_folder)
        if not self._folder.out.has(MANIFEST):
            raise RunError(
                f"{self._folder.out.name} is not visible on all nodes of the cluster: choose a folder on a network "
                "share or in an object store"
            )
        self._detector = self._load()

    def score(self, part: Part) -> tuple[int, int] | None:
        """Writes the scores of a part; the numbers of images and of refused ones, or None if others wrote them."""
        if self._folder.is_scored(part):
            return None
        check_visible(part)
        ((_, table),) = score_parts(self._detector, [part], workers=self._workers)
        self._folder.write(part, table)
        return table.num_rows, table.num_rows - table["error"].null_count


def check_visible(part: Part) -> None:
    """Raises RunError if this node sees none of the local images, which would all count as missing."""
    places = [each.content if isinstance(each, Item) else None for each in part.source]
    if not any(not isinstance(place, Path) or place.exists() for place in places):
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

    own = not ray.is_initialized()
    try:
        if own:
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
            handler = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
            ray.init(address, **quiet, **options)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # that of Ray prints a stack and aborts
        yield ray
    except SystemError as error:  # a signal in the midst of a call of Ray
        raise error.__cause__ or error from None
    except (ConnectionError, ray.exceptions.RayError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
        raise RunError(f"Ray failed ({said}): finished parts are kept; run the same command again") from error
    finally:
        if own:
            ray.shutdown()
