"""Options, the progress bar and the reading of arguments that several commands share."""

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from discopatch.hub import Located
    from discopatch.images import Workers

IMAGES = (
    "Image files, folders, patterns such as 'photos/**/*.jpg', tar shards, Parquet tables, lists of names (.txt), here "
    "or in a store (s3://, gs://, abfs://, hdfs://)."
)
PATCHES = "Patches of each image: a number, or dense for the whole image in one pass."
WEIGHTS = "Name of pretrained weights, or a .safetensors file that `discopatch train` wrote."
DEFAULT_WEIGHTS_TEXT = "Default: natural-v2."  # written here, so that --help does not import torch
HEAD = "Scoring head: components, combined, statistics, logit or sigmoid. Default: components."
SEED = "Seed of all random choices."
NETWORKS = (
    "Or another network: KIND=FOLDER of a network of transformers, such as dinov2=FOLDER, or "
    "onnx=FILE:OUTPUT,OUTPUT. Several times for several networks at once."
)
PLACES = "Place of a network from outside, such as dinov2=FOLDER, if it has moved since the fit."
DETECTOR = "Detector that `discopatch fit` or `discopatch export` wrote, or hf://owner/name of the Hugging Face hub."

DECODER = "Decoder of JPEG files: pillow, scaled (faster for large files) or nvimgcodec (on a GPU)."

MAX_PIXELS = "Refuse images with more pixels unread; such as 200M. Default: 89,478,485."

Device = Annotated[str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:1, ...")]
ReadBy = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|processes[:N]",
        help="Threads that decode images, or processes, which are faster with five cores or more.",
    ),
]
BatchSize = Annotated[int, typer.Option(help="Number of images that are scored together.", min=1)]
MaxPixels = Annotated[str | None, typer.Option(metavar="NUMBER", help=MAX_PIXELS)]

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


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


class GivenLimits(TypedDict, total=False):
    """The limits that were given."""

    max_pixels: int
    max_bytes: int


def limits_of(max_pixels: str | None, max_bytes: str | None = None) -> GivenLimits:
    """The limits that were given, as arguments for `Detector`, `discopatch.load` and `Limits`.

    Encoded images may have four bytes a pixel, or the default limit if that is more.
    """
    found: GivenLimits = {}
    if max_pixels is not None:
        found["max_pixels"] = size_of(max_pixels, "--max-pixels")
        found["max_bytes"] = max(2**28, 4 * found["max_pixels"])
    if max_bytes is not None:
        found["max_bytes"] = size_of(max_bytes, "--max-bytes")
    return found


def size_of(text: str, option: str) -> int:
    """A number such as 1500, 200M (millions), 2G or 256Mi (times 2**20)."""
    match = SIZE.fullmatch(text.strip())
    number = 0
    if match is not None:
        digits, unit, binary = match.groups()
        number = int(Fraction(digits) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))
    if number < 1:
        raise typer.BadParameter(f"{text!r} is no number such as 1500, 200M or 2G", param_hint=option)
    return number


def readers_of(text: str | None) -> "Workers":
    """The threads or processes that --workers names."""
    from discopatch.images import DEFAULT_WORKERS, Processes

    kind, _, count = (text or "").rpartition(":") if text != "processes" else ("processes", "", "")
    if text is None:
        return DEFAULT_WORKERS
    if kind not in ("", "processes") or (count and not (count.isdecimal() and int(count) > 0)):
        raise typer.BadParameter(f"{text!r}: give a number, processes, or processes:8", param_hint="--workers")
    if kind == "processes":
        return Processes(int(count)) if count else Processes()
    return int(count)


def patches_of(text: str) -> int | Literal["dense"]:
    if text == "dense":
        return "dense"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text!r} is neither dense nor a number above 0", param_hint="--patches")


class ProgressBar:
    """A progress bar on a terminal: called with (done, total); `describe` names the activity."""

    def __init__(self, bar: "Progress", activity: str, total: int | None = None) -> None:
        self._bar = bar
        self._add_task(activity, total)

    def _add_task(self, activity: str, total: int | None) -> None:
        count = "" if total is None else f"0/{total:,}"
        self._activity, self._total = activity, total
        self._task = self._bar.add_task(activity, total=total, count=count)

    def __call__(self, done: int, total: int | None = None) -> None:
        """Moves the bar; without a total the last one stays."""
        self._total = self._total if total is None else total
        count = f"{done:,}" if self._total is None else f"{done:,}/{self._total:,}"
        self._bar.update(self._task, completed=done, total=self._total, count=count)

    def describe(self, activity: str) -> None:
        """Begins another activity, with a new count and time."""
        if activity != self._activity:
            self._bar.remove_task(self._task)
            self._add_task(activity, None)

    def follow_fit(self, done: int, total: int | None) -> None:
        """Shows the progress of `Detector.fit`, whose longest part may follow the last image."""
        self.describe("extracting features of normal images")
        self(done, total)
        if done == total:
            self.describe("fitting the head")


@contextmanager
def progress_bar(console: "Console", activity: str, *, total: int | None = None) -> Iterator[ProgressBar]:
    """A bar with count, total where known, elapsed and remaining time; shown only on a terminal."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}", style="progress.download"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
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
