"""The application without a socket, and `discopatch serve` as a process."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from discopatch.serve.app import create_app
from discopatch.serve.settings import ServeSettings
from tests.samples import new_detector, one_camera
from tests.serve.samples import NAME

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def other_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of another detector."""
    path = tmp_path_factory.mktemp("other") / "other.safetensors"
    new_detector(head="statistics").fit(one_camera(60, seed=8), workers=1).save(path)
    return path


@pytest.fixture
def serve(detector_file: Path) -> Iterator[Serve]:
    """Starts the application, by default with the shared detector; all are closed at the end."""
    opened: list[TestClient] = []

    def start(**settings: Any) -> TestClient:
        app = create_app(ServeSettings(**{"detectors": {NAME: detector_file}, "device": "cpu", **settings}))
        client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)


class Gate:
    """Holds every batch of a running application until it is opened."""

    def __init__(self, client: TestClient) -> None:
        self._detector = client.app.state.service.loaded[NAME].detector  # type: ignore[attr-defined]
        self._predict = self._detector.predict_images
        self._opened = threading.Event()
        self.batches: list[list[str]] = []  # names of the images scored together

    def __enter__(self) -> "Gate":
        self._detector.predict_images = self._wait
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.set()

    def _wait(self, items: list[Any], **options: Any) -> Any:
        self.batches.append([item.name for item in items])
        assert self._opened.wait(60)
        return self._predict(items, **options)
