"""Detectors on disk, and the application without a socket."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from discopatch.export import export_detector
from discopatch.serve.app import create_app
from discopatch.serve.settings import ServeSettings
from tests.export.samples import tiny_detector
from tests.samples import one_camera
from tests.serve.samples import NAME

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def detector_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detectors") / NAME
    tiny_detector().save(path)
    return path


@pytest.fixture(scope="session")
def export_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / NAME
    export_detector(tiny_detector(), folder, reference=one_camera(8, seed=5))
    return folder


@pytest.fixture
def serve(export_folder: Path) -> Iterator[Serve]:
    """Starts the application with an export, unless other detectors are given; all are closed at the end."""
    opened: list[TestClient] = []

    def start(*, headers: dict[str, str] | None = None, log: Any = None, **settings: Any) -> TestClient:
        chosen = ServeSettings(**{"detectors": {NAME: export_folder}, "threads": 2, **settings})
        app = create_app(chosen, **({"log": log} if log else {}))
        client = TestClient(app, base_url="http://127.0.0.1", headers=headers or {}, raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)
