"""`discopatch serve` as a process: without torch, under load, killed, and with clients that misbehave."""

import contextlib
import gc
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

import discopatch
from discopatch import Detector, Runtime
from discopatch.history import History
from tests.cli.test_outputs import mounted
from tests.serve.samples import (
    DETECTOR,
    EXPLAIN,
    MONITOR,
    NAME,
    RECENT,
    SCORE,
    Running,
    camera_files,
    form,
    noise,
    png,
    rows_of,
    running,
    served,
    wait_until,
)

HEADER = f"POST {SCORE} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"


def read_events(lines: Iterator[str], count: int) -> list[dict[str, Any]]:
    """The first events of a stream."""
    found: list[dict[str, Any]] = []
    event: dict[str, Any] = {}
    while len(found) < count:
        name, _, value = next(lines).partition(": ")
        if name:
            event[name] = json.loads(value) if name == "data" else value
        elif "event" in event:
            found.append(event)
            event = {}
    return found


def test_an_export_is_served_without_torch_until_sigterm(tmp_path: Path, export_folder: Path, runtime: Runtime) -> None:
    history, files = tmp_path / "history.sqlite", [*camera_files(2), ("bad", b"x")]
    arguments = (f"{NAME}={export_folder}", "--history", history)
    with running(tmp_path, *arguments, without_torch=True) as service, service.client() as client:
        with client.stream("GET", f"{DETECTOR}/events") as stream:
            lines = stream.iter_lines()
            assert read_events(lines, 1)[0]["event"] == "monitor"
            answer = client.post(SCORE, files=form(files), headers={"X-Request-ID": "mine"})
            assert answer.json()["predictions"] == rows_of(runtime, files)
            found = [each["data"] for each in read_events(lines, 4) if each["event"] == "prediction"]
        entries = client.get(RECENT).json()["entries"][::-1]
        assert found == entries
        with client.stream("GET", f"{DETECTOR}/events", headers={"Last-Event-ID": str(entries[0]["id"])}) as stream:
            again = read_events(stream.iter_lines(), 2)
        assert [(each["id"], each["data"]) for each in again] == [(str(each["id"]), each) for each in entries[1:]]
        assert client.post(EXPLAIN, files=form(files[:1])).status_code == 200
        for path in ("/", "/metrics", "/openapi.json", DETECTOR):
            assert client.get(path).status_code == 200
        (line,) = [each for each in service.lines("request") if each["request_id"] == "mine"]
        assert (line["status"], line["images"], line["refused"]) == (200, 3, 1)
        with client.stream("GET", f"{DETECTOR}/events"):
            large = [("large.png", png(noise(1000)))] * 6
            answers: list[httpx.Response] = []
            thread = threading.Thread(target=lambda: answers.append(service.client().post(SCORE, files=form(large))))
            thread.start()
            wait_until(lambda: "discopatch_queue_images 0.0" not in client.get("/metrics").text)
            assert service.stop() == 0, "a reader of events does not delay the end"
        thread.join()
        assert len(answers[0].json()["predictions"]) == 6, "accepted requests are answered"
        assert service.lines("stopped")
    with History(history) as kept:
        assert kept.counts(NAME).images == 9


@pytest.mark.slow
def test_errors_at_the_start_are_one_line(tmp_path: Path, export_folder: Path) -> None:
    with running(tmp_path, export_folder, "--no-history") as service:
        port = service.address.rpartition(":")[2]
        for arguments, part in (
            ([export_folder, "--port", port, "--no-history"], "--port"),
            ([export_folder, "--history", export_folder / "detector.json", "--port", "0"], "detector.json"),
        ):
            code = "from discopatch.cli import main; main()"
            command = [sys.executable, "-c", code, "serve", *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
            lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
            assert (done.returncode, len(lines), part in lines[0]) == (1, 1, True), done.stderr


@pytest.mark.slow
def test_clients_that_misbehave_leave_nothing_behind(tmp_path: Path, export_folder: Path, runtime: Runtime) -> None:
    arguments = (f"{NAME}={export_folder}", "--no-history", "--max-request-bytes", "4M", "--max-bytes", "4M")
    with running(tmp_path, *arguments) as service, service.client() as client:

        def metrics() -> str:
            return client.get("/metrics").text

        for sent in (0, 10, 900_000):  # uploads that are aborted
            for _ in range(10):
                with service.connect() as connection:
                    connection.sendall(f"{HEADER}Content-Length: 1000000\r\n\r\n".encode() + b"x" * sent)
        wait_until(lambda: "discopatch_queue_bytes 0.0" in metrics())

        answer = client.post(SCORE, content=b"x" * 20_000_000, headers={"Content-Type": "image/png"})
        assert answer.status_code == 413, "the response arrives although the body was not read"

        for sent_bytes in (b"\x16\x03\x01\x02\0\x01\0", b"NONSENSE\r\n\r\n", b"x" * 100_000):
            with service.connect() as connection, contextlib.suppress(ConnectionError):
                connection.sendall(sent_bytes)
                assert connection.recv(13) in (b"HTTP/1.1 400 ", b"")

        files = camera_files(2)
        assert client.post(SCORE, files=form(files)).json()["predictions"] == rows_of(runtime, files)
        assert service.stop() == 0
        assert not service.lines("unexpected")


def test_images_of_clients_that_left_are_not_scored(
    export_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened, begun, predict = threading.Event(), list[Any](), Runtime.predict_images

    def hold(self: Runtime, items: Any, **options: Any) -> Any:
        begun.append(items)
        assert opened.wait(60)
        return predict(self, items, **options)

    ((_, content),) = camera_files(1)
    with served(detectors={NAME: export_folder}, threads=2) as address, httpx.Client(base_url=address) as client:

        def has(line: str) -> bool:
            return line in client.get("/metrics").text

        monkeypatch.setattr(Runtime, "predict_images", hold)
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                place = ("127.0.0.1", int(address.rpartition(":")[2]))
                connection = stack.enter_context(socket.create_connection(place, timeout=60))
                connection.sendall(f"{HEADER}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            wait_until(lambda: has("discopatch_queue_images 28.0"))
        wait_until(lambda: has("discopatch_queue_images 0.0"))
        wait_until(lambda: has('route="/v1/detectors/{name}/score",status="499"} 30.0'))
        opened.set()
        assert client.post(SCORE, files=form([("after.png", content)])).status_code == 200
        assert (len(begun), client.get(MONITOR).json()["images"]) == (3, 1), "two were being scored, and do not count"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets that earlier tests left to the collector
        gc.collect()
    assert not [each for each in caplog.records if each.name == "asyncio"], "errors that nobody retrieved"


def test_images_that_a_full_disk_keeps_out_of_the_history_are_counted_at_the_end(
    tmp_path: Path, detector_file: Path
) -> None:
    with mounted(tmp_path / "disk", "size=400k") as disk:
        arguments = (f"{NAME}={detector_file}", "--device", "cpu", "--history", disk / "history.sqlite")
        with running(tmp_path, *arguments) as service, service.client() as client:
            client.post(SCORE, files=form(camera_files(1)))
            wait_until(lambda: client.get(RECENT).json()["images"] == 1)
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while filler.write(bytes(1000)):
                    pass
            answered = 1
            assert client.get("/v2/health/ready").status_code == 200
            while client.get("/v2/health/ready").status_code == 200:
                assert client.post(SCORE, files=form(camera_files(5))).status_code == 200
                answered += 5
            stored = client.get(RECENT).json()["images"]
            assert service.stop() == 1
        (line,) = [line for line in (tmp_path / "log.jsonl").read_text().splitlines() if line[0] != "{"]
        assert f"{answered - stored} answered images" in line
        assert answered > stored


@pytest.mark.slow
def test_images_of_few_bytes_and_many_pixels_are_decoded_in_bounded_memory(tmp_path: Path, export_folder: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (9450, 9450), (9, 9, 9, 200)).save(buffer, "PNG")
    files = form([("large.png", buffer.getvalue())])
    with running(tmp_path, f"{NAME}={export_folder}", "--no-history", "--threads", "4") as service:
        with service.client() as client, ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(client.post, SCORE, files=files) for _ in range(4)]
            scores = {answer.result().json()["predictions"][0]["score"] for answer in answers}
            assert len(scores) == 1, "all are scored"
            assert None not in scores
        status = Path(f"/proc/{service.process.pid}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]
    assert peak < 1_500_000, "memory for one of them at a time; each takes about 0.7 GB"


@contextlib.contextmanager
def load(service: Running, answers: list[Any], *, clients: int = 3) -> Iterator[None]:
    """Clients that send images until the block or the service ends."""
    end = threading.Event()

    def post() -> None:
        with contextlib.suppress(httpx.TransportError), service.client() as client:
            while not end.is_set():
                answers.append(client.post(SCORE, files=form(camera_files(3))).json()["predictions"])

    threads = [threading.Thread(target=post) for _ in range(clients)]
    for thread in threads:
        thread.start()
    yield
    end.set()
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_sighup_under_load_swaps_the_detector_at_once(
    tmp_path: Path, detector: Detector, detector_file: Path, other_file: Path
) -> None:
    own, files = Path(shutil.copy(detector_file, tmp_path / NAME)), camera_files(3)
    old, new = (rows_of(each, files) for each in (detector, discopatch.load(other_file, device="cpu")))
    with running(tmp_path, own, "--no-history", "--device", "cpu") as service:
        answers: list[Any] = []
        with load(service, answers):
            wait_until(lambda: len(answers) > 3)
            Path(shutil.copy(other_file, tmp_path / "new")).replace(own)
            service.process.send_signal(signal.SIGHUP)
            wait_until(lambda: service.lines("reload"))
            assert service.lines("reload")[0]["changed"] == [NAME]
            there = len(answers)
            wait_until(lambda: len(answers) > there + 4)
            own.write_bytes(b"nothing")
            service.process.send_signal(signal.SIGHUP)
            wait_until(lambda: len(service.lines("reload")) == 2)
            assert service.lines("reload")[1]["level"] == "error"
        assert all(each in (old, new) for each in answers), "no request has predictions of both"
        assert answers[0] == old
        assert answers[-1] == new
