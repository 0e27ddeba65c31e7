"""Messages about alarms, to a webhook or a command: queued in the history, delivered at least once by a thread.

A message leaves the queue when it was delivered. A process that is killed in between delivers it again, with the same
id.
"""

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import discopatch
from discopatch.errors import OutputError, ParameterError, ServiceError, StoreError
from discopatch.history import Change, History
from discopatch.utils import legible

TRIES = 20  # of one message, within about nine hours
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0  # seconds between tries; each pause is twice the one before
TIMEOUT = 10.0  # seconds for a webhook to answer
COMMAND_TIMEOUT = 60.0  # seconds for a command to end
MOST_QUEUED = 10_000  # messages about single images; beyond it the oldest are dropped


class Receiver(ABC):
    """A receiver of messages; `kind` is its name in the queue."""

    kind: str

    @abstractmethod
    def deliver(self, key: str, body: str, tries: int) -> None:
        """Delivers a message, or raises ServiceError."""


class Webhook(Receiver):
    """An address to which each message is posted as JSON; a status of 200 to 299 confirms it. Follows no redirects."""

    kind = "webhook"

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ParameterError(f"{url!r} is no address of a webhook: give one such as https://host/path")
        self._url, self._timeout, self._opener = url, timeout, build_opener(NoRedirect)

    def deliver(self, key: str, body: str, tries: int) -> None:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"discopatch/{discopatch.__version__}",
            "Idempotency-Key": key,
        }
        request = Request(self._url, data=body.encode(), headers=headers, method="POST")
        try:
            self._opener.open(request, timeout=self._timeout).close()
        except HTTPError as error:
            error.close()
            raise ServiceError(f"the webhook answered {error.code} {error.reason}", status=error.code) from error
        except (OSError, HTTPException, ValueError) as error:
            raise ServiceError(f"the webhook failed ({error or type(error).__name__})") from error


class NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as an error: a message must not go to another host, and other methods would drop its body."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


class Command(Receiver):
    """A command that gets each message on its standard input; status 0 confirms it.

    Its output goes to standard error. A command that does not end in time is killed, with all processes it started.
    """

    kind = "exec"

    def __init__(self, command: str, *, timeout: float = COMMAND_TIMEOUT) -> None:
        try:
            words = shlex.split(command, posix=os.name == "posix")
        except ValueError as error:
            raise ParameterError(
                f"--exec {command!r} cannot be split into words ({error}): close the quotes"
            ) from error
        if not words:
            raise ParameterError("--exec is empty: name a command")
        self._arguments = [word.strip("\"'") for word in words] if os.name == "nt" else words
        self._timeout = timeout

    def deliver(self, key: str, body: str, tries: int) -> None:
        environment = {**os.environ, **variables(key, body, tries)}
        try:
            process = subprocess.Popen(
                self._arguments, stdin=subprocess.PIPE, stdout=2, env=environment, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise ServiceError(f"{self._arguments[0]} cannot be started ({error})") from error
        try:
            process.communicate(body.encode(), timeout=self._timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL) if os.name == "posix" else process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise ServiceError(f"{self._arguments[0]} did not end within {self._timeout:g} s") from error
        if process.returncode:
            raise ServiceError(f"{self._arguments[0]} ended with status {process.returncode}")


def variables(key: str, body: str, tries: int) -> dict[str, str]:
    """The main fields of a message as environment variables, for commands that read no JSON."""
    content: dict[str, Any] = json.loads(body)
    image = content.get("image") or {}
    found = {
        "ID": key,
        "TRY": tries + 1,
        **{name.upper(): content.get(name) for name in ("event", "detector", "folder", "time", "text")},
        "IMAGE": image.get("name"),
        "SCORE": image.get("score"),
        "P_VALUE": image.get("p_value"),
    }
    return {f"DISCOPATCH_{name}": str(value) for name, value in found.items() if value is not None}


class Delivery:
    """A thread that delivers the queued messages of one receiver; `report` is called with messages for the user."""

    def __init__(
        self,
        history: History,
        receiver: Receiver,
        target: str,
        *,
        report: Callable[[str], object],
        first_pause: float = FIRST_PAUSE,
        tries: int = TRIES,
    ) -> None:
        self.target = legible(f"{receiver.kind} {target}")
        self._history, self._receiver, self._report = history, receiver, report
        self._first_pause, self._tries = first_pause, tries
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._idle = threading.Condition()
        self._busy = True  # until nothing is due
        self._delivered: set[int] = set()  # messages that could not be removed from the queue yet
        self._thread = threading.Thread(target=self._run, name=f"discopatch-{receiver.kind}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, change: Change, alarm: int | None, body: str) -> None:
        """Queues a message in a transaction; `wake` starts its delivery after that."""
        change.insert("notifications", alarm=alarm, target=self.target, body=body)
        if alarm is None:
            change.execute(
                "DELETE FROM notifications WHERE id IN (SELECT id FROM notifications"
                " WHERE target = ? AND alarm IS NULL ORDER BY id DESC LIMIT -1 OFFSET ?)",
                *(self.target, MOST_QUEUED),
            )

    def wake(self) -> None:
        with self._idle:
            self._busy = True
            self._wake.set()

    def queued(self) -> int:
        """The number of messages that are not delivered yet."""
        ((count,),) = self._history.rows("SELECT count(*) FROM notifications WHERE target = ?", self.target)
        return int(count)

    def flush(self, timeout: float) -> None:
        """Waits until every message that is due was tried."""
        with self._idle:
            self._idle.wait_for(lambda: not self._busy or not self._thread.is_alive(), timeout)

    def stop(self, timeout: float) -> None:
        """Ends the thread; a message whose delivery takes longer is delivered again at the next start."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                pause = self._deliver_due()
            except (OutputError, StoreError, sqlite3.ProgrammingError) as error:  # a full disk, or closed at the end
                if self._stopped.is_set():
                    return
                self._report(f"the queue of messages cannot be read or written: {error}")
                pause = FIRST_PAUSE * 10
            with self._idle:
                self._busy = self._wake.is_set()
                self._idle.notify_all()
            self._wake.wait(pause)

    def _deliver_due(self) -> float:
        """Delivers all messages that are due, alarms first, and returns the seconds until the next one is."""
        while not self._stopped.is_set():
            found = self._history.rows(
                "SELECT id, body, tries FROM notifications WHERE target = ? AND due <= ?"
                " ORDER BY alarm IS NULL, id LIMIT 1",
                *(self.target, time.time()),
            )
            if not found:
                break
            self._try(*found[0])
        ((due,),) = self._history.rows("SELECT min(due) FROM notifications WHERE target = ?", self.target)
        return 60.0 if due is None else min(60.0, max(0.0, due - time.time()))

    def _try(self, number: int, body: str, tries: int) -> None:
        error: str | None = None
        try:
            if number not in self._delivered:
                self._receiver.deliver(json.loads(body)["id"], body, tries)
                self._delivered.add(number)
        except Exception as failure:  # the thread continues
            error = str(failure) or type(failure).__name__
        given_up = error is not None and tries + 1 >= self._tries
        with self._history.transaction() as change:
            if error is None or given_up:
                change.execute("DELETE FROM notifications WHERE id = ?", number)
            else:
                due = time.time() + min(LONGEST_PAUSE, self._first_pause * 2 ** min(tries, 30))
                change.execute(
                    "UPDATE notifications SET tries = ?, due = ?, error = ? WHERE id = ?",
                    *(tries + 1, due, legible(error), number),
                )
        self._delivered.discard(number)
        if error is not None and (given_up or tries == 0):
            rest = f"given up after {tries + 1} tries" if given_up else f"it stays queued for {self._tries} tries"
            self._report(f"a message was not delivered: {error}; {rest}")
