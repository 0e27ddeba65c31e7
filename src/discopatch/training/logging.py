"""What a run writes down: losses as CSV always, TensorBoard and Weights & Biases when asked, and sample sheets."""

import csv
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from discopatch.images.tensors import to_pixels
from discopatch.training.checkpoint import RunFolder
from discopatch.training.config import RunOptions
from discopatch.training.losses import Losses
from discopatch.utils import write_atomically

COLUMNS = ("step", *Losses._fields)
SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_UPDATES = 2.0


class Log:
    """Anywhere that losses can go; one without a flush or close of its own needs none."""

    def write(self, step: int, losses: Sequence[float]) -> None:
        raise NotImplementedError

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Logs(Log):
    """Several logs as one; none at all on a rank that does not write."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self._logs = logs

    def write(self, step: int, losses: Sequence[float]) -> None:
        for log in self._logs:
            log.write(step, losses)

    def flush(self) -> None:
        for log in self._logs:
            log.flush()

    def close(self) -> None:
        for log in self._logs:
            log.close()


class CsvLog(Log):
    """One line a step. What an earlier attempt wrote beyond `step` is dropped: those steps are done again."""

    def __init__(self, path: Path, *, step: int) -> None:
        kept = [line for line in read_losses(path) if line[0] <= step] if path.exists() else []
        write_atomically(path, lambda partial: self._begin(partial, kept))
        self._file = path.open("a", newline="")
        self._csv = csv.writer(self._file)

    @staticmethod
    def _begin(path: Path, lines: Sequence[Sequence[float]]) -> None:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *([int(step), *losses] for step, *losses in lines)])

    def write(self, step: int, losses: Sequence[float]) -> None:
        self._csv.writerow([step, *losses])

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_losses(path: Path) -> list[list[float]]:
    """The complete lines of a CSV of losses, each `COLUMNS`; what follows a line that a crash cut short is left out."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    complete: list[list[float]] = []
    for line in lines:
        try:
            values = [float(value) for value in line]
        except ValueError:
            break
        if len(values) != len(COLUMNS):
            break
        complete.append(values)
    return complete


class TensorBoardLog(Log):
    """The losses as curves for TensorBoard."""

    def __init__(self, folder: Path, *, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: int, losses: Sequence[float]) -> None:
        for name, value in zip(Losses._fields, losses, strict=True):
            self._writer.add_scalar(f"loss/{name}", value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLog(Log):
    """The losses in a project of Weights & Biases, whose client sends by itself."""

    def __init__(self, project: str, folder: Path, *, config: dict[str, Any], resume: bool) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=project,
            dir=str(folder),
            id=config["run_id"],
            config=config,
            resume="allow" if resume else None,
        )

    def write(self, step: int, losses: Sequence[float]) -> None:
        self._run.log({f"loss/{n}": v for n, v in zip(Losses._fields, losses, strict=True)}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_logs(folder: RunFolder, options: RunOptions, *, step: int, description: dict[str, Any], resume: bool) -> Logs:
    """The CSV of a run that stands at `step`, and the further logs that the options ask for."""
    logs: list[Log] = [CsvLog(folder.losses, step=step)]
    if options.tensorboard:
        logs.append(TensorBoardLog(folder.path / "tensorboard", step=step))
    if options.wandb:
        logs.append(WandbLog(options.wandb, folder.path, config=description, resume=resume))
    return Logs(logs)


def describe_losses(losses: Sequence[float], separator: str) -> str:
    """Such as `vae 0.12, discriminator 0.7`."""
    return separator.join(f"{name} {value:.4g}" for name, value in zip(Losses._fields, losses, strict=True))


class Display:
    """A live bar with the losses below it on a terminal; elsewhere, in a log file say, a line now and then."""

    def __init__(self, console: Console, *, total: int, step: int, patches_per_step: int) -> None:
        self._console = console
        self._total = total
        self._step = step
        self._patches_per_step = patches_per_step
        self._printed = self._updated = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("step {task.completed:,.0f} of {task.total:,.0f}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("train", total=total, completed=step, speed="")
        self._losses = Text()
        self._live = Live(Group(self._bar, self._losses), console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @property
    def is_due(self) -> bool:
        """Whether a person would like to see something new."""
        return time.monotonic() - self._updated > SECONDS_BETWEEN_UPDATES

    def update(self, step: int, losses: Sequence[float]) -> None:
        """Shows the losses of that step, and the speed since the last update."""
        now = time.monotonic()
        patches = self._patches_per_step * (step - self._step)
        speed = f"{patches / max(now - self._updated, 1e-9):,.0f} patches/s"
        self._step, self._updated = step, now
        text = describe_losses(losses, "  ")
        self._bar.update(self._task, completed=step, speed=speed)
        self._losses.plain = text
        if not self._console.is_terminal and now - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = now
            self._console.print(f"step {step} of {self._total}  {speed}  {text}", soft_wrap=True)


def save_sample_sheet(path: Path, rows: Sequence[Tensor]) -> None:
    """Writes a PNG with one row of patches for each tensor (N, 3, S, S) in [-1, 1]."""
    pixels = [to_pixels(row).permute(0, 2, 3, 1).cpu().numpy() for row in rows]
    sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in pixels], axis=0)
    write_atomically(path, lambda partial: Image.fromarray(sheet).save(partial, format="PNG"))
