"""Messages about alarms, to a webhook or a command: queued in the history, delivered at least once by a thread.

A message leaves the queue when it was delivered. A process that is killed in between delivers it again, with the same
id.
"""

import json
import shlex
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import discopatch
from discopatch.errors import OutputError, ParameterError, StoreError
from discopatch.history import History
from discopatch.utils import legible

TRIES = 20  # of one message, within about nine hours
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0  # seconds between tries; each pause is twice the one before
TIMEOUT = 10.0  # seconds for a webhook to answer
COMMAND_TIMEOUT = 60.0  # seconds for a command to end
MOST_QUEUED = 10_000  # messages about single images; beyond it the oldest are dropped

FAILURES = (OSError, HTTPException, ValueError, subprocess.SubprocessError)  # of a delivery


class Webhook:
    """An address to which each message is posted as JSON; a status of 200 to 299 confirms it. Follows no redirects."""

    kind = "webhook"

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ParameterError(f"{url!r} is no address of a webhook: give one such as https://host/path")
        self._url, self._timeout, self._opener = url, timeout, build_opener(NoRedirect)

    def deliver(self, body: str) -> None:
        """Posts the message; raises one of FAILURES unless it is confirmed."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"discopatch/{discopatch.__version__}",
            "Idempotency-Key": json.loads(body)["id"],
        }
        request = Request(self._url, data=body.encode(), headers=headers, method="POST")
        try:
            self._opener.open(request, timeout=self._timeout).close()
        except HTTPError as error:  # it holds the connection
            error.close()
            raise


class NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as an error: a message must not go to another host, and other methods would drop its body."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


class Command:
    """A command that gets each message on its standard input; status 0 confirms it.

    Its output goes to standard error. A command that does not end in time is killed.
    """

    kind = "exec"

    def __init__(self, command: str, *, timeout: float = COMMAND_TIMEOUT) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ParameterError(
                f"--exec {command!r} cannot be split into words ({error}): close the quotes"
            ) from error
        if not self._words:
            raise ParameterError("--exec is empty: name a command")
        self._timeout = timeout

    def deliver(self, body: str) -> None:
        """Runs the command; raises one of FAILURES unless it confirms the message."""
        subprocess.run(self._words, input=body.encode(), stdout=2, timeout=self._timeout, check=True)


class Delivery:
    """A thread that delivers the queued messages of one receiver; `report` is called with messages for the user."""

    def __init__(
        self, history: History, receiver: Webhook | Command, target: str, *, report: Callable[[str], object]
    ) -> None:
        self.target = legible(f"{receiver.kind} {target}")
        self._history, self._receiver, self._report = history, receiver, report
        self._wake, self._finishing, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._delivered: set[int] = set()  # messages that could not be removed from the queue yet
        self._thread = threading.Thread(target=self._run, name=f"discopatch-{receiver.kind}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, alarm: int | None, body: str) -> None:
        """Queues a message in a transaction; `wake` starts its delivery after that."""
        self._history.insert("notifications", alarm=alarm, target=self.target, body=body)
        if alarm is None:
            self._history.execute(
                "DELETE FROM notifications WHERE id IN (SELECT id FROM notifications"
                " WHERE target = ? AND alarm IS NULL ORDER BY id DESC LIMIT -1 OFFSET ?)",
                *(self.target, MOST_QUEUED),
            )

    def wake(self) -> None:
        self._wake.set()

    def queued(self) -> int:
        """The number of messages that are not delivered yet."""
        ((count,),) = self._history.rows("SELECT count(*) FROM notifications WHERE target = ?", self.target)
        return int(count)

    def stop(self, timeout: float, *, finish: bool = False) -> None:
        """Ends the thread, with `finish` after it has tried every message that is due.

        A message whose delivery takes longer is delivered again at the next start.
        """
        (self._finishing if finish else self._stopped).set()
        self._wake.set()
        self._thread.join(timeout)
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            last = self._finishing.is_set()
            self._wake.clear()
            try:
                pause = self.deliver_due()
            except (OutputError, StoreError, sqlite3.ProgrammingError) as error:  # a full disk, or closed at the end
                if self._stopped.is_set():
                    return
                self._report(f"the queue of messages cannot be read or written: {error}")
                pause = FIRST_PAUSE * 10
            if last:
                return
            self._wake.wait(pause)

    def deliver_due(self) -> float:
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
        error: Exception | None = None
        try:
            if number not in self._delivered:
                self._receiver.deliver(body)
                self._delivered.add(number)
        except FAILURES as failure:
            error = failure
        given_up = error is not None and tries + 1 >= TRIES
        with self._history.transaction() as history:
            if error is None or given_up:
                history.execute("DELETE FROM notifications WHERE id = ?", number)
            else:
                due = time.time() + min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)
                history.execute("UPDATE notifications SET tries = ?, due = ? WHERE id = ?", tries + 1, due, number)
        self._delivered.discard(number)
        if error is not None and (given_up or tries == 0):
            rest = f"given up after {TRIES} tries" if given_up else f"it stays queued for {TRIES} tries"
            self._report(f"a message was not delivered ({error or type(error).__name__}); {rest}")
