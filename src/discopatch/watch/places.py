"""Where a watcher keeps what it knows: its history, and the monitor's state in it."""

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from discopatch.errors import ParameterError, WatchError
from discopatch.history import History

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.export.runtime import Runtime
    from discopatch.monitor import Monitor

NEW_STREAM = "begin a new stream with --restart-monitor"


def state_root() -> Path:
    """The user's own folder for what programs keep."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "discopatch"


def default_database(detector: Path, folder: Path) -> Path:
    """The history of that detector in that folder, on a local disk, which the folder itself need not be on."""
    key = sha256(b"\0".join(os.fsencode(os.path.abspath(path)) for path in (detector, folder)))  # noqa: PTH100
    return state_root() / f"{detector.resolve().name}-{key.hexdigest()[:8]}.sqlite"


def check_places(folder: Path, database: Path, parquet: Path | None) -> None:
    """WatchError where there is no folder, ParameterError where something would be written into it."""
    if not folder.is_dir():
        raise WatchError(f"{folder} is no folder: check the path")
    for option, path in (("--database", database), ("--parquet", parquet)):
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            raise ParameterError(f"{option} {path} lies in the folder that is watched: choose another place")


def resume_monitor(
    history: History,
    name: str,
    detector: "Detector | Runtime",
    *,
    false_alarm_rate: float | None = None,
    restart: bool = False,
) -> "Monitor":
    """The monitor as the history has it, or a new one; WatchError where its state does not go with the request."""
    from discopatch.errors import StateError
    from discopatch.monitor import Monitor

    state = None if restart else history.state(name)
    if state is None:
        monitor = Monitor(detector) if false_alarm_rate is None else Monitor(detector, false_alarm_rate)
        with history.transaction() as change:
            change.put_state(name, monitor.to_bytes())
        return monitor
    try:
        monitor = Monitor.from_bytes(state, detector)
    except StateError as error:
        raise WatchError(f"{history.path}: {error}; or {NEW_STREAM}") from error
    if false_alarm_rate not in (None, monitor.false_alarm_rate):
        raise WatchError(
            f"the stream of {name} began with a rate of {monitor.false_alarm_rate}: keep it, or {NEW_STREAM}"
        )
    return monitor
