"""Scoring a source into a folder: the parts that are this process's and not there yet, one after the other."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discopatch.batch.folder import ScoresFolder, begin_scores, finish_part
from discopatch.batch.plan import PER_PART, Part
from discopatch.batch.ranks import Ranks, find_ranks
from discopatch.batch.scoring import PartScorer
from discopatch.batch.store import Store, open_store
from discopatch.batch.table import Counts
from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_WORKERS, Workers

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime


@dataclass
class Run:
    """What one process has done so far, and what is left to it."""

    folder: ScoresFolder
    ranks: Ranks
    mine: int  # parts that are this process's
    before: int  # of them were there already
    counts: Counts = field(default_factory=Counts)  # of what it scored
    parts: int = 0  # that it wrote
    elsewhere: int = 0  # that another process wrote meanwhile
    seconds: float = 0.0
    in_work: int = 0  # images that were scored of a part that is not written yet
    loose_left: int = 0  # images of parts that are not written yet, but for those in shards
    shards_left: int = 0
    shards: int = 0  # that it wrote
    in_shards: int = 0  # images of these

    @property
    def left(self) -> int:
        """Parts."""
        return self.mine - self.before - self.parts - self.elsewhere

    @property
    def images(self) -> int:
        """Those that were scored, written or not."""
        return self.counts.images + self.in_work

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def images_left(self) -> int | None:
        """About; None while nobody knows how many images a shard holds."""
        if self.shards_left and not self.shards:
            return None
        in_shards = self.shards_left * self.in_shards // self.shards if self.shards_left else 0
        return max(0, self.loose_left + in_shards - self.in_work)

    @property
    def seconds_left(self) -> float | None:
        return None if self.images_left is None or not self.images else self.images_left / self.rate

    def plan(self, part: Part) -> None:
        """Counts a part that is still to be done."""
        self.loose_left += 0 if part.is_shard else len(part.names)
        self.shards_left += part.is_shard

    def drop(self, part: Part) -> None:
        """Counts it no longer."""
        self.loose_left -= 0 if part.is_shard else len(part.names)
        self.shards_left -= part.is_shard

    def finish(self, part: Part, counts: Counts) -> None:
        self.drop(part)
        self.counts.add(counts)
        self.parts += 1
        self.in_work -= min(self.in_work, counts.images)
        self.shards += part.is_shard
        self.in_shards += counts.images if part.is_shard else 0

    def check(self) -> None:
        """Raises an error where something was given up, which one process never does."""


Progress = Callable[[Run], object]  # called when a run begins, and again and again


def score_to(
    predictor: "Detector | Runtime",
    source: object,
    out: str | os.PathLike[str] | Store,
    *,
    features: bool = False,
    places: bool = False,
    per_part: int | None = None,
    rank: int | None = None,
    world: int | None = None,
    workers: Workers = DEFAULT_WORKERS,
    allow_missing: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Scores a source into a folder of Parquet, one file for each shard or for `per_part` loose images (10,000).

    A part that is there is done: whoever is stopped, killed or joined by others goes on with the rest, and the files
    are equal to the bit however many processes, workers and starts made them. Of `world` processes that share the
    folder the one of number `rank` takes every `world`-th part; torchrun and SLURM tell both.

    `features` and `places` are stored for `rescore`: see `PartScorer`. A source that has grown since is gone on with;
    what was planned and is gone from it is an error, or with `allow_missing` a refused image. ScoresError where the
    folder was begun with another detector or source.
    """
    if per_part is not None and per_part < 1:
        raise ParameterError(f"per_part is {per_part}: a part holds at least 1 image")
    ranks = find_ranks(rank, world)
    scorer = PartScorer(predictor, features=features, places=places)
    folder = begin_scores(
        open_store(out),
        scorer.manifest(per_part or PER_PART),
        source,
        limits=predictor.limits,
        per_part=per_part,
        allow_gone=allow_missing,
    )
    return run_parts(scorer, folder, ranks, workers=workers, progress=progress)


def run_parts(
    scorer: PartScorer,
    folder: ScoresFolder,
    ranks: Ranks,
    *,
    workers: Workers = DEFAULT_WORKERS,
    progress: Progress | None = None,
) -> Run:
    """Does the parts of a folder that are this process's and not there yet."""
    mine = [part for part in folder.parts if ranks.takes(part.number)]
    done = {part.number for part in folder.present()}
    run = Run(folder, ranks, len(mine), sum(part.number in done for part in mine))
    started = time.monotonic()

    def tell(images: int = 0) -> None:
        run.in_work += images
        run.seconds = time.monotonic() - started
        if progress is not None:
            progress(run)

    def still_to_do() -> Iterator[Part]:
        """Asked for one by one, as they are begun: another process may have been here meanwhile."""
        for part in todo:
            if folder.has(part):
                run.elsewhere += 1
                run.drop(part)
            else:
                yield part

    todo = [part for part in mine if part.number not in done]
    for part in todo:
        run.plan(part)
    tell()
    with closing(scorer.score_parts(still_to_do(), workers=workers, progress=tell)) as scored:
        for part, table in scored:
            run.finish(part, finish_part(folder, part, table))
            tell()
    return run
