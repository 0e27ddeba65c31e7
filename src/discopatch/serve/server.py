"""The service as a process: socket, signals and log."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType

import uvicorn
from PIL import _imaging

from discopatch.errors import ParameterError, StoreError
from discopatch.serve.app import create_app
from discopatch.serve.limits import ProblemError
from discopatch.serve.metrics import log_event
from discopatch.serve.service import Service
from discopatch.serve.settings import ServeSettings

BACKLOG = 512
KEEP_ALIVE_SECONDS = 15
PIXEL_BLOCK = 2**26  # bytes; glibc returns what is above 32 MiB to the system, and keeps less for each thread


def run(settings: ServeSettings, *, announce: Callable[[str], object] = print) -> None:
    """Serves until SIGTERM or Ctrl-C; `announce` is called with the address once requests are answered."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("discopatch.serve").setLevel(logging.INFO)
    _imaging.set_block_size(PIXEL_BLOCK)
    with bound_socket(settings.host, settings.port) as listener:
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            limit_concurrency=settings.max_connections,
        )
        host, port = listener.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

        def started() -> None:
            log_event(logging.INFO, "listening", address=address, detectors=list(settings.detectors))
            announce(address)

        Server(config, app.state.service, started).run([listener])
        service: Service = app.state.service
        if unwritten := service.unwritten:
            raise StoreError(f"{unwritten:,} answered images are not in the history: {service.history_error}")
        log_event(logging.INFO, "stopped")


class Server(uvicorn.Server):
    """A server that finishes accepted requests after the first signal and ends at once after the second.

    SIGHUP reloads detectors and tokens.
    """

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_start = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if hasattr(signal, "SIGHUP"):
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = self._service.is_stopping = True

    def _reload(self) -> None:
        async def reload() -> None:
            with suppress(ProblemError):  # it is logged
                await self._service.reload()

        self._task = asyncio.get_running_loop().create_task(reload())  # the loop keeps a weak reference only


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket with its address, before detectors are loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ParameterError(f"cannot listen on {host}:{port} ({error}): choose another --host or --port") from None


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        if hasattr(record, "fields"):
            line |= {"event": record.getMessage(), **record.fields}
        else:
            line |= {"event": "server", "logger": record.name, "detail": record.getMessage().strip()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
