"""All that a running service has, apart from its addresses."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.requests import Request

from discopatch.errors import DiscopatchError, HistoryFullError, ImageError, NotFittedError
from discopatch.history import History
from discopatch.images.items import Item
from discopatch.serve.auth import Tokens
from discopatch.serve.batching import Scoring, Ticket
from discopatch.serve.detectors import Loaded, Registry
from discopatch.serve.events import Hub
from discopatch.serve.limits import Held, Room, client_gone
from discopatch.serve.metrics import Metrics
from discopatch.serve.problems import ProblemError
from discopatch.serve.recording import Recorder
from discopatch.serve.settings import ServeSettings

IN_MEMORY, KEPT_IN_MEMORY = ":memory:", 1000


class Log(Protocol):
    """Takes a line of the log: how grave it is, what happened, and more fields."""

    def __call__(self, level: str, event: str, /, **fields: Any) -> None: ...


def no_log(level: str, event: str, /, **fields: Any) -> None:
    """Says nothing."""


class Service:
    """Detectors, queue, history, metrics and listeners of one process."""

    def __init__(self, settings: ServeSettings, log: Log = no_log) -> None:
        self.settings, self.log = settings, log
        self.tokens: Tokens | None = None
        self._read_tokens()
        self.metrics, self.hub = Metrics(), Hub()
        history, problem = open_history(settings)
        self.registry = Registry(settings, history, self.metrics, log)
        self.registry.load()
        self.recorder = Recorder(history, self.hub, self.metrics, lambda: self.registry.streams, log)
        self.recorder.error = problem
        self.room = Room(settings.max_queue_bytes)
        self.scoring = Scoring(
            threads=self.registry.threads,
            batch_size=settings.batch_size,
            max_queue=settings.max_queue,
            on_batch=self.metrics.batch.observe,
        )
        self.is_stopping = False
        self._reloading = asyncio.Lock()
        self._add_gauges()

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("queue_images", "Images that wait.", lambda: len(self.scoring))
        gauge("queue_bytes", "Bytes held for requests.", lambda: self.room.used)
        gauge("listeners", "Readers of events.", lambda: len(self.hub.listeners))
        gauge("history_failing", "1 while the history cannot be written.", lambda: self.recorder.error is not None)
        gauge(
            "history_unwritten_images",
            "Not yet in the history.",
            lambda: sum(s.unwritten for s in self.registry.streams),
        )
        gauge("ready", "1 while the service takes images.", lambda: not self.is_stopping)

    def open(self) -> None:
        """Called in the loop that the service runs in."""
        self.hub.open()
        self.recorder.start()

    def stop(self) -> None:
        """No longer ready: what was accepted is still answered, streams of events end."""
        self.is_stopping = True
        self.hub.close()

    def close(self) -> None:
        """Scores and writes what is left."""
        self.stop()
        self.scoring.close()
        self.recorder.close()

    def held(self) -> Held:
        """What a request holds; 429 at once where the queue is full already."""
        self.scoring.check_room()
        return Held(self.room, self.scoring.busy)

    async def results(
        self, request: Request, loaded: Loaded, items: Sequence[Item], *, explain: bool = False
    ) -> list[Any]:
        """What the detector says of the images, in their order; they are dropped once nobody waits for them."""
        ticket = self.scoring.submit(loaded, items, explain=explain)
        try:
            return await self._wait(request, ticket)
        except ImageError as error:
            raise ProblemError(422, "image-refused", str(error), reason=str(error.reason)) from None
        except NotFittedError as error:
            raise ProblemError(422, "cannot-explain", str(error)) from None
        except DiscopatchError as error:
            self.log("error", "detector", detector=loaded.name, detail=str(error))
            detail = f"detector {loaded.name} has failed: its files are damaged, or memory ran out"
            raise ProblemError(500, "detector-failed", detail) from None

    async def _wait(self, request: Request, ticket: Ticket) -> list[Any]:
        leaving = asyncio.create_task(until_gone(request))
        waited_for: set[asyncio.Future[Any]] = {ticket.results, leaving}
        try:
            await asyncio.wait(waited_for, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not ticket.results.done():
                self.scoring.drop(ticket)
        if ticket.results.done():
            return ticket.results.result()
        if leaving.done() and not leaving.cancelled():
            raise client_gone()
        detail = f"no answer within {self.settings.timeout:g} seconds: send fewer images, or later"
        raise ProblemError(503, "timeout", detail, headers={"Retry-After": "5"})

    async def reload(self) -> list[str]:
        """Loads detectors and tokens anew; the names of those that have changed. A bad one leaves all as it was."""
        if self._reloading.locked():
            raise ProblemError(
                409, "reloading", "another reload is under way: wait for it", headers={"Retry-After": "5"}
            )
        async with self._reloading:
            try:
                tokens = None if self.settings.token_file is None else Tokens.read(self.settings.token_file)
                changed = await asyncio.to_thread(self.registry.load)
            except (DiscopatchError, OSError) as error:
                self.metrics.reloads.labels("refused").inc()
                self.log("error", "reload", detail=str(error))
                raise ProblemError(422, "reload-refused", f"all stays as it was: {error}") from None
            if tokens is not None:
                self.tokens = tokens[0]
        self.metrics.reloads.labels("done").inc()
        self.log("info", "reload", changed=changed)
        return changed

    def _read_tokens(self) -> None:
        if self.settings.token_file is not None:
            self.tokens, warnings = Tokens.read(self.settings.token_file)
            for warning in warnings:
                self.log("warning", "tokens", detail=warning)
        elif not self.settings.is_local:
            self.log(
                "warning",
                "tokens",
                detail=f"anyone who reaches {self.settings.host} may use this service: give --token-file",
            )


def open_history(settings: ServeSettings) -> tuple[History, str | None]:
    """The history, and why it is in memory although it should not be: a full disk is no reason not to score."""
    if settings.history is None:
        return History(IN_MEMORY, keep=KEPT_IN_MEMORY), None
    try:
        return History(settings.history, keep=settings.keep), None
    except HistoryFullError as error:
        return History(IN_MEMORY, keep=KEPT_IN_MEMORY), str(error)


async def until_gone(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
