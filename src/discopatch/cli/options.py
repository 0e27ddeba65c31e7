"""Options, the progress bar and the reading of arguments that several commands share."""

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from discopatch.hub import Located
    from discopatch.images import Workers
    from discopatch.results import FittedDetector

IMAGES = (
    "Image files, folders, patterns such as 'photos/**/*.jpg', tar shards, Parquet tables, lists of names (.txt), here "
    "or in a store (s3://, gs://, abfs://, hdfs://)."
)
WEIGHTS = "Name of pretrained weights, or a .safetensors file that `discopatch train` wrote."
DEFAULT_WEIGHTS_TEXT = "Default: natural-v3."  # written here, so that --help does not import torch
HEAD = "Scoring head: components, combined, statistics, logit or sigmoid. Default: components."
SEED = "Seed of all random choices."
DECODER = "Decoder of JPEG files: pillow, scaled (faster for large files) or nvimgcodec (on a GPU)."
MAX_PIXELS = "Refuse images with more pixels unread; such as 200M. Default: 89,478,485."
PLACES = "Place of a network from outside, such as dinov2=FOLDER, if it has moved since the fit."
DETECTOR = "Detector that `discopatch fit` or `discopatch export` wrote, or hf://owner/name of the Hugging Face hub."
TOGETHER = "Number of images that are scored together."
WORKERS = "Threads that decode images, or processes, which are faster with five cores or more."
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def size_of(text: str) -> int:
    """A number such as 1500, 200M (millions), 2G or 256Mi (times 2**20)."""
    match = SIZE.fullmatch(text.strip())
    number = 0
    if match is not None:
        digits, unit, binary = match.groups()
        number = int(Fraction(digits) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))
    if number < 1:
        raise typer.BadParameter(f"{text!r} is no number such as 1500, 200M or 2G")
    return number


size_option = partial(typer.Option, parser=size_of, metavar="NUMBER")

Detector = Annotated[str, typer.Option(help=DETECTOR)]
Device = Annotated[str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:1, ...")]
Networks = Annotated[list[str] | None, typer.Option(help=PLACES)]
ReadBy = Annotated[str | None, typer.Option("--workers", metavar="N|processes[:N]", help=WORKERS)]
BatchSize = Annotated[int | None, typer.Option(help=f"{TOGETHER} Default: 8, or on a GPU up to 128.", min=1)]
MaxPixels = Annotated[int | None, size_option(help=MAX_PIXELS)]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]


def source_of(images: list[str]) -> str | list[str]:
    """One path as it is, so that a wrong one is an error; of several paths, a wrong one is a refused image."""
    return images[0] if len(images) == 1 else images


def detector_of(place: str) -> "Located":
    """The place of the detector; one from the hub is printed with its commit to stderr."""
    from discopatch.hub import locate
    from discopatch.utils import escaped

    found = locate(place)
    if found.address is not None:
        print(escaped(f"detector: {found.address}"), file=sys.stderr)
    return found


def load(detector: str, networks: list[str] | None, **arguments: Any) -> "FittedDetector":
    """The detector at a path or address; `arguments` are those of `discopatch.load`."""
    import discopatch

    return discopatch.load(detector_of(detector).path, networks=networks or (), **arguments)


def limits_of(max_pixels: int | None) -> dict[str, Any]:
    """Arguments of `Detector` and `discopatch.load`: encoded images may have four bytes a pixel, or the default."""
    return {} if max_pixels is None else {"max_pixels": max_pixels, "max_bytes": max(2**28, 4 * max_pixels)}


def readers_of(text: str | None) -> "Workers":
    from discopatch.images import DEFAULT_WORKERS, Processes

    if text is None:
        return DEFAULT_WORKERS
    match = re.fullmatch(r"([1-9]\d*)|processes(?::([1-9]\d*))?", text)
    if match is None:
        raise typer.BadParameter(f"{text!r}: give a number, processes, or processes:8", param_hint="--workers")
    threads, processes = match.groups()
    return int(threads) if threads else Processes(int(processes)) if processes else Processes()


def patches_of(text: str) -> int | Literal["dense"]:
    if text == "dense":
        return "dense"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text!r} is neither dense nor a number above 0")


def check_new(out: Path, *, force: bool) -> None:
    """Raises BadParameter if the file or folder exists, unless it may be replaced."""
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists: choose another --out, or add --force")


def notice(console: "Console", text: str, style: str = "") -> None:
    """Prints a line on the console; control characters, as in names, are escaped."""
    from rich.text import Text

    from discopatch.utils import escaped

    console.print(Text(escaped(text), style=style), soft_wrap=True)


class ProgressBar:
    """A progress bar on a terminal: called with (done, total); `describe` names the activity."""

    def __init__(self, bar: "Progress", activity: str, total: int | None = None) -> None:
        self._bar, self._activity = bar, ""
        self.describe(activity, total)

    def __call__(self, done: int, total: int | None = None) -> None:
        """Moves the bar; without a total the last one stays."""
        self._bar.update(self._task, completed=done, total=total)

    def describe(self, activity: str, total: int | None = None) -> None:
        """Begins another activity, with a new count and time."""
        if activity != self._activity:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._activity, self._task = activity, self._bar.add_task(activity, total=total)

    def follow_fit(self, done: int, total: int | None) -> None:
        """Shows the progress of `Detector.fit`, whose longest part may follow the last image."""
        self.describe("extracting features of normal images")
        self(done, total)
        if done == total:
            self.describe("fitting the head")


@contextmanager
def progress_bar(console: "Console", activity: str, *, total: int | None = None) -> Iterator[ProgressBar]:
    """A bar with count, total where known, elapsed and remaining time; shown only on a terminal."""
    from rich import progress

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # or results that go into a file would go to the terminal
    ) as bar:
        yield ProgressBar(bar, activity, total)


@contextmanager
def on_signals(act: Callable[[int], object]) -> Iterator[None]:
    """Calls `act` with the number of the first signal to stop; a second signal ends the process."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        act(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
                before[number] = handler
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
