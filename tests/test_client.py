"""The client over a real socket: its predictions are those of the detector, to the bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from discopatch import Client, Detector
from discopatch.client import in_groups
from discopatch.errors import ImageError, NoImagesError, ParameterError, ServiceError
from discopatch.groups import group_names
from tests.samples import TOO_SMALL, one_camera, save_images
from tests.serve.samples import NAME, RECENT, noise, served, wait_until

TOKEN = "k" * 40


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, detector_file: Path) -> Iterator[str]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    with served(detectors={NAME: detector_file}, token_file=tokens, max_files=5, max_bytes=10**6) as made:
        yield made


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, token=TOKEN, tries=2) as made:
        yield made


@pytest.fixture
def local(detector_file: Path) -> Detector:
    return Detector.load(detector_file, device="cpu", max_bytes=10**6)


def test_a_folder_is_predicted_as_by_the_detector(client: Client, local: Detector, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    save_images(folder, one_camera(7, seed=4, size=90))
    (folder / "bad.jpg").write_bytes(b"nothing")
    (folder / "empty.png").write_bytes(b"")
    (folder / "large.png").write_bytes(b"x" * 1_200_000)
    (folder / "größe \u202e\n.png").write_bytes((folder / "temple-0.png").read_bytes())
    Image.fromarray(noise(64)[:, :, 0]).save(folder / "grey.tif")
    found = client.predict(folder)
    assert found == local.predict(folder)
    assert len(found) == 12
    assert sum(error is not None for error in found.errors) == 3
    assert sum(len(each.components) > 0 for each in found) == 9


def test_arrays_files_and_bytes_are_predicted_as_by_the_detector(
    client: Client, local: Detector, tmp_path: Path
) -> None:
    images = one_camera(2, seed=4, size=90)
    (path,) = save_images(tmp_path, images[:1])
    source: list[Any] = [
        np.stack([image.pixels for image in images]),
        noise(70).astype(np.float32) / 255,
        Image.fromarray(noise(50)),
        path,
        path.read_bytes(),
        images[1],
        TOO_SMALL,
        tmp_path / "missing.png",
    ]
    assert client.predict(source) == local.predict(source)
    for _ in range(2):
        client.predict(noise(70))
    wait_until(
        lambda: client._json("GET", RECENT)["images"] == client.monitor()["images"] + client.monitor()["refused"]
    )
    entries = client._json("GET", RECENT, params={"limit": 2})["entries"]
    assert len(set(group_names([each["name"] for each in entries], "name"))) == 2, "the service has unique names"
    with pytest.raises(NoImagesError):
        client.predict(tmp_path / "nothing")


def test_an_explanation_is_that_of_the_detector(client: Client, local: Detector) -> None:
    image = one_camera(1, seed=4, size=90)[0]
    found, wanted = client.explain(image), local.explain(image)
    assert (found.prediction, found.reasons, found.components) == (wanted.prediction, wanted.reasons, wanted.components)
    assert (found.image == wanted.image).all()
    assert found.regions == wanted.regions
    assert (found.anomaly_map == wanted.anomaly_map).all()
    for refused in (b"no image", TOO_SMALL):
        with pytest.raises(ImageError):
            client.explain(refused)


def test_detectors_and_monitor_are_described(client: Client, local: Detector) -> None:
    assert client.detectors() == [client.describe()]
    assert client.describe(NAME)["n_calibration"] == len(local.calibration_scores_)
    before = client.monitor()["images"]
    client.predict(one_camera(2))
    assert client.monitor()["images"] == before + 2


def test_problems_are_errors_with_their_status(address: str) -> None:
    with Client(address, token="wrong", tries=1) as client, pytest.raises(ServiceError) as refused:
        client.detectors()
    assert refused.value.status == 401
    with Client(address, token=TOKEN) as client, pytest.raises(ServiceError) as missing:
        client.predict(one_camera(1), detector="other")
    assert missing.value.status == 404
    for unusable in ("http://127.0.0.1:1", "nowhere://x"):
        with Client(unusable, tries=1) as client, pytest.raises(ServiceError) as unreachable:
            client.detectors()
        assert unreachable.value.status is None
    with pytest.raises(ParameterError):
        Client(address, tries=0)


def test_a_request_to_a_busy_service_is_repeated_a_limited_number_of_times() -> None:
    answers = [503, 0, 429, 200]

    def answer(request: httpx.Request) -> httpx.Response:
        status = answers.pop(0)
        if status == 0:
            raise httpx.ConnectError("closed")
        return httpx.Response(status, json={"detectors": [], "detail": "busy"}, headers={"Retry-After": "0"})

    for status, tries in ((200, 4), (503, 2)):
        with Client("http://camera", tries=tries) as client:
            client._http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://camera")
            if status == 200:
                assert client.detectors() == []
            else:
                answers[:] = [503] * 2
                with pytest.raises(ServiceError) as refused:
                    client.detectors()
                assert refused.value.status == 503
        assert answers == []


def test_all_attempts_of_a_request_have_one_key(address: str) -> None:
    keys: list[str | None] = []

    def lose_answers(response: httpx.Response) -> None:
        if response.request.method == "POST":
            keys.append(response.request.headers.get("idempotency-key"))
            if len(keys) < 3:
                raise httpx.ReadError("lost")

    with Client(address, token=TOKEN, tries=3) as client:
        before = client.monitor()["images"]
        client._http.event_hooks["response"] = [lose_answers]
        client.predict(one_camera(2))
        assert len(keys) == 3
        assert len(set(keys)) == 1
        assert client.monitor()["images"] == before + 2
        client.predict(one_camera(2))
        assert client.monitor()["images"] == before + 4


def test_images_are_sent_in_groups_within_the_limits() -> None:
    limits = {"max_files": 3, "max_request_bytes": 10_000}
    uploads = [(str(size), bytes(size)) for size in (1000, 1000, 1000, 1000, 9000, 5000, 4000, 20_000)]
    groups = [[name for name, _ in group] for group in in_groups(iter(uploads), limits)]
    assert groups == [["1000", "1000", "1000"], ["1000"], ["9000"], ["5000"], ["4000"], ["20000"]]
