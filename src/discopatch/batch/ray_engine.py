"""Ray Data as the engine: a pool of actors, each with a detector, takes part after part.

Ray starts actors again that died, wherever there is room, and gives them their part again without end. What a part may
cost is counted beside the scores, see `Tries`: a part that killed three workers is set aside, and the rest goes on.
"""

import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.batch.folder import ScoresFolder, begin_scores, finish_part
from discopatch.batch.manifest import MANIFEST, Manifest
from discopatch.batch.packed import LoadSettings, PackedDetector
from discopatch.batch.plan import PER_PART, Part
from discopatch.batch.ranks import Ranks
from discopatch.batch.ray_session import connected_ray, ray_errors
from discopatch.batch.run import Progress, Run
from discopatch.batch.scoring import PartScorer, score_part
from discopatch.batch.store import LocalStore, Store, open_store
from discopatch.batch.table import Counts
from discopatch.batch.tries import MOST_TRIES, Tries
from discopatch.errors import ClusterError, DiscopatchError, ParameterError, ScoresError, StoreError, WorkerError
from discopatch.images import Processes, Workers

MOST_NAMED = 5  # parts in an error
MOST_TASKS = 10_000  # of Ray: of more parts several are one task
FEW_CORES = 4  # with more of them processes decode, since threads stop gaining


@dataclass(frozen=True)
class RayOptions:
    """Where and how wide to run.

    address: of a cluster; by default the one that RAY_ADDRESS or this machine tells of, or a new one here.
    actors: workers with a detector each; by default as many as there is room for.
    cpus: cores of an actor, which decode and, without a GPU, compute.
    gpus: of an actor, 0.5 for two actors on one; by default 1 where the cluster has GPUs and the device may be one.
    """

    address: str | None = None
    actors: int | None = None
    cpus: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("actors", 1), ("cpus", 1), ("gpus", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ParameterError(f"{name} is {value}: give at least {least}")


@dataclass
class RayRun(Run):
    """What the actors have done so far; `set_aside` has the parts that were given up, with the reason."""

    set_aside: dict[Part, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return super().left - len(self.set_aside)

    def check(self) -> None:
        """Raises ClusterError, with names, where parts were set aside."""
        if self.set_aside:
            named = [f"{part.names[0]} ({reason})" for part, reason in self.set_aside.items()]
            more = f" and {len(named) - MOST_NAMED:,} more" if len(named) > MOST_NAMED else ""
            raise ClusterError(
                f"{len(named):,} parts were set aside after {MOST_TRIES} tries: {'; '.join(named[:MOST_NAMED])}{more}. "
                "The rest is done: repair or remove them, and run the same command with --try-again"
            )


class Outcome(NamedTuple):
    """How it went with a part."""

    what: Literal["done", "elsewhere", "set aside", "failed"]
    note: bytes = b""  # the counts, the reason, or the error with which the run ends


class Room(NamedTuple):
    """How many actors are started, and what each takes."""

    actors: int
    cpus: int
    gpus: float


def score_on_ray(
    detector: Path | str | PackedDetector,
    source: object,
    out: str | os.PathLike[str] | Store,
    *,
    load: LoadSettings | None = None,
    features: bool = False,
    places: bool = False,
    per_part: int | None = None,
    allow_missing: bool = False,
    try_again: bool = False,
    options: RayOptions | None = None,
    progress: Progress | None = None,
) -> RayRun:
    """Scores a source into a folder as `score_to` does, to the bit, by actors of a Ray cluster.

    All nodes must see the source and the folder under the same names: an object store, or a share. The detector goes
    to them as bytes. A part that ended its worker three times is set aside, also in later runs, unless `try_again`.
    Either engine goes on with what the other began.
    """
    options, load = options or RayOptions(), load or LoadSettings()
    packed = detector if isinstance(detector, PackedDetector) else PackedDetector.read(detector)
    predictor = packed.load(load).predictor
    scorer = PartScorer(predictor, features=features, places=places)
    store = visible(open_store(out))
    folder = begin_scores(
        store,
        scorer.manifest(per_part or PER_PART),
        source,
        limits=predictor.limits,
        per_part=per_part,
        allow_gone=allow_missing,
    )
    if try_again:
        Tries(store).forget_all()
    present = {part.number for part in folder.present()}
    todo = [part for part in folder.parts if part.number not in present]
    run = RayRun(folder, Ranks(0, 1), len(folder.parts), len(present))
    for part in todo:
        run.plan(part)
    if progress is not None:
        progress(run)
    if todo:
        del scorer, predictor  # the actors have their own
        with connected_ray(options.address) as ray, ray_errors():
            follow(ray, run, todo, packed, load, options, {"features": features, "places": places}, progress)
    return run


def visible(store: Store) -> Store:
    """The same store by a path that does not depend on where a process was started."""
    return LocalStore(store.folder.absolute()) if isinstance(store, LocalStore) else store


def follow(
    ray: Any,
    run: RayRun,
    todo: list[Part],
    packed: PackedDetector,
    load: LoadSettings,
    options: RayOptions,
    stored: Mapping[str, bool],
    progress: Progress | None,
) -> None:
    """Lets Ray Data do the parts, and counts in the run what comes back."""
    tasks = min(len(todo), MOST_TASKS)
    room = find_room(ray, options, load.device)
    actors = min(room.actors, tasks)
    work = Work(
        detector=ray.put(packed),
        load=replace(load, cores=room.cpus),
        store=run.folder.store,
        manifest=run.folder.manifest,
        working_folder=str(Path.cwd()),
        **stored,
    )
    # Ray passes objects between its processes as cloudpickle does; names compress well.
    rows = [{"part": zlib.compress(ray.cloudpickle.dumps(part), 1)} for part in todo]
    data = ray.data.from_items(rows, override_num_blocks=tasks).map_batches(
        PartActor,
        fn_constructor_args=(work,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=1),
        num_cpus=room.cpus,
        num_gpus=room.gpus or None,
    )
    parts = {part.number: part for part in todo}
    started = time.monotonic()
    for row in data.iter_rows():
        part, note = parts[row["number"]], row["note"]
        match row["what"]:
            case "done":
                run.finish(part, Counts.read(note, f"part {part.number}"))
            case "elsewhere":
                run.elsewhere += 1
                run.drop(part)
            case "set aside":
                run.set_aside[part] = note.decode()
                run.drop(part)
            case _:
                raise ray.cloudpickle.loads(note)
        run.seconds = time.monotonic() - started
        if progress is not None:
            progress(run)


def find_room(ray: Any, options: RayOptions, device: str) -> Room:
    """As many actors as the nodes have cores and GPUs for, unless a number is given."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    have_gpus = sum(node.get("GPU", 0) for node in nodes) > 0 and device != "cpu"
    gpus = float(have_gpus) if options.gpus is None else options.gpus
    per_gpu = min((int(node.get("CPU", 0) // node["GPU"]) for node in nodes if node.get("GPU")), default=1)
    cpus = options.cpus or (max(1, int(per_gpu * gpus)) if gpus else 1)
    if options.actors is not None:
        return Room(options.actors, cpus, gpus)
    fitting = [min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else np.inf) for node in nodes]
    actors = int(sum(fitting))
    if not actors:
        raise ParameterError(
            f"no node of the cluster has room for an actor of {cpus} cores and {gpus:g} GPUs: give fewer "
            "(--cpus-per-actor, --gpus-per-actor), or --actors to wait until there is room"
        )
    return Room(actors, cpus, gpus)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an actor is told once."""

    detector: Any  # where in Ray's object store the `PackedDetector` is
    load: LoadSettings
    store: Store
    manifest: Manifest
    working_folder: str  # where relative names begin
    features: bool
    places: bool


class PartActor:
    """A detector in a process of its own, to which Ray Data brings part after part."""

    def __init__(self, work: Work) -> None:
        self._failure: DiscopatchError | None = None
        try:
            self._begin(work)
        except DiscopatchError as error:  # Ray would bring back no more than its text
            self._failure = error

    def _begin(self, work: Work) -> None:
        import ray

        with suppress(OSError):
            os.chdir(work.working_folder)
        if not work.store.has(MANIFEST):
            raise ScoresError(
                f"{work.store.name} is not seen by all nodes of the cluster: choose a folder on a share, or an address "
                "such as s3://bucket/scores"
            )
        packed: PackedDetector = ray.get(work.detector)
        loaded = packed.load(work.load)
        self._scorer = PartScorer(loaded.predictor, features=work.features, places=work.places)
        self._workers: Workers = loaded.cores if loaded.cores <= FEW_CORES else Processes(loaded.cores)
        self._folder = ScoresFolder(work.store, work.manifest, ())
        self._tries = Tries(work.store)

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Of each part its number and how it went."""
        import ray

        parts: list[Part] = [ray.cloudpickle.loads(zlib.decompress(each)) for each in batch["part"]]
        outcomes = []
        for part in parts:
            try:
                outcomes.append(self._do(part))
            except DiscopatchError as error:
                outcomes.append(Outcome("failed", ray.cloudpickle.dumps(error)))
        return {
            "number": np.array([part.number for part in parts], np.int64),
            "what": np.array([outcome.what for outcome in outcomes], object),
            "note": np.array([outcome.note for outcome in outcomes], object),
        }

    def _do(self, part: Part) -> Outcome:
        """Raises DiscopatchError where no other try would do better: a full disk, a shard that was changed."""
        if self._failure is not None:
            raise self._failure
        if self._folder.has(part):
            return Outcome("elsewhere")
        check_seen(part)
        name = self._tries.begin(part)
        if name is None:
            return Outcome("set aside", self._tries.reason(part).encode())
        try:
            counts = finish_part(self._folder, part, score_part(self._scorer, part, workers=self._workers))
        except Exception as error:
            if isinstance(error, DiscopatchError) and not isinstance(error, StoreError | WorkerError):
                self._tries.end(part)
                raise
            # Who knows what else is broken in this process, such as its GPU: Ray starts another.
            self._tries.note(name, f"{type(error).__name__}: {error}")
            os._exit(1)
        self._tries.end(part)
        return Outcome("done", counts.to_json())


def check_seen(part: Part) -> None:
    """Raises ScoresError where this node sees none of the local images, all of which would be called missing."""
    if not part.entries and not any(Path(name).exists() for name in part.names):
        raise ScoresError(
            f"{part.names[0]} is not seen by all nodes of the cluster: put the images on a share or in an object "
            "store, and name them from the root"
        )
