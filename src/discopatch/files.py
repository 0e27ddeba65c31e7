"""Files that are whole or not there: never half-written, whatever stops the program."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def write_atomically(path: Path, write: Callable[[Path], object], *, lasting: bool = True) -> None:
    """Lets `write` make the file beside its place, then moves it there at one stroke.

    When `write` fails or the program is killed, what was at `path` before is still there. What can be made again need
    not be `lasting`: that it survives a power cut takes time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        beside.touch()
        usual = beside.stat().st_mode
        write(beside)
        beside.chmod(usual)  # some writers make files that only their owner can read
        if lasting:
            with beside.open("rb") as file:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if lasting:
        sync_folder(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Readable JSON, atomically."""
    write_atomically(path, lambda beside: beside.write_text(json.dumps(content, indent=2) + "\n"))


def below(named: Mapping[str, T], folder: str) -> dict[str, T]:
    """Of what a file holds under names with slashes: that in the folder, under the names that it has there."""
    prefix = f"{folder}/"
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
