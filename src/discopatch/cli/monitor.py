"""discopatch monitor"""

import json
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discopatch.cli import options
from discopatch.cli.score import FAILED, count_refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_RATE = 0.01
STATE = (
    "File with the state of the monitor. If it exists, the images continue its stream; it is replaced, atomically, "
    "when all images are read, and locked until then."
)
RATE = (
    "Largest probability that a stream of normal images of any length raises an alarm. "
    f"Default: {DEFAULT_RATE}, or that of the stream that is continued."
)


def monitor(
    images: Annotated[list[str], typer.Argument(help=f"{options.IMAGES} In the order of the stream.")],
    detector: options.Detector,
    state: Annotated[Path | None, typer.Option(help=STATE)] = None,
    rate: Annotated[float | None, typer.Option(help=RATE)] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin a new stream in --state.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: options.Device = "auto",
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    networks: options.Networks = None,
) -> None:
    """Test whether a stream of images as a whole has changed, since when and how, even if no image is flagged.

    Exit status: 0 no change; 1 an error; 2 a wrong option; 3 an alarm, now or earlier in the stream.
    """
    from rich.console import Console

    from discopatch import Monitor
    from discopatch.images import RefusalReport, list_source
    from discopatch.utils import escaped

    console, refusals = Console(stderr=True), RefusalReport()
    with nullcontext() if state is None else reserved(state):
        loaded = options.load(detector, networks, device=device, **options.limits_of(max_pixels))
        if state is None or restart or not state.exists():
            watching = Monitor(loaded, DEFAULT_RATE if rate is None else rate)
        else:
            watching = Monitor.load(state, loaded, rate)
        source = list_source(options.source_of(images))
        predicted = loaded.predict_images(source, workers=options.readers_of(workers))
        with options.progress_bar(console, "reading the stream", total=source.count) as bar:
            for done, each in enumerate(count_refusals(predicted, refusals), start=1):
                alarmed = watching.status.alarm
                if watching.update(each.prediction).alarm and not alarmed:
                    options.notice(console, f"alarm: image {watching.status.alarm_at:,}, {each.prediction.name}", "red")
                bar(done)
        status = watching.status
        if not refusals.accepted:
            raise refusals.nothing_left()
        if state is not None:
            watching.save(state)
    if refusals:
        options.notice(console, refusals.summary(), "yellow")
    print(json.dumps(status.as_dict()) if as_json else escaped(status.text))
    for example in status.examples if status.alarm and not as_json else ():
        print(f"{escaped(example.name)}\timage {example.image:,}\t{example.score:.6f}\tp={example.p_value:.4f}")
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
