"""discopatch watch"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from discopatch.cli import options
from discopatch.cli.signals import on_signals
from discopatch.utils import escaped

FILES = "Which files"
KEPT = "Where predictions are kept"
TOLD = "Who is told"


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder in which images arrive; nothing is moved or written there.")],
    detector: Annotated[str, typer.Option(help=options.DETECTOR)],
    once: Annotated[bool, typer.Option("--once", help="Score what is there and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    pattern: Annotated[str, typer.Option(help="Only files with such a name, as '*.jpg'.", rich_help_panel=FILES)] = "*",
    recursive: Annotated[
        bool, typer.Option("--recursive", help="In folders inside it, too.", rich_help_panel=FILES)
    ] = False,
    poll: Annotated[float, typer.Option(help="Seconds between two looks at the folder.", rich_help_panel=FILES)] = 0.5,
    settle: Annotated[
        float,
        typer.Option(
            help="Seconds for which size and time of a file stand still before it is complete.", rich_help_panel=FILES
        ),
    ] = 1.0,
    database: Annotated[
        Path | None,
        typer.Option(
            help="SQLite file, on a local disk. Default: one for this detector and folder in the user's state folder, "
            "~/.local/state/discopatch.",
            rich_help_panel=KEPT,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the detector in the database. Default: that of its file.", rich_help_panel=KEPT),
    ] = None,
    keep: Annotated[
        int, typer.Option(help="Number of predictions that the database keeps.", min=1, rich_help_panel=KEPT)
    ] = 100_000,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Folder to which predictions are also written as Parquet.", rich_help_panel=KEPT),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Post a JSON message there.", rich_help_panel=TOLD)
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="CMD", help="Run a command, without a shell, with the message.", rich_help_panel=TOLD
        ),
    ] = None,
    on: Annotated[
        Literal["alarm", "flagged"],
        typer.Option(help="Messages about alarms of the monitor, or about flagged images too.", rich_help_panel=TOLD),
    ] = "alarm",
    rate: Annotated[
        float | None,
        typer.Option(
            help="Largest chance that the monitor ever raises a false alarm. Default: 0.01, or that with which its "
            "stream began.",
            rich_help_panel=TOLD,
        ),
    ] = None,
    restart_monitor: Annotated[
        bool,
        typer.Option(
            "--restart-monitor",
            help="Begin a new stream, such as after an alarm that was seen to.",
            rich_help_panel=TOLD,
        ),
    ] = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 8,
    workers: options.WorkerCount = None,
    processes: options.UseProcesses = False,
    max_pixels: options.MaxPixels = None,
    max_bytes: options.MaxBytes = None,
    weights: Annotated[list[str] | None, typer.Option(help=options.PLACES)] = None,
) -> None:
    """Score images as they arrive in a folder, each once, and tell when the stream as a whole has changed.

    Prints a line a minute. Ctrl-C or a termination ends it with status 0 once the image in hand is kept; whatever
    ends it otherwise, the next start goes on where it was.
    """
    limits = options.limits_of(max_pixels, max_bytes)

    import discopatch
    from discopatch.history import History
    from discopatch.watch import (
        Command,
        Delivery,
        Receiver,
        Watcher,
        WatchOptions,
        Webhook,
        check_places,
        default_database,
        resume_monitor,
    )

    how = WatchOptions(pattern=pattern, recursive=recursive, poll=poll, settle=settle, on=on)
    receivers: list[Receiver] = []
    if webhook is not None:
        receivers.append(Webhook(webhook))
    if command is not None:
        receivers.append(Command(command))
    located = options.detector_of(detector)
    place = database or default_database(located.path, folder)
    check_places(folder, place, parquet)
    title = name or located.name
    predictor = discopatch.load(located.path, weights=weights or (), device=device, batch_size=batch_size, **limits)
    say = line_printer(as_json=as_json)
    with History(place, keep=keep) as history:
        history.reserve(title)
        monitor = resume_monitor(history, title, predictor, false_alarm_rate=rate, restart=restart_monitor)
        deliveries = [Delivery(history, each, title, told=lambda text: say("message", text, {})) for each in receivers]
        watcher = Watcher(
            predictor,
            monitor,
            history,
            folder,
            name=title,
            options=how,
            say=say,
            deliveries=deliveries,
            parquet=parquet,
            workers=options.workers_of(workers, processes=processes),
        )
        text = f"watching {watcher.folder} with {title}; predictions are kept in {place}"
        say("start", text, {"folder": str(watcher.folder), "detector": title, "database": str(place)})
        with on_signals(lambda number: watcher.stopped.set()):
            watcher.run(once=once)


def line_printer(*, as_json: bool) -> Callable[[str, str, Mapping[str, Any]], None]:
    """Prints a line an event; once nobody reads them any more, the work goes on without."""

    def say(event: str, text: str, values: Mapping[str, Any]) -> None:
        now = datetime.now().astimezone()
        if as_json:
            line = json.dumps({"event": event, "time": now.isoformat(timespec="seconds"), **values, "text": text})
        else:
            line = f"{now:%Y-%m-%d %H:%M:%S}  {escaped(text)}"
        try:
            print(line, flush=True)
        except OSError:
            sys.stdout = None

    return say
