"""Runs that write scores in parts, as commands show them: progress, the sum at the end, a gate over all rows."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from discopatch.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.batch.folder import ScoresFolder
    from discopatch.batch.run import Progress, Run
    from discopatch.batch.table import Counts
    from discopatch.gate import FolderGate
    from discopatch.results import Prediction

BETWEEN_LINES = 30.0  # seconds, where no terminal shows a bar


@contextmanager
def shown_progress(console: "Console", activity: str) -> "Iterator[Progress]":
    """A bar on a terminal; elsewhere, as in the log of a job, a line every half minute."""
    last = time.monotonic()

    def print_line(run: "Run") -> None:
        nonlocal last
        if time.monotonic() - last >= BETWEEN_LINES:
            last = time.monotonic()
            left = "" if run.seconds_left is None else f", about {duration_text(run.seconds_left)} left"
            parts = f"part {run.mine - run.left + 1:,} of {run.mine:,}"
            console.print(f"{activity}: {parts}, {run.images:,} images, {run.rate:,.3g} images/s{left}", soft_wrap=True)

    with options.progress_bar(console, activity) as bar:

        def move(run: "Run") -> None:
            bar(run.images, None if run.images_left is None else run.images + run.images_left)

        yield move if console.is_terminal else print_line


def duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def show_sum(console: "Console", run: "Run", *, verb: str = "scored") -> "Counts":
    """Says what the folder holds now and what this run did, and returns what is in all parts that are there."""
    from rich.text import Text

    from discopatch.utils import counted, escaped

    folder = run.folder
    present = folder.present()
    counts = folder.counts(present)
    lines = [
        f"{folder.store.name}: {len(present):,} of {len(folder.parts):,} parts, {counts.images:,} images, "
        f"{counts.flagged:,} flagged"
    ]
    if run.parts:
        took = f"in {duration_text(run.seconds)}, {run.rate:,.3g} images/s"
        lines.append(f"{verb} now: {counted(run.parts, 'part')}, {run.counts.images:,} images {took}")
    if run.ranks.world > 1:
        by = f" (by {run.ranks.by})" if run.ranks.by else ""
        lines.append(f"rank {run.ranks.rank} of {run.ranks.world}{by}: {run.mine:,} of the parts were this process's")
    if left := len(folder.parts) - len(present):
        are = "are" if left > 1 else "is"
        remedy = "start the other ranks, or the same command again with --rank 0 --world 1"
        lines.append(f"{counted(left, 'part')} {are} left: {remedy}")
    for line in lines:
        console.print(Text(escaped(line)), soft_wrap=True)
    if counts.refusals:
        console.print(Text(counts.refusals.summary(), style="yellow"), soft_wrap=True)
    return counts


def gate_fails(
    console: "Console", folder: "ScoresFolder", counts: "Counts", gate: Literal["folder", "any"], rule: "FolderGate"
) -> bool:
    """Whether the images as a whole fail, or any is flagged, and says so."""
    from rich.text import Text

    if gate == "any":
        fails, text = counts.flagged > 0, f"{counts.flagged:,} of {counts.refusals.accepted:,} images flagged"
    else:
        for prediction in stored_predictions(folder):
            rule.add(prediction)
        found = rule.result()
        fails, text = found.fails, found.text
    console.print(Text(text, style="red" if fails else ""), soft_wrap=True)
    return fails


def stored_predictions(folder: "ScoresFolder") -> "Iterator[Prediction]":
    """The rows of a folder, without components."""
    from discopatch.batch.read import read_scores
    from discopatch.results import Prediction

    columns = ["name", "score", "p_value", "is_ood", "error"]
    for batch in read_scores(folder.store).to_batches(columns=columns):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Prediction(*row)
