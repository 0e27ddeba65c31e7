"""Claims of processes on the parts that they score, so that several may share a folder without doing work twice.

A claim is a small file of the folder `_claims`. The process that made it renews it while it lives and removes it at the
end. Claims save work only: if two processes score one part, their files are equal, and one replaces the other.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

from discopatch.batch.output import OutputFolder, carried, carrier
from discopatch.errors import DiscopatchError

if TYPE_CHECKING:
    import pyarrow

RENEWED = 30.0  # seconds between two renewals
EXPIRED = 180.0  # seconds without a renewal, by the clock of the process that watches
OLD = 3600.0  # seconds since the last renewal, by the clocks of both: a claim of an earlier day is not watched


class Claims:
    """The claims of this process on files of a folder; inside `with` they are renewed, at its end they are removed."""

    def __init__(self, out: OutputFolder, schema: "pyarrow.Schema") -> None:
        self._folder, self._schema = out.below("_claims"), schema
        self._own = {"machine": machine(), "pid": os.getpid(), "host": socket.gethostname(), "owner": token_hex(8)}
        self._held = set[str]()
        self._seen: dict[str, tuple[bytes, float]] = {}  # claims of others, and when they were first seen so

    def __enter__(self) -> Self:
        self._renewing = repeated(self._renew, RENEWED)
        self._renewing.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._renewing.__exit__(None, None, None)
        for name in list(self._held):
            with suppress(DiscopatchError):
                self.release(name)

    def take(self, name: str) -> bool:
        """Claims a file, if no other live process has claimed it."""
        content = self._content()
        with suppress(FileNotFoundError):  # another process has just removed its claim: the next attempt takes it
            if not self._folder.create(name, content):
                if not self._is_expired(name):
                    return False
                self._folder.write(name, content)
            self._held.add(name)
        return name in self._held

    def release(self, name: str) -> None:
        self._held.discard(name)
        self._folder.remove(name)

    def clean(self, done: set[str]) -> None:
        """Removes claims on files that are there, of processes that were killed after they wrote them."""
        for name in self._folder.names() & done:
            self._folder.remove(name)

    def _content(self) -> bytes:
        content = json.dumps({**self._own, "time": time.time()})
        return carrier(content.encode(), self._schema)  # Polars and others read the files of all folders

    def _renew(self) -> None:
        for name in list(self._held):
            with suppress(DiscopatchError, OSError):
                if self._is_own(name) and name in self._held:
                    self._folder.write(name, self._content())
                    if name not in self._held:  # released in the meantime
                        self._folder.remove(name)

    def _is_own(self, name: str) -> bool:
        return owner_of(self._folder.read(name)).get("owner") == self._own["owner"]

    def _is_expired(self, name: str) -> bool:
        """Whether the process of a claim has ended, or has not renewed it for long."""
        content = self._folder.read(name)
        before, since = self._seen.get(name, (b"", 0.0))
        if content != before:
            self._seen[name] = content, time.monotonic()
            found = owner_of(content)
            return has_ended(found) or time.time() - found.get("time", time.time()) > OLD
        return time.monotonic() - since > EXPIRED or has_ended(owner_of(content))


def owner_of(content: bytes) -> dict[str, Any]:
    """The fields of a claim; none if it cannot be read."""
    with suppress(ValueError):
        found = json.loads(carried(content))
        return found if isinstance(found, dict) else {}
    return {}


@cache
def machine() -> str:
    """This machine since its start, and the namespace of its process ids; empty where they are unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def has_ended(owner: dict[str, Any]) -> bool:
    """Whether it was a process of this machine that is gone."""
    if sys.platform == "win32" or not machine() or owner.get("machine") != machine():
        return False
    try:
        os.kill(owner.get("pid", 0), 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another user
        pass
    return False


@contextmanager
def repeated(function: Callable[[], object], seconds: float) -> Iterator[None]:
    """Calls the function every so many seconds, in a thread."""
    end = Event()

    def repeat() -> None:
        while not end.wait(seconds):
            function()

    thread = Thread(target=repeat, name="discopatch-repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
