"""Clients and machines that misbehave, against a service in a process of its own."""

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import discopatch
from discopatch.history import History
from tests.cli.test_outputs import mounted
from tests.images.bombs import png_chunk
from tests.samples import new_detector, one_camera
from tests.serve.samples import NAME, SCORE, Running, answer, camera_files, form, named, noise, png, running
from tests.serve.test_queue import wait_until

HEADER = f"POST {SCORE} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
# Clocks of seconds, so that a test need not wait for minutes.
HASTY = """
from discopatch.serve import limits, settings
limits.GRACE_SECONDS = 0.5
settings.ServeSettings.__dataclass_fields__["header_seconds"].default = 1.0
settings.ServeSettings.__init__.__kwdefaults__["header_seconds"] = 1.0
settings.ServeSettings.__init__.__kwdefaults__["body_seconds"] = 3.0
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, export_folder: Path) -> Iterator[Running]:
    """One for all that should leave no trace."""
    arguments = (export_folder, "--no-history", "--max-connections", "60", "--max-pixels", "4M")
    with running(tmp_path_factory.mktemp("service"), *arguments, limits=HASTY) as made:
        yield made
        with made.client() as client:
            wait_until(lambda: "discopatch_queue_bytes 0.0" in client.get("/metrics").text)
        assert made.stop() == 0
        assert not [line for line in made.lines() if line["level"] == "error"]


def still_scores(service: Running, path: Path) -> bool:
    files = camera_files(2)
    with service.client() as client:
        found = client.post(SCORE, files=form(files))
    wanted = discopatch.load(path).predict(named(files)).scores.tolist()
    return bool([each["score"] for each in found.json()["predictions"]] == wanted)


def test_headers_that_never_end_are_cut_off(service: Running, export_folder: Path) -> None:
    connections = [service.connect() for _ in range(40)]
    for connection in connections[:20]:
        connection.sendall(HEADER.encode())
    assert still_scores(service, export_folder)
    for connection in connections:
        assert answer(connection) == b""
        connection.close()


def test_bodies_that_come_drop_by_drop_are_refused(service: Running, export_folder: Path) -> None:
    connections = []
    for _ in range(20):
        connection = service.connect()
        connection.sendall(f"{HEADER}Content-Length: 1000000\r\n\r\n".encode() + b"x" * 100)
        connections.append(connection)
    assert still_scores(service, export_folder)
    for connection in connections:
        found = answer(connection)
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b"too-slow" in found
        connection.close()


def test_too_many_connections_are_refused(service: Running) -> None:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(service.connect()) for _ in range(70)]
        last = opened[-1]
        assert answer(last).startswith(b"HTTP/1.1 429 ")
    with service.client() as client:
        wait_until(lambda: is_live(client))


def is_live(client: httpx.Client) -> bool:
    try:
        return client.get("/v2/health/live").status_code == 200
    except httpx.TransportError:
        return False


def test_uploads_that_are_aborted_leave_nothing(service: Running, export_folder: Path) -> None:
    for sent in (0, 10, 100_000, 900_000):
        for _ in range(10):
            with service.connect() as connection:
                connection.sendall(f"{HEADER}Content-Length: 1000000\r\n\r\n".encode() + b"x" * sent)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n' + b"y" * 10_000
    header = HEADER.replace("image/png", "multipart/form-data; boundary=x")
    for _ in range(10):
        with service.connect() as connection:
            connection.sendall(f"{header}Content-Length: 1000000\r\n\r\n".encode() + body)
    with service.client() as client:
        wait_until(lambda: "discopatch_queue_bytes 0.0" in client.get("/metrics").text)
    assert still_scores(service, export_folder)


def test_clients_that_do_not_wait_have_their_images_dropped(service: Running, export_folder: Path) -> None:
    body = httpx.Request("POST", service.address, files=form([("a.png", png(noise(1000)))] * 30))
    content = body.read()
    header = HEADER.replace("image/png", body.headers["content-type"])
    with service.connect() as connection:
        connection.sendall(f"{header}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        with service.client() as client:
            wait_until(lambda: "discopatch_queue_images 0.0" not in client.get("/metrics").text)
    with service.client() as client:
        wait_until(lambda: "discopatch_queue_images 0.0" in client.get("/metrics").text)
        images = client.get(f"/v1/detectors/{NAME}/monitor").json()["images"]
    wait_until(lambda: any(line.get("status") == 499 for line in service.lines()))
    assert images < 30
    assert still_scores(service, export_folder)


def test_a_bomb_is_one_error(service: Running, export_folder: Path) -> None:
    side = 40_000
    header = png_chunk(b"IHDR", side.to_bytes(4) + side.to_bytes(4) + b"\x08\x02\0\0\0")
    bomb = b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(bytes(10**7), 9)) + png_chunk(b"IEND", b"")
    before = memory_of(service)
    with service.client() as client:
        for _ in range(10):
            found = client.post(SCORE, files=form([("bomb.png", bomb)] * 5)).json()["predictions"]
            assert all(each["error"].startswith("too_large") for each in found)
    assert memory_of(service) - before < 200 * 2**20
    assert still_scores(service, export_folder)


def memory_of(service: Running) -> int:
    pages = Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_no_http_is_a_problem(service: Running) -> None:
    for sent in (b"\x16\x03\x01\x02\0\x01\0", b"NONSENSE\r\n\r\n", b"x" * 100_000):
        with service.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
            assert answer(connection)[:13] in (b"HTTP/1.1 400 ", b"")


def test_ten_thousand_wrong_tokens_open_nothing(tmp_path: Path, export_folder: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 40)
    tokens.chmod(0o600)
    with running(tmp_path, export_folder, "--no-history", "--token-file", tokens) as service:
        request = "GET /v1/detectors HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\n\r\n"
        with service.connect() as connection:
            reader = connection.makefile("rb")
            for start in range(0, 10_000, 100):
                connection.sendall("".join(request.format(f"{start + each:040d}") for each in range(100)).encode())
                for _ in range(100):
                    assert reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
                    headers = dict(iter(lambda: read_header(reader), (b"", b"")))
                    reader.read(int(headers[b"content-length"]))
        with service.client(headers={"X-API-Key": "t" * 40}) as client:
            assert client.get("/v1/detectors").status_code == 200
            assert 'status="401"} 10000.0' in client.get("/metrics").text


def read_header(reader: Any) -> tuple[bytes, bytes]:
    name, _, value = reader.readline().strip().partition(b": ")
    return name.lower(), value


def load(service: Running, *, until: int) -> int:
    """Kills the service while three clients use it, after so many answers at least; how many there were."""
    found = [0, 0, 0]

    def post(number: int) -> None:
        with contextlib.suppress(httpx.TransportError), service.client() as client:
            while True:
                found[number] += len(client.post(SCORE, files=form(camera_files(4))).json()["predictions"])

    threads = [threading.Thread(target=post, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(found) > until)
    service.stop(signal.SIGKILL)
    for thread in threads:
        thread.join()
    return sum(found)


@pytest.mark.slow
def test_a_killed_service_leaves_a_whole_history(tmp_path: Path, export_folder: Path) -> None:
    history = tmp_path / "history.sqlite"
    numbers: list[int] = []
    for until in (40, 80, 120):
        with running(tmp_path, export_folder, "--history", history) as service:
            with service.client() as client:
                monitor = client.get(f"/v1/detectors/{NAME}/monitor").json()
            assert monitor["images"] == len(numbers), "the state is that after exactly the images of the history"
            answered = load(service, until=until)
        with contextlib.closing(sqlite3.connect(history)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            before = len(numbers)
            numbers = [number for (number,) in database.execute("SELECT id FROM predictions ORDER BY id")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert before < len(numbers) <= before + answered + 12, "of those in flight some may be there"
    with running(tmp_path, export_folder, "--history", history) as service:
        assert still_scores(service, export_folder)
        assert service.stop() == 0
        with History(history) as after:
            assert after.counts(NAME).images == len(numbers) + 2


def test_a_full_disk_for_the_history_is_said_and_scoring_goes_on(tmp_path: Path, export_folder: Path) -> None:
    files = [(f"{'x' * 250}-{name}", data) for name, data in camera_files(20)]
    with (
        mounted(tmp_path / "disk", "size=300k") as disk,
        running(tmp_path, export_folder, "--history", disk / "history.sqlite") as service,
        service.client() as client,
    ):
        for _ in range(60):
            assert client.post(SCORE, files=form(files)).status_code == 200
            if client.get("/v2/health/ready").json()["history"]:
                break
        assert "free some space" in client.get("/v2/health/ready").json()["history"]
        assert client.get("/v2/health/ready").json()["ready"] is True
        assert "discopatch_history_failing 1.0" in client.get("/metrics").text
        assert still_scores(service, export_folder)
        assert service.stop() == 0


@pytest.mark.slow
def test_a_detector_replaced_under_load_is_swapped_at_once(tmp_path: Path, detector_file: Path) -> None:
    own = Path(shutil.copy(detector_file, tmp_path / NAME))
    files = camera_files(3)
    old = discopatch.load(own, device="cpu").predict(named(files)).scores.tolist()
    other = new_detector(head="combined").fit(one_camera(60, seed=8), workers=1)
    new = other.predict(named(files)).scores.tolist()
    with running(tmp_path, own, "--no-history", "--device", "cpu") as service, service.client() as client:
        seen: list[list[float]] = []
        stop = threading.Event()

        def post() -> None:
            with service.client() as mine:
                while not stop.is_set():
                    answered = mine.post(SCORE, files=form(files)).json()
                    seen.append([each["score"] for each in answered["predictions"]])

        threads = [threading.Thread(target=post) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(seen) > 5)
        other.save(own)
        assert client.post("/v1/reload").json()["changed"] == [NAME]
        there = len(seen)
        wait_until(lambda: len(seen) > there + 6)
        stop.set()
        for thread in threads:
            thread.join()
    assert {tuple(each) for each in seen} == {tuple(old), tuple(new)}, "no request has had both"
    assert seen[-1] == new
