"""A client's predictions are those of the detector, to the bit, over a real socket."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import discopatch
from discopatch import Client, ImageError, ParameterError, ServiceError
from discopatch.client import in_groups
from tests.export.samples import tiny_detector
from tests.samples import TOO_SMALL, one_camera, save_images
from tests.serve.samples import NAME, Running, noise, running

TOKEN = "k" * 40


@pytest.fixture(scope="module")
def detector_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / NAME
    tiny_detector().save(path)
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, detector_path: Path) -> Iterator[Running]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    arguments = (detector_path, "--no-history", "--device", "cpu", "--token-file", tokens, "--max-files", "5")
    with running(tmp_path_factory.mktemp("service"), *arguments, "--max-bytes", "1M") as made:
        yield made


@pytest.fixture
def client(service: Running) -> Iterator[Client]:
    with Client(service.address, token=TOKEN, tries=2) as made:
        yield made


@pytest.fixture
def local(detector_path: Path) -> discopatch.Detector:
    found = discopatch.load(detector_path, device="cpu", max_bytes=10**6)
    assert isinstance(found, discopatch.Detector)
    return found


def test_a_folder_is_predicted_as_by_the_detector(client: Client, local: discopatch.Detector, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    save_images(folder, one_camera(13, seed=4, size=90))
    (folder / "bad.jpg").write_bytes(b"nothing")
    (folder / "empty.png").write_bytes(b"")
    (folder / "large.png").write_bytes(b"x" * 1_200_000)
    (folder / "größe \u202e\n.png").write_bytes((folder / "temple-0.png").read_bytes())
    (folder / "grey.png").unlink(missing_ok=True)
    Image.fromarray(noise(64)[:, :, 0]).save(folder / "grey.tif")
    found = client.predict(folder)
    assert found == local.predict(folder)
    assert len(found) == 18
    assert sum(error is not None for error in found.errors) == 3


def test_arrays_and_single_files_and_bytes_are_too(client: Client, local: discopatch.Detector, tmp_path: Path) -> None:
    images = one_camera(3, seed=4, size=90)
    (path,) = save_images(tmp_path, images[:1])
    source: list[Any] = [
        np.stack([image.pixels for image in images]),
        noise(70)[:, :, 0],
        noise(70).astype(np.float32) / 255,
        Image.fromarray(noise(50)),
        path,
        path.read_bytes(),
        images[1],
        TOO_SMALL,
        tmp_path / "missing.png",
    ]
    found = client.predict(source)
    assert found == local.predict(source)
    assert len(found) == 11
    assert client.predict(path) == local.predict(path)
    with pytest.raises(discopatch.NoImagesError):
        client.predict(tmp_path / "nothing")


def test_an_explanation_is_the_same(client: Client, local: discopatch.Detector) -> None:
    image = one_camera(1, seed=4, size=90)[0]
    found, wanted = client.explain(image), local.explain(image)
    assert found.prediction == wanted.prediction
    assert (found.image == wanted.image).all()
    assert (found.anomaly_map == wanted.anomaly_map).all()
    assert found.reasons == wanted.reasons
    assert found.components == wanted.components
    with pytest.raises(ImageError):
        client.explain(b"no image")
    with pytest.raises(ImageError):
        client.explain(TOO_SMALL)


def test_detectors_and_monitor_are_told(client: Client) -> None:
    (short,) = client.detectors()
    assert short["name"] == NAME
    assert client.describe()["guarantee"]["n_calibration"] == len(tiny_detector().calibration_scores_)
    before = client.monitor()["images"]
    client.predict(one_camera(2))
    assert client.monitor()["images"] == before + 2


def test_problems_are_errors_with_their_status(service: Running) -> None:
    with Client(service.address, token="wrong", tries=1) as client, pytest.raises(ServiceError) as refused:
        client.detectors()
    assert refused.value.status == 401
    with Client(service.address, token=TOKEN) as client, pytest.raises(ServiceError) as missing:
        client.predict(one_camera(1), detector="other")
    assert missing.value.status == 404
    with Client("http://127.0.0.1:1", tries=1) as client, pytest.raises(ServiceError) as unreachable:
        client.detectors()
    assert unreachable.value.status is None
    with pytest.raises(ParameterError):
        Client(service.address, tries=0)


class Busy(http.server.BaseHTTPRequestHandler):
    """Too busy, twice, then not there once; then it answers."""

    answers: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        status = self.answers.pop(0)
        if status == 0:
            return
        self.send_response(status)
        body = json.dumps({"detectors": [], "detail": "busy"}).encode()
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def busy() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_busy_service_is_asked_again_but_not_for_ever(busy: str) -> None:
    Busy.answers[:] = [429, 503, 0, 200]
    with Client(busy, tries=4) as client:
        assert client.detectors() == []
    assert Busy.answers == []
    Busy.answers[:] = [429] * 3
    with Client(busy, tries=3) as client, pytest.raises(ServiceError) as refused:
        client.detectors()
    assert refused.value.status == 429
    assert Busy.answers == []


def test_images_are_sent_in_groups_within_the_limits() -> None:
    from discopatch.client import Upload

    limits = {"max_files": 3, "max_request_bytes": 10_000}
    uploads = [Upload(str(size), bytes(size)) for size in (1000, 1000, 1000, 1000, 9000, 5000, 4000, 20_000)]
    groups = [[upload.name for upload in group] for group in in_groups(iter(uploads), limits)]
    assert groups == [["1000", "1000", "1000"], ["1000"], ["9000"], ["5000"], ["4000"], ["20000"]]
