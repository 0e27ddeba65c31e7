"""An answered image is in the history once, after kills and losses of the server, also with several services."""

import contextlib
import itertools
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from discopatch import Detector, Monitor, Runtime
from discopatch.errors import StoreError
from discopatch.history import Entry, History
from discopatch.results import FittedDetector
from tests.postgres import PASSWORD, Server
from tests.serve.conftest import Serve
from tests.serve.samples import (
    MONITOR,
    NAME,
    RECENT,
    SCORE,
    Running,
    camera_files,
    noise,
    png,
    running,
    wait_until,
)

DATA = [data for _, data in camera_files(8)]
NOISE = png(noise(64))


def post(client: httpx.Client, name: str, data: bytes, key: str | None = None) -> httpx.Response:
    headers = {"Content-Type": "image/png"} | ({} if key is None else {"Idempotency-Key": key})
    return client.post(SCORE, params={"name": name}, content=data, headers=headers)


def checked(place: Path | str, detector: FittedDetector, names: Sequence[str] | None = None) -> list[Entry]:
    """The entries, whose evidence is that of one monitor in the order of their ids, and the state is the last."""
    monitor = Monitor(detector)
    with History(place) as history:
        entries, state, counts = history.following(NAME, 0, 10**6), history.state(NAME), history.counts(NAME)
    for entry in entries:
        assert entry.evidence == monitor.update(entry.prediction).log10_evidence
    assert state is not None
    assert Monitor.from_bytes(state, detector).status == monitor.status
    found = [entry.prediction.name for entry in entries]
    assert len(set(found)) == len(found) == counts.images
    if names is not None:
        assert sorted(found) == sorted(names)
    return entries


class Clients:
    """Clients that send images with keys to addresses in turn until each is answered; all run until the block ends."""

    def __init__(self, addresses: Sequence[str], count: int = 4) -> None:
        self._addresses, self._count = addresses, count
        self.answered: list[str] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator[list[str]]:
        self._is_ended = self._is_failed = False
        with ThreadPoolExecutor(self._count) as pool:
            jobs = [pool.submit(self._run, number) for number in range(self._count)]
            try:
                yield self.answered
            except BaseException:
                self._is_failed = True
                raise
            finally:
                self._is_ended = True
            for job in jobs:
                job.result()

    def _run(self, client: int) -> None:
        for number in itertools.count():
            if self._is_ended:
                return
            name = f"{client}-{number}-x"
            for attempt in itertools.count(client + number):
                if self._is_failed:
                    return
                address = self._addresses[attempt % len(self._addresses)]
                with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=address, trust_env=False) as http:
                    answer = post(http, name, DATA[number % len(DATA)], key=name)
                    if answer.status_code == 200:
                        assert answer.json()["predictions"][0]["name"] == name
                        self.answered.append(name)
                        break
                    assert answer.status_code == 503, answer.text
                time.sleep(0.05)


@pytest.mark.slow
def test_services_on_one_database_are_one(
    tmp_path: Path, postgres: Server, export_folder: Path, runtime: Runtime
) -> None:
    address = postgres.new_database()
    arguments = (f"{NAME}={export_folder}", "--history", address)
    with (
        running(tmp_path / "1", *arguments) as first,
        running(tmp_path / "2", *arguments) as second,
        first.client() as one,
        second.client() as other,
    ):
        with Clients([first.address, second.address])() as answered:
            wait_until(lambda: len(answered) > 40)
        entries = checked(address, runtime, answered)
        wait_until(lambda: one.get(MONITOR).json() == other.get(MONITOR).json())
        assert one.get(RECENT).json() == other.get(RECENT).json()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda number: post([one, other][number % 2], "same", DATA[0], key="same"), range(8)))
        assert len({str(each.json()["predictions"]) for each in found}) == 1
        assert post(other, "same", DATA[1], key="same").status_code == 422
        assert len(checked(address, runtime)) == len(entries) + 1
        for number in range(100):
            if post([one, other][number % 2], f"noise-{number}-x", NOISE).json()["monitor"]["alarm"]:
                break
        wait_until(lambda: one.get(MONITOR).json() == other.get(MONITOR).json())
        assert len(other.get(MONITOR).json()["alarms"]) == 1
        checked(address, runtime)
        assert one.post(f"{MONITOR}/restart").json()["images"] == 0
        wait_until(lambda: other.get(MONITOR).json()["images"] == 0)
        assert post(other, "last-x", DATA[0]).json()["monitor"]["images"] == 1
        assert (first.stop(), second.stop()) == (0, 0)
    assert all(PASSWORD not in (tmp_path / each / "log.jsonl").read_text() for each in "12")


@pytest.mark.slow
def test_a_kill_and_a_crash_of_the_server_lose_no_answered_image(
    tmp_path: Path, postgres: Server, export_folder: Path, runtime: Runtime
) -> None:
    address = postgres.new_database()
    arguments = (f"{NAME}={export_folder}", "--history", address)
    with running(tmp_path / "1", *arguments) as first, running(tmp_path / "2", *arguments) as second:
        addresses = [first.address, second.address]
        with Clients(addresses)() as answered, second.client() as client:

            def wait_for(more: int) -> None:
                count = len(answered)
                wait_until(lambda: len(answered) >= count + more)

            wait_for(20)
            for mode in ("immediate", "fast"):
                postgres.stop(mode)
                wait_until(lambda: client.get("/v2/health/ready").status_code == 503)
                assert "discopatch_history_failing 1.0" in client.get("/metrics").text
                assert client.get(RECENT).status_code == 503
                wait_for(5)
                postgres.start()
                for each in (first, second):
                    with each.client() as asked:
                        wait_until(lambda asked=asked: asked.get("/v2/health/ready").status_code == 200)  # type: ignore[misc]
                wait_for(20)
            first.stop(signal.SIGKILL)
            wait_for(20)
        assert second.stop() == 0
        assert not second.lines("unexpected")
    checked(address, runtime, answered)


@pytest.mark.slow
def test_a_killed_service_has_every_answered_image_in_its_file(
    tmp_path: Path, export_folder: Path, runtime: Runtime
) -> None:
    path, answered, addresses = tmp_path / "history.sqlite", list[str](), list[str]()
    clients = Clients(addresses)

    def start() -> contextlib.AbstractContextManager[Running]:
        return running(tmp_path, f"{NAME}={export_folder}", "--history", path)

    with contextlib.ExitStack() as stack:
        service = stack.enter_context(start())
        addresses.append(service.address)
        with clients() as answered:
            wait_until(lambda: len(answered) > 20)
            service.stop(signal.SIGKILL)
            names = list(answered)
            assert {each.prediction.name for each in checked(path, runtime)} >= set(names)
            again = stack.enter_context(start())
            addresses[0] = again.address
            wait_until(lambda: len(answered) > len(names) + 20)
        assert again.stop() == 0
    checked(path, runtime, answered)


@pytest.mark.slow
def test_a_service_with_another_detector_adds_no_evidence_until_it_is_reloaded(
    serve: Serve, postgres: Server, tmp_path: Path, detector_file: Path, other_file: Path
) -> None:
    address, paths = postgres.new_database(), [tmp_path / "1", tmp_path / "2"]
    clients: list[Any] = [
        serve(detectors={NAME: Path(shutil.copy(detector_file, path))}, history=address) for path in paths
    ]

    def counted() -> list[int]:
        return [client.get(MONITOR).json()["images"] for client in clients]

    assert [post(client, f"{number}-x", DATA[0]).status_code for number, client in enumerate(clients)] == [200, 200]
    wait_until(lambda: counted() == [2, 2])
    shutil.copy(other_file, paths[0])
    assert clients[0].post("/v1/reload").json()["changed"] == [NAME]
    wait_until(lambda: counted()[0] == 0)
    assert post(clients[0], "2-x", DATA[0]).json()["monitor"]["images"] == 1
    post(clients[1], "3-x", DATA[0])
    with History(address) as history:
        assert [each.evidence is None for each in history.recent(NAME)] == [True, False, False, False]
    shutil.copy(other_file, paths[1])
    clients[1].post("/v1/reload")
    assert post(clients[1], "4-x", DATA[0]).json()["monitor"]["images"] == 2
    wait_until(lambda: counted() == [2, 2])


def test_a_repeated_request_gets_its_first_answer_after_a_restart(
    serve: Serve, tmp_path: Path, detector: Detector
) -> None:
    options = {"history": str(tmp_path / "history.sqlite")}
    first = serve(**options)
    answer = post(first, "a-x", DATA[0], key="a").json()["predictions"]  # type: ignore[arg-type]
    first.__exit__(None, None, None)
    second = serve(**options)
    assert post(second, "b-x", DATA[0], key="a").json()["predictions"] == answer  # type: ignore[arg-type]
    assert post(second, "a-x", DATA[1], key="a").status_code == 422  # type: ignore[arg-type]
    second.__exit__(None, None, None)
    checked(Path(options["history"]), detector, ["a-x"])


def test_requests_with_one_key_count_once_while_the_history_fails(
    serve: Serve, tmp_path: Path, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, is_away = tmp_path / "history.sqlite", True
    transaction: Any = History.transaction

    def fail(self: History) -> Any:
        if is_away:
            raise StoreError("the server is away")
        return transaction(self)

    monkeypatch.setattr(History, "transaction", fail)
    client: Any = serve(history=str(path))
    answers = [post(client, "a-x", DATA[0], key="a").json()["predictions"] for _ in range(3)]
    wait_until(lambda: "the server is away" in client.get("/v2/health/ready").json().get("detail", ""))
    assert "discopatch_history_failing 1.0" in client.get("/metrics").text
    assert answers[0] == answers[1] == answers[2]
    assert post(client, "a-x", DATA[1], key="a").status_code == 422
    is_away = False
    wait_until(lambda: client.get("/v2/health/ready").status_code == 200)
    client.__exit__(None, None, None)
    checked(path, detector, ["a-x"])
