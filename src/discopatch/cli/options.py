"""Options, the progress bar and the reading of arguments that several commands share."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from discopatch.hub import Located
    from discopatch.images import Workers

IMAGES = (
    "Image files, folders, patterns such as 'photos/**/*.jpg', tar shards, tables (Parquet, Lance, saved datasets), "
    "lists of names (.txt, Parquet), here or in a store (s3://, gs://, az://, hdfs://)."
)
PROCESSES = "Decode images in processes instead of threads, which is faster with five cores or more."
PATCHES = "Patches of each image: a number, or dense for the whole image in one pass."
SAMPLING = "Where a number of patches is cut: random (the same places in all images) or grid."
WEIGHTS = "Name of pretrained weights, or a .safetensors file that `discopatch train` wrote."
DEFAULT_WEIGHTS_TEXT = "Default: natural-v2."  # said here, so that the help does not wait for torch
HEAD = "Scoring head: components, combined, statistics, logit or sigmoid. Default: components."
SEED = "Seed of all random choices."
NETWORKS = (
    "Or another network: resnet50 or efficientnet-lite0 once fetched, KIND=FOLDER of a network of transformers, such "
    "as dinov2=FOLDER, or onnx=FILE:OUTPUT,OUTPUT. Several times for several networks at once."
)
PLACES = "Where a network from outside lies now, such as dinov2=FOLDER, if it is not where it was."
RANK = "Number of this process, from 0, among those that share the folder."
WORLD = "How many processes share the folder. Default of both: what torchrun or SLURM say, or this one alone."
DETECTOR = "Detector that `discopatch fit` or `discopatch export` wrote, or hf://owner/name of the Hugging Face hub."

DECODER = "What reads JPEG files: pillow, scaled (faster, while it scales them down) or nvimgcodec (on a GPU)."

MAX_PIXELS = "Refuse images with more pixels unread; such as 200M. Default: 89,478,485."
MAX_BYTES = "Refuse image files of more bytes unread; such as 600M or 2G. Default: 268,435,456 (256Mi)."

Device = Annotated[str, typer.Option(help="Device to compute on: auto, cpu, cuda, cuda:1, ...")]
BatchSize = Annotated[int, typer.Option(help="Number of images that are scored together.", min=1)]
WorkerCount = Annotated[int | None, typer.Option(help="Number of threads or processes that decode images.", min=1)]
UseProcesses = Annotated[bool, typer.Option("--processes", help=PROCESSES)]
MaxPixels = Annotated[str | None, typer.Option(metavar="NUMBER", help=MAX_PIXELS)]
MaxBytes = Annotated[str | None, typer.Option(metavar="NUMBER", help=MAX_BYTES)]
Rank = Annotated[int | None, typer.Option(help=RANK, min=0)]
World = Annotated[int | None, typer.Option(help=WORLD, min=1)]

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def source_of(images: list[str]) -> str | list[str]:
    """One path stays a path, so that a wrong one is an error at once; of several, a wrong one is refused among them."""
    return images[0] if len(images) == 1 else images


def detector_of(place: str) -> "Located":
    """Where the detector lies; what was taken from the hub is said, with its commit, where errors go."""
    from discopatch.hub import locate
    from discopatch.utils import escaped

    found = locate(place)
    if found.address is not None:
        print(escaped(f"detector: {found.address}"), file=sys.stderr)
    return found


def workers_of(count: int | None, *, processes: bool) -> "Workers":
    """So many threads or processes that decode, or as many as suit the machine."""
    from discopatch.images import DEFAULT_WORKERS, Processes

    if processes:
        return Processes() if count is None else Processes(count)
    return DEFAULT_WORKERS if count is None else count


class GivenLimits(TypedDict, total=False):
    """Those of the limits that were given."""

    max_pixels: int
    max_bytes: int


def limits_of(max_pixels: str | None, max_bytes: str | None) -> GivenLimits:
    """The limits that were given, as arguments for `Detector`, `discopatch.load` and `Limits`."""
    found: GivenLimits = {}
    if max_pixels is not None:
        found["max_pixels"] = size_of(max_pixels, "--max-pixels")
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


def patches_of(text: str) -> int | Literal["dense"]:
    if text == "dense":
        return "dense"
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text!r} is neither dense nor a number above 0", param_hint="--patches")


class ProgressBar:
    """A bar on a terminal: called with (done, total) it moves, and `describe` names what is being done."""

    def __init__(self, bar: "Progress", activity: str, total: int | None = None) -> None:
        self._bar = bar
        self._add_task(activity, total)

    def _add_task(self, activity: str, total: int | None) -> None:
        count = "" if total is None else f"0/{total:,}"
        self._activity, self._total = activity, total
        self._task = self._bar.add_task(activity, total=total, count=count)

    def __call__(self, done: int, total: int | None = None) -> None:
        """Without a total the one that is known stays."""
        self._total = self._total if total is None else total
        count = f"{done:,}" if self._total is None else f"{done:,}/{self._total:,}"
        self._bar.update(self._task, completed=done, total=self._total, count=count)

    def describe(self, activity: str) -> None:
        """With another activity count, total and time begin again."""
        if activity != self._activity:
            self._bar.remove_task(self._task)
            self._add_task(activity, None)

    def follow_fit(self, done: int, total: int | None) -> None:
        """Progress of `Detector.fit`, in which the longest part may follow the last image."""
        self.describe("extracting features of normal images")
        self(done, total)
        if done == total:
            self.describe("fitting the head")


@contextmanager
def progress_bar(console: "Console", activity: str, *, total: int | None = None) -> Iterator[ProgressBar]:
    """A bar with count, total where known, elapsed and remaining time; it is gone at the end.

    Where the console is no terminal nothing is shown.
    """
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
