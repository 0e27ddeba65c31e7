"""The service in a thread of this process, at an address that a browser can open."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from discopatch.serve.app import create_app
from discopatch.serve.service import Service
from discopatch.serve.settings import ServeSettings

PATIENCE = 60.0


class Running:
    """A service that can be stopped and started again at the same port."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        app = create_app(self._settings)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self._port, log_config=None, ws="none", timeout_keep_alive=1
        )
        self._server = uvicorn.Server(config)
        self.service: Service = app.state.service
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + PATIENCE
        while not self._server.started:
            assert self._thread.is_alive(), "the service did not start"
            assert time.monotonic() < deadline, "the service does not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self.service.stop()
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def running(detectors: dict[str, Path], **settings: Any) -> Iterator[Running]:
    service = Running(ServeSettings(detectors=detectors, **settings))
    service.start()
    try:
        yield service
    finally:
        service.stop()
