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

FILES, STORED, MESSAGES = "Files", "Stored predictions", "Messages"


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder in which images arrive; nothing is moved or written there.")],
    detector: Annotated[str, typer.Option(help=options.DETECTOR)],
    once: Annotated[bool, typer.Option("--once", help="Score the files that are there, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    pattern: Annotated[str, typer.Option(help="Only files with such a name, as '*.jpg'.", rich_help_panel=FILES)] = "*",
    recursive: Annotated[bool, typer.Option("--recursive", help="Include subfolders.", rich_help_panel=FILES)] = False,
    poll: Annotated[
        float | None,
        typer.Option(
            help="Poll the folder every so many seconds, for network shares. Default: notifications of the system.",
            rich_help_panel=FILES,
        ),
    ] = None,
    settle: Annotated[
        float,
        typer.Option(help="Seconds for which size and time of a complete file are stable.", rich_help_panel=FILES),
    ] = 1.0,
    database: Annotated[
        Path | None,
        typer.Option(
            help="SQLite file, on a local disk. Default: one per detector and folder in ~/.local/state/discopatch.",
            rich_help_panel=STORED,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the detector in the database. Default: its file name.", rich_help_panel=STORED),
    ] = None,
    keep: Annotated[
        int, typer.Option(help="Number of predictions that the database keeps.", min=1, rich_help_panel=STORED)
    ] = 100_000,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Folder to which predictions are also written as Parquet.", rich_help_panel=STORED),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Post messages as JSON.", rich_help_panel=MESSAGES)
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="CMD", help="Run a command, without a shell, for each message.", rich_help_panel=MESSAGES
        ),
    ] = None,
    on: Annotated[
        Literal["alarm", "flagged"],
        typer.Option(help="Messages about alarms of the monitor, or flagged images too.", rich_help_panel=MESSAGES),
    ] = "alarm",
    rate: Annotated[
        float | None,
        typer.Option(
            help="Largest probability of a false alarm of the monitor, ever. Default: 0.01, or that of the stream.",
            rich_help_panel=MESSAGES,
        ),
    ] = None,
    restart_monitor: Annotated[
        bool,
        typer.Option("--restart-monitor", help="Begin a new stream, as after an alarm.", rich_help_panel=MESSAGES),
    ] = False,
    device: options.Device = "auto",
    workers: options.ReadBy = None,
    networks: Annotated[list[str] | None, typer.Option(help=options.PLACES)] = None,
) -> None:
    """Score images as they arrive in a folder, each once, and raise an alarm when the stream as a whole changes.

    Prints a line per minute. Ctrl-C or a termination ends it with status 0 once the current image is stored. The next
    start continues, also after a kill.
    """
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
    receivers: list[Receiver] = [Webhook(webhook)] if webhook is not None else []
    receivers += [Command(command)] if command is not None else []
    located = options.detector_of(detector)
    place = database or default_database(located.path, folder)
    check_places(folder, place, parquet)
    title = name or located.name
    loaded = discopatch.load(located.path, networks=networks or (), device=device)
    report = line_printer(as_json=as_json)
    with History(place, keep=keep) as history:
        history.reserve(title)
        monitor = resume_monitor(history, title, loaded, rate=rate, restart=restart_monitor)
        deliveries = [
            Delivery(history, each, title, report=lambda text: report("message", text, {})) for each in receivers
        ]
        watcher = Watcher(
            loaded,
            monitor,
            history,
            folder,
            name=title,
            options=how,
            report=report,
            deliveries=deliveries,
            parquet=parquet,
            workers=options.readers_of(workers),
        )
        text = f"watching {watcher.folder} with {title}; predictions are stored in {place}"
        report("start", text, {"folder": str(watcher.folder), "detector": title, "database": str(place)})
        with on_signals(lambda number: watcher.stopped.set()):
            watcher.run(once=once)


def line_printer(*, as_json: bool) -> Callable[[str, str, Mapping[str, Any]], None]:
    """A function that prints one line per event, until standard output is closed."""

    def report(event: str, text: str, values: Mapping[str, Any]) -> None:
        now = datetime.now().astimezone()
        if as_json:
            line = json.dumps({"event": event, "time": now.isoformat(timespec="seconds"), **values, "text": text})
        else:
            line = f"{now:%Y-%m-%d %H:%M:%S}  {escaped(text)}"
        try:
            print(line, flush=True)
        except OSError:
            sys.stdout = None

    return report
