"""Messages about alarms, to a webhook or a command: queued in the history, delivered at least once by a thread.

A message leaves the queue when its receiver has taken it. A process that is killed in between delivers it again: the
receiver knows it by its id.
"""

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

import discopatch
from discopatch.errors import DiscopatchError, HistoryError, ParameterError
from discopatch.history import Change, History

TRIES = 20  # of one message, within about nine hours
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0  # seconds before another try; each pause is twice the one before
TIMEOUT = 10.0  # seconds for a webhook to answer
COMMAND_TIMEOUT = 60.0  # seconds for a command to end
MOST_QUEUED = 10_000  # messages about single images that wait; beyond it the oldest are given up
GIVEN_UP_KEPT = 1_000  # messages that were given up, kept in the history for reading


class DeliveryError(DiscopatchError, OSError):
    """A receiver did not take a message; it is tried again."""


class Receiver(ABC):
    """Where messages go; `kind` is its name in the queue."""

    kind: str

    @abstractmethod
    def deliver(self, key: str, body: str, tries: int) -> None:
        """Returns when the message has been taken, or raises DeliveryError."""


class Webhook(Receiver):
    """An address to which each message is posted as JSON; any status of 200 to 299 means that it was taken."""

    kind = "webhook"

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ParameterError(f"{url!r} is no address of a webhook: give one such as https://host/path")
        self._url, self._timeout = url, timeout
        self._opener: OpenerDirector = build_opener(_SameOrigin)

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
            raise DeliveryError(f"the webhook answered {error.code} {error.reason}") from error
        except URLError as error:
            raise DeliveryError(f"the webhook cannot be reached ({error.reason})") from error
        except (OSError, HTTPException, ValueError) as error:
            raise DeliveryError(f"the webhook failed ({error or type(error).__name__})") from error


class _SameOrigin(HTTPRedirectHandler):
    """Follows redirects that ask for the same request on the same host; any other one is an error.

    Elsewhere the message may be none of the receiver's business, and other redirects would drop the body.
    """

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if code not in (307, 308) or origin(urlsplit(newurl)) != origin(urlsplit(req.full_url)):
            raise HTTPError(req.full_url, code, f"redirects to {newurl}, which is not followed", headers, fp)
        return Request(newurl, data=req.data, headers={**req.headers, **req.unredirected_hdrs}, method="POST")


def origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class Command(Receiver):
    """A command that gets each message on its standard input; status 0 means that it was taken.

    What it prints goes to standard error. One that does not end in time is killed, with all that it started.
    """

    kind = "exec"

    def __init__(self, command: str, *, timeout: float = COMMAND_TIMEOUT) -> None:
        try:
            self._arguments = split_words(command)
        except ValueError as error:
            raise ParameterError(
                f"--exec {command!r} cannot be split into words ({error}): close the quotes"
            ) from error
        if not self._arguments:
            raise ParameterError("--exec is empty: name a command")
        self._timeout = timeout

    def deliver(self, key: str, body: str, tries: int) -> None:
        try:
            process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=2,
                env={**os.environ, **variables(key, body, tries)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise DeliveryError(f"{self._arguments[0]} cannot be started ({error})") from error
        try:
            process.communicate(body.encode(), timeout=self._timeout)
        except subprocess.TimeoutExpired as error:
            end_group(process)
            raise DeliveryError(f"{self._arguments[0]} did not end within {self._timeout:g} s") from error
        except BaseException:
            end_group(process)
            raise
        if process.returncode:
            raise DeliveryError(f"{self._arguments[0]} ended with status {process.returncode}")


def split_words(command: str) -> list[str]:
    """The words as a shell would have them; on Windows a backslash stays one, since paths are written with it."""
    if sys.platform == "win32":
        return [word.strip("\"'") for word in shlex.split(command, posix=False)]
    return shlex.split(command)


def end_group(process: "subprocess.Popen[bytes]") -> None:
    if sys.platform != "win32":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def variables(key: str, body: str, tries: int) -> dict[str, str]:
    """The message's most wanted fields, for commands that read no JSON."""
    content: dict[str, Any] = json.loads(body)
    image = content.get("image") or {}
    found = {
        "ID": key,
        "TRY": tries + 1,
        "EVENT": content.get("event"),
        "DETECTOR": content.get("detector"),
        "FOLDER": content.get("folder"),
        "TIME": content.get("time"),
        "IMAGE": image.get("name"),
        "SCORE": image.get("score"),
        "P_VALUE": image.get("p_value"),
        "TEXT": content.get("text"),
    }
    return {f"DISCOPATCH_{name}": str(value) for name, value in found.items() if value is not None}


class Queued(NamedTuple):
    """A message that waits."""

    number: int
    body: str
    tries: int


class Delivery:
    """A thread that delivers the messages of one receiver that are queued under `target`.

    Whatever the receiver does, only this thread waits for it. `told` is called with what a user should know.
    """

    def __init__(
        self,
        history: History,
        receiver: Receiver,
        target: str,
        *,
        told: Callable[[str], object],
        first_pause: float = FIRST_PAUSE,
        tries: int = TRIES,
    ) -> None:
        self.target = f"{receiver.kind} {target}"
        self._history, self._receiver, self._told = history, receiver, told
        self._first_pause, self._tries = first_pause, tries
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._idle = threading.Condition()
        self._busy = True  # until it has found nothing due
        self._taken: set[int] = set()  # messages that were delivered and could not be removed from the queue yet
        self._thread = threading.Thread(target=self._run, name=f"discopatch-{receiver.kind}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, change: Change, alarm: int | None, body: str) -> None:
        """Queues a message in a transaction; `wake` tells the thread once that has ended."""
        change.queue(alarm, self.target, body)
        if alarm is None:
            change.execute(
                "UPDATE notifications SET given_up = 1, error = 'too many wait' WHERE id IN ("
                "SELECT id FROM notifications WHERE target = CAST(? AS TEXT) AND alarm IS NULL AND NOT given_up"
                " ORDER BY id DESC LIMIT -1 OFFSET ?)",
                *(self.target, MOST_QUEUED),
            )

    def wake(self) -> None:
        with self._idle:
            self._busy = True
            self._wake.set()

    def queued(self) -> int:
        """How many messages wait."""
        ((count,),) = self._history.rows(
            "SELECT count(*) FROM notifications WHERE target = CAST(? AS TEXT) AND NOT given_up", self.target
        )
        return int(count)

    def flush(self, timeout: float) -> None:
        """Waits until every message that is due now was tried."""
        with self._idle:
            self._idle.wait_for(lambda: not self._busy or not self._thread.is_alive(), timeout)

    def stop(self, timeout: float) -> None:
        """Ends the thread; a message in its hands that is not taken within the time is delivered again next time."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                pause = self._deliver_due()
            except (HistoryError, sqlite3.ProgrammingError) as error:  # a full disk, or closed as the program ends
                if self._stopped.is_set():
                    return
                self._told(f"the queue of messages cannot be read or written: {error}")
                pause = FIRST_PAUSE * 10
            with self._idle:
                self._busy = self._wake.is_set()
                self._idle.notify_all()
            self._wake.wait(pause)

    def _deliver_due(self) -> float:
        """Delivers what is due, and gives the seconds until something else is."""
        while not self._stopped.is_set():
            found = self._history.rows(
                "SELECT id, body, tries FROM notifications WHERE target = CAST(? AS TEXT) AND NOT given_up AND due <= ?"
                " ORDER BY alarm IS NULL, id LIMIT 1",  # those about alarms first
                *(self.target, time.time()),
            )
            if not found:
                break
            self._try(Queued(*found[0]))
        ((due,),) = self._history.rows(
            "SELECT min(due) FROM notifications WHERE target = CAST(? AS TEXT) AND NOT given_up", self.target
        )
        return 60.0 if due is None else min(60.0, max(0.0, due - time.time()))

    def _try(self, message: Queued) -> None:
        error: str | None = None
        try:
            if message.number not in self._taken:
                self._receiver.deliver(json.loads(message.body)["id"], message.body, message.tries)
                self._taken.add(message.number)
        except Exception as failure:  # whatever it is: the thread goes on
            error = str(failure) or type(failure).__name__
        tries = message.tries + 1
        given_up = error is not None and tries >= self._tries
        with self._history.transaction() as change:
            if error is None:
                change.execute("DELETE FROM notifications WHERE id = ?", message.number)
            else:
                pause = min(LONGEST_PAUSE, self._first_pause * 2 ** min(message.tries, 30))
                change.execute(
                    "UPDATE notifications SET tries = ?, due = ?, error = CAST(? AS TEXT), given_up = ? WHERE id = ?",
                    *(tries, time.time() + pause, error, given_up, message.number),
                )
            if given_up:
                change.execute(
                    "DELETE FROM notifications WHERE given_up AND id IN (SELECT id FROM notifications WHERE given_up"
                    " ORDER BY id DESC LIMIT -1 OFFSET ?)",
                    GIVEN_UP_KEPT,
                )
        self._taken.discard(message.number)
        if error is not None and (given_up or tries == 1):
            rest = f"given up after {tries} tries" if given_up else f"it stays queued, and is tried {self._tries} times"
            self._told(f"a message was not delivered: {error}; {rest}")
