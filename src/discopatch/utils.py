"""Atomic files, optional packages, and work that is begun before it is waited for."""

import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from discopatch.errors import MissingExtraError

T = TypeVar("T")


def write_atomically(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Lets `write` fill a temporary file beside `path`, then renames it to `path`.

    When `write` fails or the program is killed, what was at `path` before is still there. With `durable` the file
    survives a power cut, which takes time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        write(partial)
        partial.chmod(mode)  # some writers make files that only their owner can read
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes indented JSON, atomically."""
    write_atomically(path, lambda partial: partial.write_text(json.dumps(content, indent=2) + "\n"))


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder survive a power cut."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def strip_prefix(values: Mapping[str, T], folder: str) -> dict[str, T]:
    """The entries whose name begins with `folder/`, under the rest of their name."""
    prefix = f"{folder}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def require(module: str, extra: str) -> None:
    """Raises MissingExtraError, which says what to install, unless the module can be imported; imports nothing."""
    found = sys.modules[module] if module in sys.modules else find_spec(module)
    if found is None:
        raise MissingExtraError(f"{module} is not installed: pip install 'discopatch[{extra}]'")


def prefetch(items: Iterable[T], steps: int) -> Iterator[T]:
    """The same items, each handed out only once `steps` that follow it have been drawn from `items`."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > steps:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
