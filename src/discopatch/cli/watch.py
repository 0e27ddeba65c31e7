"""discopatch watch"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from discopatch.cli import options
from discopatch.cli.options import on_signals
from discopatch.utils import escaped

FILES, STORED, MESSAGES = "Files", "Stored predictions", "Messages"


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder in which images arrive; nothing is moved or written there.")],
    detector: Annotated[str, typer.Option(help=options.DETECTOR)],
    once: Annotated[bool, typer.Option("--once", help="Score the files that are there, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", help="Include subfolders.", rich_help_panel=FILES)] = False,
    poll: Annotated[
        float | None,
        typer.Option(
            help="Poll the folder every so many seconds, for network shares. Default: notifications of the system.",
            min=0.01,
            rich_help_panel=FILES,
        ),
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(
            help="SQLite file, on a local disk. Default: one per detector and folder in ~/.local/state/discopatch.",
            rich_help_panel=STORED,
        ),
    ] = None,
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
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Begin a new stream, as after an alarm.", rich_help_panel=MESSAGES),
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
        Watcher,
        Webhook,
        check_places,
        default_database,
        resume_monitor,
    )

    receivers: list[Webhook | Command] = [Webhook(webhook)] if webhook is not None else []
    receivers += [Command(command)] if command is not None else []
    located = options.detector_of(detector)
    place = database or default_database(located.path, folder)
    check_places(folder, place, parquet)
    loaded = discopatch.load(located.path, networks=networks or (), device=device)
    report = line_printer(as_json=as_json)
    with History(place) as history:
        history.reserve(located.name)
        monitor = resume_monitor(history, located.name, loaded, rate=rate, restart=restart)
        deliveries = [
            Delivery(history, each, located.name, report=lambda text: report("message", text, {})) for each in receivers
        ]
        watcher = Watcher(
            loaded,
            monitor,
            history,
            folder,
            name=located.name,
            report=report,
            deliveries=deliveries,
            on=on,
            parquet=parquet,
            recursive=recursive,
            poll=poll,
            workers=options.readers_of(workers),
        )
        text = f"watching {watcher.folder} with {located.name}; predictions are stored in {place}"
        report("start", text, {"folder": str(watcher.folder), "detector": located.name, "database": str(place)})
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
