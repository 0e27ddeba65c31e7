"""The service as a process: the socket, its connections, signals and the log."""

import asyncio
import ctypes
import errno
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from discopatch.errors import ParameterError
from discopatch.serve.app import create_app
from discopatch.serve.problems import MEDIA_TYPE, TYPE, ProblemError
from discopatch.serve.service import Log, Service
from discopatch.serve.settings import ServeSettings

BACKLOG = 512
KEEP_ALIVE_SECONDS = 15
UNREAD_SECONDS = 30.0  # after which a client that does not read its answer is cut off
TIDY_SECONDS = 30.0  # between two times that free memory is given back
LOG_LINES = 10_000  # that wait to be written; beyond, lines are dropped, and requests are not held up


def run(settings: ServeSettings, *, announce: Callable[[str], object] = print) -> None:
    """Serves until a signal comes; `announce` is told the address once the detectors are loaded."""
    with JsonLog(sys.stderr) as log, bound_socket(settings.host, settings.port) as listener:
        app = create_app(settings, log=log)
        config = uvicorn.Config(
            app,
            http=protocol_for(settings, log),
            ws="none",
            lifespan="on",
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        address = address_of(listener)
        with forwarded_logs(log):
            listener.listen(BACKLOG)

            def tell() -> None:
                log("info", "listening", address=address, detectors=list(settings.detectors))
                announce(address)

            Server(config, app.state.service, log, started_up=tell).run([listener])
            log("info", "stopped")


class Server(uvicorn.Server):
    """Stops gracefully at a signal: not ready, still listening for a moment, then everything accepted is answered.

    A second signal ends the process at once. SIGHUP loads all detectors anew. `started_up` is called once signals are
    heard and requests are answered.
    """

    def __init__(self, config: uvicorn.Config, service: Service, log: Log, *, started_up: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._log, self._started_up = service, log, started_up
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._add_task(give_back_memory())
            self._started_up()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if sys.platform == "win32":  # whose loop takes no handlers, and which has no SIGHUP
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            for number in (*numbers, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        if self._service.is_stopping:
            os._exit(128 + number)
        self._log("info", "stopping", signal=signal.Signals(number).name)
        self._service.stop()
        asyncio.get_running_loop().call_later(self._service.settings.drain, self._exit)

    def _exit(self) -> None:
        self.should_exit = True

    def _reload(self) -> None:
        async def reload() -> None:
            try:
                await self._service.reload()
            except ProblemError as problem:
                self._log("error", "reload", detail=problem.detail)

        self._add_task(reload())

    def _add_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def give_back_memory() -> None:
    """Now and then returns to the system what is free: after a busy time the allocator would keep most of it.

    Only glibc can be asked to.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    while trim is not None:
        await asyncio.sleep(TIDY_SECONDS)
        await asyncio.to_thread(trim, 0)


def protocol_for(settings: ServeSettings, log: Log) -> type[H11Protocol]:
    """Connections that end when a header does not come or an answer is not read in time; there are never too many."""

    class BoundedProtocol(H11Protocol):
        """One connection, with the clocks that uvicorn has not."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._header_clock = Clock(settings.header_seconds, self._cut_off, "header")
            self._answer_clock = Clock(UNREAD_SECONDS, self._cut_off, "answer")
            if len(self.connections) > settings.max_connections:
                detail = f"{settings.max_connections} connections are the most: try again later"
                transport.write(raw_problem(429, "Too Many Requests", "too-many-connections", detail))
                transport.close()
            else:
                self._header_clock.start()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._header_clock.stop()
            else:
                self._header_clock.start()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._answer_clock.start()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._answer_clock.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._header_clock.stop()
            self._answer_clock.stop()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            self.transport.write(raw_problem(400, "Bad Request", "bad-request", "this is no HTTP request"))
            self.transport.close()

        def _cut_off(self, waited_for: str) -> None:
            log("info", "cut-off", waited_for=waited_for, client=self.client[0] if self.client else None)
            self.transport.abort()

    return BoundedProtocol


class Clock:
    """Calls back after so many seconds, unless it is stopped before; it runs once at a time."""

    def __init__(self, seconds: float, call: Callable[[str], None], argument: str) -> None:
        self._seconds, self._call, self._argument = seconds, call, argument
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._call, self._argument)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def raw_problem(status: int, title: str, kind: str, detail: str) -> bytes:
    """A whole answer, for connections that never become a request."""
    body = json.dumps({"type": TYPE + kind, "title": title, "status": status, "detail": detail}).encode()
    retry = "Retry-After: 5\r\n" if status == 429 else ""
    head = f"HTTP/1.1 {status} {title}\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{retry}Connection: close\r\n\r\n".encode() + body


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that has its address before detectors are loaded, which may take a while, for nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        with listener:
            if sys.platform == "win32":  # where SO_REUSEADDR would let another program take the port as well
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            yield listener
    except (socket.gaierror, PermissionError) as error:
        raise ParameterError(f"cannot listen on {host}:{port} ({error}): choose another --host or --port") from None
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        reason = error.strerror or str(error)
        raise ParameterError(f"cannot listen on {host}:{port} ({reason}): choose another --host or --port") from None


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class JsonLog:
    """Lines of JSON, written by a thread of their own, so that a reader who is slow holds up no request."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lines: queue.Queue[str | None] = queue.Queue(LOG_LINES)
        self._thread = threading.Thread(target=self._write, name="discopatch-log", daemon=True)

    def __call__(self, level: str, event: str, /, **fields: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "level": level, "event": event, **fields}, default=str)
        with suppress(queue.Full):
            self._lines.put_nowait(line)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                print(line, file=self._file, flush=True)
            except (OSError, ValueError):
                return

    def __enter__(self) -> "JsonLog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._lines.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(timeout=1)


class ForwardingHandler(logging.Handler):
    """Hands what the libraries below have to say to the service's own log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        self._log(
            record.levelname.lower(), "server", logger=record.name, detail=record.getMessage().strip(), trace=trace
        )


@contextmanager
def forwarded_logs(log: Log) -> Iterator[None]:
    handler = ForwardingHandler(log)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for each in loggers:
        each.addHandler(handler)
        each.propagate = False
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)
            each.propagate = True
