"""Server-sent events: who listens to a detector, each with a bounded queue."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

LONGEST_QUEUE = 256  # events that wait for one reader, who is dropped beyond
KEEP_ALIVE = 15.0  # seconds
END = None


class Event(NamedTuple):
    """One event; those of predictions have the number of their entry in the history."""

    kind: str  # prediction, monitor or alarm
    data: Mapping[str, Any]
    id: int | None = None

    def encode(self) -> bytes:
        number = "" if self.id is None else f"id: {self.id}\n"
        return f"{number}event: {self.kind}\ndata: {json.dumps(self.data)}\n\n".encode()


class Listener:
    """A reader's queue."""

    def __init__(self, detector: str) -> None:
        self.detector = detector
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue(LONGEST_QUEUE + 1)
        self.is_ended = False

    def put(self, event: Event) -> None:
        """A reader who is too slow gets no more, and comes back by Last-Event-ID if it likes."""
        if not self.is_ended and self.queue.qsize() < LONGEST_QUEUE:
            self.queue.put_nowait(event)
        else:
            self.end()

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.queue.put_nowait(END)

    async def stream(self, missed: Sequence[Event], *, keep_alive: float = KEEP_ALIVE) -> AsyncIterator[bytes]:
        """The events missed, then those that come; a comment whenever there was none for a while."""
        last = missed[-1].id if missed else None
        yield b"retry: 2000\n\n"
        for event in missed:
            yield event.encode()
        while True:
            try:
                async with asyncio.timeout(keep_alive):
                    found = await self.queue.get()
            except TimeoutError:
                yield b": keep-alive\n\n"
                continue
            if found is END:
                return
            if last is None or found.id is None or found.id > last:
                yield found.encode()


class Hub:
    """All listeners; threads publish, the loop hands out."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listeners: set[Listener] = set()
        self.is_closed = False

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def listen(self, detector: str) -> Listener:
        listener = Listener(detector)
        self.listeners.add(listener)
        if self.is_closed:
            listener.end()
        return listener

    def publish(self, detector: str, events: Sequence[Event]) -> None:
        """Called by threads."""
        if self._loop is not None and not self._loop.is_closed() and self.listeners:
            self._loop.call_soon_threadsafe(self._hand_out, detector, events)

    def _hand_out(self, detector: str, events: Sequence[Event]) -> None:
        for listener in self.listeners:
            if listener.detector == detector:
                for event in events:
                    listener.put(event)

    def close(self) -> None:
        """Ends all streams, which would never end by themselves."""
        self.is_closed = True
        for listener in self.listeners:
            listener.end()
