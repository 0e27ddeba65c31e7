"""Losses of a run in a CSV file, its progress on a terminal, and sheets of sample patches."""

import csv
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from discopatch.images.tensors import to_pixels
from discopatch.training.losses import Losses
from discopatch.utils import write_atomically

COLUMNS = ("step", *Losses._fields)
SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_UPDATES = 2.0


class LossFile:
    """CSV with one line a step. Lines of an earlier attempt beyond `step` are dropped: those steps are repeated."""

    def __init__(self, path: Path, *, step: int) -> None:
        kept = [line for line in read_losses(path) if line[0] <= step] if path.exists() else []

        def begin(partial: Path) -> None:
            with partial.open("w", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *([int(step), *losses] for step, *losses in kept)])

        write_atomically(path, begin)
        self._file = path.open("a", newline="")

    def write(self, rows: Iterable[Sequence[float]]) -> None:
        """Appends lines of `COLUMNS`."""
        csv.writer(self._file).writerows(rows)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_losses(path: Path) -> list[list[float]]:
    """Complete lines of a CSV of losses, each `COLUMNS`, up to a line that a crash cut short."""
    complete: list[list[float]] = []
    with path.open(newline="") as file:
        for line in list(csv.reader(file))[1:]:
            try:
                values = [float(value) for value in line]
            except ValueError:
                break
            if len(values) != len(COLUMNS):
                break
            complete.append(values)
    return complete


def describe_losses(losses: Sequence[float], separator: str) -> str:
    """Such as `vae 0.12, discriminator 0.7`."""
    return separator.join(f"{name} {value:.4g}" for name, value in zip(Losses._fields, losses, strict=True))


class Display:
    """Progress bar with the losses on a terminal; elsewhere one line every half minute."""

    def __init__(self, console: Console, *, total: int, step: int, patches_per_step: int) -> None:
        self._console, self._step, self._patches_per_step = console, step, patches_per_step
        self._printed = self._updated = time.monotonic()
        self._bar = Progress(
            TextColumn("step {task.completed:,.0f} of {task.total:,.0f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=step, speed="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def is_due(self) -> bool:
        """Whether the last update is more than two seconds old."""
        return time.monotonic() - self._updated > SECONDS_BETWEEN_UPDATES

    def update(self, step: int, losses: Sequence[float]) -> None:
        """Shows the losses of that step, and the speed since the last update."""
        now = time.monotonic()
        speed = f"{self._patches_per_step * (step - self._step) / max(now - self._updated, 1e-9):,.0f} patches/s"
        self._step, self._updated = step, now
        text = describe_losses(losses, "  ")
        self._bar.update(self._task, completed=step, speed=speed, description=text)
        if not self._console.is_terminal and now - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = now
            total, left = self._bar.tasks[0].total, self._bar.tasks[0].time_remaining
            eta = "" if left is None else f"eta {timedelta(seconds=int(left))}  "
            self._console.print(f"step {step} of {total:.0f}  {speed}  {eta}{text}", soft_wrap=True)


def save_sample_sheet(path: Path, rows: Sequence[Tensor]) -> None:
    """Writes a PNG with one row of patches for each tensor (N, 3, S, S) in [-1, 1]."""
    pixels = [to_pixels(row).permute(0, 2, 3, 1).cpu().numpy() for row in rows]
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in pixels], axis=0)
    write_atomically(path, lambda partial: Image.fromarray(sheet).save(partial, format="PNG"))
