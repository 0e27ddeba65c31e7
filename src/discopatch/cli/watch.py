"""discopatch watch"""

import json
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli import options
from discopatch.cli.monitor import DEFAULT_RATE, RATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = "Folder in which images arrive; nothing is moved or written there."
POLL = "Poll the folder every so many seconds, for network shares. Default: notifications of the system."
DATABASE = "SQLite file, on a local disk. Default: one per detector and folder in ~/.local/state/discopatch."
EXEC = "Run a command, without a shell, for each message."
ON = "Messages about alarms of the monitor, or flagged images too."

file_option = partial(typer.Option, rich_help_panel="Files")
store_option = partial(typer.Option, rich_help_panel="Stored predictions")
message_option = partial(typer.Option, rich_help_panel="Messages")


def watch(
    folder: Annotated[Path, typer.Argument(help=FOLDER)],
    detector: options.Detector,
    once: Annotated[bool, typer.Option("--once", help="Score the files that are there, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    recursive: Annotated[bool, file_option("--recursive", help="Include subfolders.")] = False,
    poll: Annotated[float | None, file_option(help=POLL, min=0.01)] = None,
    database: Annotated[Path | None, store_option(help=DATABASE)] = None,
    parquet: Annotated[
        Path | None, store_option(help="Folder to which predictions are also written as Parquet.")
    ] = None,
    webhook: Annotated[str | None, message_option(metavar="URL", help="Post messages as JSON.")] = None,
    command: Annotated[str | None, message_option("--exec", metavar="CMD", help=EXEC)] = None,
    on: Annotated[Literal["alarm", "flagged"], message_option(help=ON)] = "alarm",
    rate: Annotated[float | None, message_option(help=RATE)] = None,
    restart: Annotated[bool, message_option("--restart", help="Begin a new stream, as after an alarm.")] = False,
    device: options.Device = "auto",
    workers: options.ReadBy = None,
    networks: options.Networks = None,
) -> None:
    """Score images as they arrive in a folder, each once, and raise an alarm when the stream as a whole changes.

    Prints a line per minute. Ctrl-C or a termination ends it with status 0 once the current image is stored. The next
    start continues, also after a kill.
    """
    import discopatch
    from discopatch.history import History
    from discopatch.monitor import Monitor
    from discopatch.utils import legible
    from discopatch.watch import notify
    from discopatch.watch.watcher import Watcher, check_places, default_database

    receivers = {"webhook": notify.webhook(webhook)} if webhook is not None else {}
    receivers |= {"exec": notify.command(command)} if command is not None else {}
    located = options.detector_of(detector)
    name, place = legible(located.name), database or default_database(located.path, folder)
    check_places(folder, place, parquet)
    loaded = discopatch.load(located.path, networks=networks or (), device=device)
    report = line_printer(as_json=as_json)
    with History(place) as history:
        history.reserve(name)
        state = None if restart else history.state(name)
        if state is None:
            monitor = Monitor(loaded, DEFAULT_RATE if rate is None else rate)
        else:
            monitor = Monitor.from_bytes(state, loaded, rate, str(place))
        watcher = Watcher(
            loaded,
            monitor,
            history,
            folder,
            name=name,
            report=report,
            deliveries=[
                notify.Delivery(history, f"{kind} {name}", deliver, lambda text: report("message", text, {}))
                for kind, deliver in receivers.items()
            ],
            on=on,
            parquet=parquet,
            recursive=recursive,
            poll=poll,
            workers=options.readers_of(workers),
        )
        text = f"watching {watcher.folder} with {name}; predictions are stored in {place}"
        report("start", text, {"folder": str(watcher.folder), "detector": name, "database": str(place)})
        with options.on_signals(lambda number: watcher.stopped.set()):
            watcher.run(once=once)


def line_printer(*, as_json: bool) -> "Callable[[str, str, Mapping[str, Any]], None]":
    """A function that prints one line per event, until standard output is closed."""
    from discopatch.utils import escaped

    def report(event: str, text: str, values: "Mapping[str, Any]") -> None:
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
