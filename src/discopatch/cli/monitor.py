"""discopatch monitor"""

import json
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discopatch.cli import options
from discopatch.cli.rows import read_predictions
from discopatch.cli.score import FAILED, count_refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from discopatch.results import Prediction

DEFAULT_RATE = 0.01
STATE = (
    "File with the state of the monitor. If it exists, the images continue its stream; it is replaced, atomically, "
    "when all images are read, and locked until then."
)
RATE = (
    "Largest probability that a stream of normal images of any length raises an alarm. "
    f"Default: {DEFAULT_RATE}, or that of the stream that is continued."
)
PREDICTIONS = (
    "Instead of images: the output of `discopatch score --json` or `--csv` of the same detector, or one JSON object "
    "per line; - for standard input."
)


def monitor(
    images: Annotated[list[str] | None, typer.Argument(help=f"{options.IMAGES} In the order of the stream.")] = None,
    detector: options.Detector = ...,  # type: ignore[assignment]
    state: Annotated[Path | None, typer.Option(help=STATE)] = None,
    rate: Annotated[float | None, typer.Option(help=RATE)] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin a new stream in --state.")] = False,
    predictions: Annotated[Path | None, typer.Option(help=PREDICTIONS)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: options.Device = "auto",
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    networks: options.Networks = None,
) -> None:
    """Test whether a stream of images as a whole has changed, since when and how, even if no image is flagged.

    Exit status: 0 no change; 1 an error; 2 a wrong option; 3 an alarm, now or earlier in the stream.
    """
    if (images is None) == (predictions is None):
        raise typer.BadParameter("give either images or --predictions")

    from rich.console import Console

    from discopatch import Monitor
    from discopatch.errors import NoImagesError
    from discopatch.images import RefusalReport, list_source
    from discopatch.utils import escaped

    console, refusals = Console(stderr=True), RefusalReport()
    with nullcontext() if state is None else reserved(state):
        loaded = options.load(detector, networks, device=device, **options.limits_of(max_pixels))
        if state is None or restart or not state.exists():
            watching = Monitor(loaded, DEFAULT_RATE if rate is None else rate)
        else:
            watching = Monitor.load(state, loaded, rate)
        stream: Iterator[Prediction]
        total, before = None, watching.status
        if predictions is not None:
            stream = read_predictions(predictions)
        else:
            source = list_source(options.source_of(images or []))
            predicted = loaded.predict_images(source, workers=options.readers_of(workers))
            stream, total = (each.prediction for each in count_refusals(predicted, refusals)), source.count
        with options.progress_bar(console, "reading the stream", total=total) as bar:
            for done, prediction in enumerate(stream, start=1):
                alarmed = watching.status.alarm
                if watching.update(prediction).alarm and not alarmed:
                    options.notice(console, f"alarm: image {watching.status.alarm_at:,}, {prediction.name}", "red")
                bar(done)
        status = watching.status
        if status.images == before.images:
            if predictions is not None:
                raise NoImagesError(f"{predictions} has no image with a score: give the output of `discopatch score`")
            raise refusals.nothing_left()
        if state is not None:
            watching.save(state)
    if refusals:
        options.notice(console, refusals.summary(), "yellow")
    print(json.dumps(status.as_dict()) if as_json else escaped(status.text))
    for each in status.examples if status.alarm and not as_json else ():
        print(f"{escaped(each.name)}\timage {each.image:,}\t{each.score:.6f}\tp={each.p_value:.4f}")
    if status.alarm:
        raise typer.Exit(FAILED)


@contextmanager
def reserved(state: Path) -> "Iterator[None]":
    """Keeps other processes from continuing the stream; StoreError while another one does."""
    from discopatch.errors import StoreError
    from discopatch.utils import check_output, try_lock

    check_output(state)
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_name(f"{state.name}.lock").open("a") as file:
        if try_lock(file) is False:
            raise StoreError(f"another process continues the stream in {state}: start again when it has ended")
        yield
