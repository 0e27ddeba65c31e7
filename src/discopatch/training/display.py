"""What a person sees while a run goes on."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from discopatch.training.step import Losses

SECONDS_BETWEEN_LINES = 30.0


class Display:
    """A live bar with the losses below it on a terminal; elsewhere, in a log file say, a line now and then."""

    def __init__(self, console: Console, *, total: int, step: int) -> None:
        self._console = console
        self._total = total
        self._printed = time.monotonic()
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

    def update(self, step: int, losses: list[float], patches_per_second: float) -> None:
        """Shows where the run stands."""
        speed = f"{patches_per_second:,.0f} patches/s"
        words = "  ".join(f"{name} {value:.4g}" for name, value in zip(Losses._fields, losses, strict=True))
        self._bar.update(self._task, completed=step, speed=speed)
        self._losses.plain = words
        now = time.monotonic()
        if not self._console.is_terminal and now - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = now
            self._console.print(f"step {step} of {self._total}  {speed}  {words}", soft_wrap=True)
