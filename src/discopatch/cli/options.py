"""What several commands share."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.images import Workers

PROCESSES = "Decode in processes instead of threads: faster from five cores on."


def source_of(images: list[str]) -> str | list[str]:
    """One path stays a path, so that a wrong one is an error at once; of several, a wrong one is refused among them."""
    return images[0] if len(images) == 1 else images


def workers_of(count: int | None, *, processes: bool) -> "Workers":
    """Who decodes: so many threads or processes, or as many as suit the machine."""
    from discopatch.images.workers import DEFAULT_WORKERS, Processes

    if processes:
        return Processes() if count is None else Processes(count)
    return DEFAULT_WORKERS if count is None else count


@contextmanager
def counting(console: "Console", doing: str) -> Iterator[Callable[[], None]]:
    """A bar that counts images on a terminal and leaves no trace; it never lands where results go into a file."""
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(doing), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar as progress:
        task = progress.add_task(doing, total=None)
        yield lambda: progress.advance(task)
