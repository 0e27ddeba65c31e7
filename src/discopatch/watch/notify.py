"""Messages about alarms, to a webhook, a command or a broker: queued in the history, delivered by a thread.

A message leaves the queue when it was delivered. After a kill in between it is delivered again, with the same id.
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

from discopatch.errors import OutputError, ParameterError, StoreError
from discopatch.history import History
from discopatch.version import __version__

TRIES = 20  # of one message, within about nine hours
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0  # seconds between tries; each pause is twice the one before
LOOK_PAUSE = 1.0  # seconds between two looks at the queue, unless a message arrives
FULL_PAUSE = 10.0  # seconds after an error of the queue
TIMEOUT = 10.0  # seconds for a webhook to answer
COMMAND_TIMEOUT = 60.0  # seconds for a command to end
Deliver = Callable[[str], None]  # delivers a message, which is JSON, or raises one of FAILURES
FAILURES = (OSError, HTTPException, ValueError, subprocess.SubprocessError)


class NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as an error: a message must not go to another host, and other methods would drop its body."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def webhook(url: str, *, timeout: float = TIMEOUT) -> Deliver:
    """A function that posts each message to the address as JSON; a status of 200 to 299 confirms it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError(f"{url!r} is no address of a webhook: give one such as https://host/path")
    opener = build_opener(NoRedirect)
    opener.addheaders = [("User-Agent", f"discopatch/{__version__}")]

    def deliver(body: str) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": json.loads(body)["id"]}
        try:
            opener.open(Request(url, data=body.encode(), headers=headers), timeout=timeout).close()
        except HTTPError as error:  # it holds the connection
            error.close()
            raise

    return deliver


def command(text: str, *, timeout: float = COMMAND_TIMEOUT) -> Deliver:
    """A function that runs the command with each message on its standard input; status 0 confirms it.

    Its output goes to standard error. A command that does not end in time is killed.
    """
    try:
        if not (words := shlex.split(text)):
            raise ValueError("it is empty")
    except ValueError as error:
        raise ParameterError(f"--exec {text!r} is no command ({error}): name one, and close its quotes") from error

    def deliver(body: str) -> None:
        subprocess.run(words, input=body.encode(), stdout=2, timeout=timeout, check=True)

    return deliver


class Delivery:
    """A thread that delivers the queued messages of one target; `report` is called with messages for the user.

    While the target is not `ready`, its messages stay in the queue, and none is tried.
    """

    def __init__(
        self,
        history: History,
        target: str,
        deliver: Deliver,
        report: Callable[[str], object],
        *,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._history, self._target, self._deliver, self._report, self._ready = history, target, deliver, report, ready
        self.wake = threading.Event()  # to be set after a message was queued
        self._finishing, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="discopatch-delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, body: str) -> None:
        """Queues a message, in a transaction."""
        self._history.insert("notifications", target=self._target, body=body)

    def queued(self) -> int:
        ((count,),) = self._history.rows("SELECT count(*) FROM notifications WHERE target = ?", self._target)
        return int(count)

    def stop(self, timeout: float, *, finish: bool = False) -> None:
        """Ends the thread, with `finish` after it has tried every message that is due.

        A message whose delivery takes longer is delivered again at the next start.
        """
        (self._finishing if finish else self._stopped).set()
        self.wake.set()
        self._thread.join(timeout)
        self._stopped.set()

    def _run(self) -> None:
        last = False
        while not self._stopped.is_set() and not last:
            last = self._finishing.is_set()
            self.wake.clear()
            try:
                self.deliver_due()
            except (OutputError, StoreError, sqlite3.ProgrammingError) as error:  # a full disk, or closed at the end
                self._report(f"the queue of messages cannot be read or written: {error}")
                self._stopped.wait(FULL_PAUSE)
            self.wake.wait(0 if last else LOOK_PAUSE)

    def deliver_due(self) -> None:
        query = "SELECT id, body, tries FROM notifications WHERE target = ? AND due <= ? ORDER BY id LIMIT 1"
        while not self._stopped.is_set() and (found := self._history.rows(query, self._target, time.time())):
            if not self._ready():
                return
            self._try(*found[0])

    def _try(self, number: int, body: str, tries: int) -> None:
        """Delivers a message and removes it from the queue, or puts it off."""
        due = None
        try:
            self._deliver(body)
        except FAILURES as error:
            if tries + 1 < TRIES:
                due = time.time() + min(LONGEST_PAUSE, FIRST_PAUSE * 2**tries)
            if due is None or tries == 0:
                rest = f"given up after {TRIES} tries" if due is None else f"it stays queued for {TRIES} tries"
                self._report(f"a message was not delivered ({error or type(error).__name__}); {rest}")
        with self._history.transaction() as history:
            if due is None:
                history.execute("DELETE FROM notifications WHERE id = ?", number)
            else:
                history.execute("UPDATE notifications SET tries = ?, due = ? WHERE id = ?", tries + 1, due, number)
