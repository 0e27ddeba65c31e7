"""discopatch watch"""

import json
import sys
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli import options
from discopatch.cli.monitor import DEFAULT_RATE, RATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SOURCE = "Folder in which images arrive, video file, device, or address (rtsp, http, udp, tcp, rtmp) of a stream."
EVERY = "Seconds between two frames of a video or stream. Default: 1."
GROUP = "Of the frames within so many seconds, the first counts for the monitor. Default: 60."
KEEP = "Folder to which the last frames of a video or stream are written for each message."
MQTT = "Publish messages and a state to a broker: mqtt[s]://user@host/prefix. Password: DISCOPATCH_MQTT_PASSWORD."
POLL = "Poll the folder every so many seconds, for network shares. Default: notifications of the system."
DATABASE = "SQLite file, on a local disk. Default: one per detector and source in ~/.local/state/discopatch."
EXEC = "Run a command, without a shell, for each message."
ON = "Messages about alarms of the monitor, or flagged images too."

stream_option = partial(typer.Option, rich_help_panel="Videos and streams")
file_option = partial(typer.Option, rich_help_panel="Files")
store_option = partial(typer.Option, rich_help_panel="Stored predictions")
message_option = partial(typer.Option, rich_help_panel="Messages")


def watch(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    detector: options.Detector,
    once: Annotated[
        bool, typer.Option("--once", help="Score the files that are there, or one frame of a stream, and end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    recursive: Annotated[bool, file_option("--recursive", help="Include subfolders.")] = False,
    poll: Annotated[float | None, file_option(help=POLL, min=0.01)] = None,
    every: Annotated[float | None, stream_option(help=EVERY, min=0.01)] = None,
    group: Annotated[float | None, stream_option(help=GROUP, min=0)] = None,
    keep_frames: Annotated[Path | None, stream_option(help=KEEP)] = None,
    database: Annotated[Path | None, store_option(help=DATABASE)] = None,
    webhook: Annotated[str | None, message_option(metavar="URL", help="Post messages as JSON.")] = None,
    command: Annotated[str | None, message_option("--exec", metavar="CMD", help=EXEC)] = None,
    mqtt: Annotated[str | None, message_option(metavar="URL", help=MQTT)] = None,
    on: Annotated[Literal["alarm", "flagged"], message_option(help=ON)] = "alarm",
    rate: Annotated[float | None, message_option(help=RATE)] = None,
    restart: Annotated[bool, message_option("--restart", help="Begin a new stream, as after an alarm.")] = False,
    device: options.Device = "auto",
    workers: options.ReadBy = None,
    networks: options.Networks = None,
) -> None:
    """Score images of a folder, video or camera as they arrive, and raise an alarm when the stream as a whole changes.

    Prints a line per minute. Ctrl-C or a termination ends it with status 0 once the current image is stored. The next
    start continues, also after a kill.
    """
    import discopatch
    from discopatch.errors import ParameterError
    from discopatch.history import History
    from discopatch.monitor import Monitor
    from discopatch.utils import legible, resolved
    from discopatch.watch import frames, notify
    from discopatch.watch.arrivals import Arrivals, Source
    from discopatch.watch.mqtt import Mqtt
    from discopatch.watch.watcher import Watcher, default_database

    report = line_printer(as_json=as_json)

    def report_message(text: str) -> None:
        report("message", text, {})

    receivers = {"webhook": notify.webhook(webhook)} if webhook is not None else {}
    receivers |= {"exec": notify.command(command)} if command is not None else {}
    located = options.detector_of(detector)
    name = legible(located.name.removesuffix(".safetensors"))
    is_folder = "://" not in source and Path(source).is_dir()
    wrong = (every, group, keep_frames) if is_folder else (poll, recursive or None)
    if any(value is not None for value in wrong):
        unusable = "--every, --group and --keep-frames are" if is_folder else "--poll and --recursive are not"
        raise typer.BadParameter(f"{unusable} for videos and streams")
    arriving: Source
    if is_folder:
        arriving = Arrivals(Path(source), recursive=recursive, poll=poll)
    else:
        times = {"every": every, "group": group}
        arriving = frames.Frames(source, **{key: value for key, value in times.items() if value is not None})
    place = database or default_database(located.path, source if "://" in source else arriving.name)
    if is_folder and resolved(place).is_relative_to(resolved(Path(source))):
        raise ParameterError(f"--database {place} lies in the watched folder: choose another place")
    loaded = discopatch.load(located.path, networks=networks or (), device=device)
    with ExitStack() as stack:
        history = stack.enter_context(History(place))
        history.reserve(name)
        state = None if restart else history.state(name)
        if state is None:
            monitor = Monitor(loaded, DEFAULT_RATE if rate is None else rate)
        else:
            monitor = Monitor.from_bytes(state, loaded, rate, str(place))
        deliveries = [
            notify.Delivery(history, f"{kind} {name}", deliver, report_message) for kind, deliver in receivers.items()
        ]
        broker = None if mqtt is None else Mqtt(mqtt, name, report_message)
        if broker is not None:
            stack.callback(broker.close)
            deliveries.append(
                notify.Delivery(history, f"mqtt {name}", broker.deliver, report_message, ready=broker.ready)
            )
        watcher = Watcher(
            loaded,
            monitor,
            history,
            arriving,
            name=name,
            report=report,
            deliveries=deliveries,
            on=on,
            frames=None if keep_frames is None else frames.KeptFrames(keep_frames),
            put_state=(lambda state: None) if broker is None else broker.put_state,
            workers=options.readers_of(workers),
        )
        text = f"watching {arriving.name} with {name}; predictions are stored in {place}"
        report("start", text, {"source": arriving.name, "detector": name, "database": str(place)})
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
