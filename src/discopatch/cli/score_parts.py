"""discopatch score --out: scores in parts, as Parquet"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.batch.folder import ScoresFolder, Summary
    from discopatch.batch.run import Progress, Run
    from discopatch.gate import FolderTest
    from discopatch.images import RefusalReport, Workers

FAILED, REFUSED = 3, 4  # exit statuses
BETWEEN_LINES = 30.0  # seconds, if no terminal shows a bar


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """The options of `score` that only have an effect with --out."""

    rank: str | None = None
    allow_missing: bool = False
    ray: str | None = None
    actors: int | None = None

    def check_unused(self) -> None:
        """Raises BadParameter for options that have no effect without --out."""
        given = [name.replace("_", "-") for name, value in vars(self).items() if value not in (None, False)]
        if given:
            raise typer.BadParameter(f"--{', --'.join(given)}: for scores in parts; give --out too")


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """The options that decide the exit status."""

    fail_on: Literal["folder", "any"] | None = None
    fail_rate: float = 0.01
    groups: Literal["folder", "name", "none"] | None = None
    allow_refused: bool = False


def score_to_folder(
    images: list[str],
    detector: str,
    out: str,
    *,
    parts: PartOptions,
    gate: GateOptions,
    workers: "Workers | None",
    load: Mapping[str, Any],
) -> None:
    """Scores images into a folder of Parquet and prints a summary; exits with a status as `score` does.

    `workers` are those of one process, without Ray; `load` has keywords of `discopatch.load`.
    """
    from rich.console import Console

    import discopatch
    from discopatch.batch.ray_engine import score_on_ray
    from discopatch.batch.run import find_ranks, score_to
    from discopatch.gate import folder_test
    from discopatch.images import DEFAULT_WORKERS
    from discopatch.utils import require

    require("pyarrow", extra="parquet")
    if parts.ray is None and parts.actors is not None:
        raise typer.BadParameter("--actors: for Ray; give --ray auto too")
    if parts.ray is not None and (parts.rank is not None or workers is not None):
        raise typer.BadParameter("--rank and --workers are for one process: with --ray give --actors")
    rank, _, world = ("0/1" if parts.rank is None else parts.rank).partition("/")
    if not (rank.isdecimal() and world.isdecimal()):
        raise typer.BadParameter(f"{parts.rank!r}: give number and count of the processes, such as --rank 0/4")
    ranks = find_ranks() if parts.rank is None and parts.ray is None else find_ranks(int(rank), int(world))
    if gate.fail_on is not None and ranks.world > 1:
        raise typer.BadParameter("--fail-on decides about all images: run it once more at the end, with --rank 0/1")
    console, source, path = Console(stderr=True), options.source_of(images), options.detector_of(detector).path
    loaded = discopatch.load(path, **{**load, "device": ranks.device(load.get("device", "auto"))})
    with shown_progress(console) as progress:
        shared: dict[str, Any] = {"allow_missing": parts.allow_missing, "progress": progress}
        if parts.ray is None:
            shared |= {"rank": ranks.rank, "world": ranks.world}
            run = score_to(loaded, source, out, workers=DEFAULT_WORKERS if workers is None else workers, **shared)
        else:
            address = None if parts.ray == "auto" else parts.ray
            with redirect_stdout(sys.stderr):  # Ray prints the errors of its workers
                run = score_on_ray(path, source, out, address=address, actors=parts.actors, **shared, **load)
    summary = show_summary(console, run.folder, run)
    if summary.images and not summary.refusals.accepted and (gate.fail_on is None or gate.allow_refused):
        raise summary.refusals.nothing_left()
    if gate.fail_on is not None:
        found = folder_test(run.folder.predictions(), loaded, fail_rate=gate.fail_rate, groups=gate.groups or "fitted")
        apply_gate(console, gate, found, summary.flagged, summary.refusals)


@contextmanager
def shown_progress(console: "Console") -> "Iterator[Progress]":
    """A bar on a terminal; elsewhere, as in the log of a job, a line every half minute."""
    last = time.monotonic()

    def print_line(run: "Run") -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN_LINES:
            last = time.monotonic()
            place = f"part {len(run.todo) - run.left + 1:,} of {len(run.todo):,}"
            console.print(f"scoring: {place}, {run.images:,} images, {run.rate:,.3g} images/s", soft_wrap=True)

    with options.progress_bar(console, "scoring") as bar:
        yield (lambda run: bar(run.images, run.total)) if console.is_terminal else print_line


def show_summary(console: "Console", folder: "ScoresFolder", run: "Run | None" = None) -> "Summary":
    """Prints and returns the numbers of parts and images in the folder, and prints those of this run."""
    from discopatch.utils import counted

    summary, done, planned = folder.summary(), len(folder.done()), len(folder.parts)
    count = f"{done:,} of {planned:,} parts, {summary.images:,} images, {summary.flagged:,} flagged"
    lines = [f"{folder.out.name}: {count}"]
    if run is not None and run.parts:
        count = f"{counted(run.parts, 'part')}, {run.images:,} images"
        lines.append(f"scored now: {count} in {run.seconds:,.0f} s, {run.rate:,.3g} images/s")
    if run is not None and run.ranks.world > 1:
        lines.append(f"rank {run.ranks.rank} of {run.ranks.world}: {run.before + len(run.todo):,} of the parts")
    if done < planned:
        lines.append(f"left: {counted(planned - done, 'part')}; start the other ranks, or again with --rank 0/1")
    for line in lines:
        options.notice(console, line)
    if summary.refusals:
        options.notice(console, summary.refusals.summary(), "yellow")
    return summary


def apply_gate(
    console: "Console", gate: GateOptions, found: "FolderTest", flagged: int, refusals: "RefusalReport"
) -> None:
    """Prints the decision, and exits with a status if the images fail or some were refused."""
    fails, text = found.fails, found.text
    if gate.fail_on == "any":
        fails, text = flagged > 0, f"{flagged:,} of {refusals.accepted:,} images flagged"
    options.notice(console, text, "red" if fails else "")
    if fails or (refusals and not gate.allow_refused):
        raise typer.Exit(FAILED if fails else REFUSED)
