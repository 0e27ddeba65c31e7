"""A bounded queue: full means 429, nobody waits for what nobody wants, and memory is counted."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from discopatch.images.items import Item
from discopatch.results import PredictedImage, Prediction
from discopatch.serve.batching import Scoring
from discopatch.serve.problems import ProblemError
from discopatch.serve.settings import ServeSettings
from tests.serve.conftest import Serve
from tests.serve.samples import SCORE, camera_files, form


class Gated:
    """A detector that waits for leave before each batch, and fails for images named bad."""

    def __init__(self, at_once: int) -> None:
        self.leave, self.entered = threading.Semaphore(0), threading.Semaphore(0)
        self.batches: list[list[str]] = []
        self.predictor: Any = self
        self.stream: Any = SimpleNamespace(record=lambda predicted: None)
        self._at_once = at_once

    def at_once(self, batch_size: int) -> int:
        return min(self._at_once, batch_size)

    def predict_images(self, items: list[Item], *, workers: int) -> Iterator[PredictedImage]:
        self.batches.append([item.name for item in items])
        self.entered.release()
        self.leave.acquire()
        for item in items:
            if item.name == "bad":
                raise RuntimeError("a bad image")
            yield PredictedImage(Prediction(item.name, 1.0, 0.5, False), None, None)


def items(*names: str) -> list[Item]:
    return [Item(name, b"x") for name in names]


def names(results: list[Any]) -> list[str]:
    return [each.prediction.name for each in results]


@pytest.fixture
def scoring() -> Iterator[Scoring]:
    made = Scoring(threads=1, batch_size=3, max_queue=4)
    yield made
    made.close()


def test_a_queue_takes_all_images_of_a_request_or_none(scoring: Scoring) -> None:
    async def act() -> None:
        gated = Gated(1)
        first = scoring.submit(gated, items("a"))  # type: ignore[arg-type]
        await asyncio.to_thread(gated.entered.acquire)
        second = scoring.submit(gated, items("b", "c"))  # type: ignore[arg-type]
        with pytest.raises(ProblemError) as refused:
            scoring.submit(gated, items("d", "e", "f"))  # type: ignore[arg-type]
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert len(scoring) == 2
        third = scoring.submit(gated, items("g", "h"))  # type: ignore[arg-type]
        gated.leave.release(5)
        assert names(await first.results) == ["a"]
        assert names(await second.results) == ["b", "c"]
        assert names(await third.results) == ["g", "h"]

    asyncio.run(act())


def test_images_of_several_requests_pass_together(scoring: Scoring) -> None:
    async def act() -> None:
        gated = Gated(8)
        first = scoring.submit(gated, items("a"))  # type: ignore[arg-type]
        await asyncio.to_thread(gated.entered.acquire)
        others = [scoring.submit(gated, items(*each)) for each in ("bc", "de")]  # type: ignore[arg-type]
        gated.leave.release(9)
        for ticket in (first, *others):
            await ticket.results
        assert gated.batches == [["a"], ["b", "c", "d"], ["e"]]

    asyncio.run(act())


def test_a_failure_is_that_of_its_own_image(scoring: Scoring) -> None:
    async def act() -> None:
        gated = Gated(8)
        gated.leave.release(99)
        tickets = [scoring.submit(gated, items(*each)) for each in (["a"], ["bad"], ["b", "c"])]  # type: ignore[arg-type]
        assert names(await tickets[0].results) == ["a"]
        with pytest.raises(RuntimeError):
            await tickets[1].results
        assert names(await tickets[2].results) == ["b", "c"]

    asyncio.run(act())


def test_what_is_dropped_is_never_scored(scoring: Scoring) -> None:
    async def act() -> None:
        gated = Gated(1)
        first = scoring.submit(gated, items("a"))  # type: ignore[arg-type]
        await asyncio.to_thread(gated.entered.acquire)
        unwanted = scoring.submit(gated, items("b", "c"))  # type: ignore[arg-type]
        last = scoring.submit(gated, items("d"))  # type: ignore[arg-type]
        scoring.drop(unwanted)
        assert len(scoring) == 1
        gated.leave.release(9)
        assert names(await last.results) == ["d"]
        assert names(await first.results) == ["a"]
        assert [name for batch in gated.batches for name in batch] == ["a", "d"]

    asyncio.run(act())


class Held:
    """Takes the threads of a service, so that its queue stands still."""

    def __init__(self, client: TestClient) -> None:
        self.service = client.app.state.service  # type: ignore[attr-defined]
        self.loaded = self.service.registry.all[0]
        self._leave, self._predict = threading.Event(), self.loaded.predictor.predict_images
        self.entered = threading.Event()  # a thread is taken

    def __enter__(self) -> "Held":
        def wait(images: object, **options: Any) -> Any:
            self.entered.set()
            self._leave.wait(60)
            return self._predict(images, **options)

        self.loaded.predictor.predict_images = wait
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self.loaded.predictor.predict_images = self._predict


def test_a_full_queue_answers_429_and_goes_on(serve: Serve) -> None:
    client = serve(threads=1, max_queue=2, max_files=2)
    found: list[int] = []

    def post() -> None:
        found.append(client.post(SCORE, files=form(camera_files(1))).status_code)

    with Held(client) as held:
        threads = [threading.Thread(target=post) for _ in range(3)]
        threads[0].start()
        assert held.entered.wait(60)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(held.service.scoring) == 2)
        refused = client.post(SCORE, files=form(camera_files(1)))
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
    for thread in threads:
        thread.join()
    assert found == [200] * 3
    assert client.post(SCORE, files=form(camera_files(2))).status_code == 200
    wait_until(lambda: held.service.room.used == 0)


def test_bytes_of_waiting_images_are_bounded(serve: Serve) -> None:
    data = camera_files(1)[0][1]
    most = 2 * len(data) + 10
    client = serve(threads=1, max_queue_bytes=most, max_bytes=most, max_request_bytes=most, max_json_bytes=most)
    found: list[int] = []

    def post() -> None:
        kind = {"Content-Type": "image/png"}
        found.append(client.post(SCORE, content=data, headers=kind).status_code)

    with Held(client) as held:
        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: held.service.room.used == 2 * len(data))
        assert client.post(SCORE, content=data, headers={"Content-Type": "image/png"}).status_code == 429
        assert held.service.room.used == 2 * len(data)
    for thread in threads:
        thread.join()
    assert found == [200, 200]
    assert held.service.room.used == 0


def test_an_answer_that_takes_too_long_is_503_and_its_images_are_dropped(serve: Serve) -> None:
    client = serve(threads=1, timeout=0.3)
    with Held(client) as held:
        late = client.post(SCORE, files=form(camera_files(3)))
        assert late.status_code == 503
        assert late.json()["type"].endswith(":timeout")
        assert "Retry-After" in late.headers
        assert len(held.service.scoring) == 0
    assert client.post(SCORE, files=form(camera_files(1))).status_code == 200


def test_limits_that_contradict_each_other_are_refused(export_folder: Any) -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"max_files": 10, "max_queue": 5},
        {"max_bytes": 2**40},
        {"max_pixels": 0},
        {"threads": 0},
        {"monitor_rate": 1.5},
        {"timeout": -1.0},
        {"cors": ("*",)},
        {"detectors": {}},
        {"detectors": {"a/b": export_folder}},
    )
    for wrong in wrongs:
        with pytest.raises(ValueError):
            ServeSettings(**{"detectors": {"a": export_folder}, **wrong})


def wait_until(condition: Any, seconds: float = 60) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it never came to be")
