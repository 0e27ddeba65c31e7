"""What follows a score: the monitor, the history, events, metrics; and how a reload keeps or renews them."""

import io
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import discopatch
from discopatch.errors import HistoryFullError
from discopatch.history import History
from discopatch.monitor import Monitor
from discopatch.serve.events import LONGEST_QUEUE, Event, Hub, Listener
from tests.export.samples import tiny_detector
from tests.samples import new_detector, one_camera
from tests.serve.conftest import Serve
from tests.serve.samples import NAME, SCORE, camera_files, form, named, noise, png, running
from tests.serve.test_queue import wait_until

RECENT, MONITOR = f"/v1/detectors/{NAME}/recent", f"/v1/detectors/{NAME}/monitor"


def test_the_monitor_is_the_one_of_python(serve: Serve, export_folder: Path) -> None:
    client, files = serve(), camera_files(12)
    runtime = discopatch.load(export_folder)
    monitor = Monitor(runtime)
    for file, prediction in zip(files, runtime.predict(named(files)), strict=True):
        answer = client.post(SCORE, files=form([file]))
        assert answer.json()["monitor"] == json.loads(json.dumps(monitor.update(prediction).as_dict()))
    assert client.post(f"{MONITOR}/restart").json()["images"] == 0
    assert client.get(MONITOR).json()["images"] == 0


def test_an_alarm_is_kept_with_its_time(serve: Serve) -> None:
    client = serve()
    for _ in range(40):
        answer = client.post(SCORE, files=form([("noise.png", png(noise(64)))]))
        if answer.json()["monitor"]["alarm"]:
            break
    wait_until(lambda: client.get(MONITOR).json()["alarms"])
    (alarm,) = client.get(MONITOR).json()["alarms"]
    assert alarm["alarm_at"] == answer.json()["monitor"]["alarm_at"]
    assert alarm["time"].startswith("20")
    assert 'discopatch_monitor_alarm{detector="camera-3"} 1.0' in client.get("/metrics").text


def test_recent_images_come_back_in_pages_with_thumbnails(serve: Serve) -> None:
    client, files = serve(), [*camera_files(5), ("bad.png", b"x")]
    for file in files:
        client.post(SCORE, files=form([file]))
    wait_until(lambda: len(client.get(RECENT).json()["entries"]) == 6)
    found = client.get(RECENT).json()
    assert [each["name"] for each in found["entries"]] == [name for name, _ in reversed(files)]
    assert (found["images"], found["refused"]) == (6, 1)
    assert found["entries"][0]["thumbnail"] is None
    first = client.get(RECENT, params={"limit": 2}).json()["entries"]
    rest = client.get(RECENT, params={"before": first[-1]["id"]}).json()["entries"]
    assert [*first, *rest] == found["entries"]
    thumbnail = client.get(found["entries"][1]["thumbnail"])
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert thumbnail.content.startswith(b"\xff\xd8")


def test_a_restart_keeps_history_and_monitor(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    first = serve(history=path)
    first.post(SCORE, files=form(camera_files(6)))
    before = first.get(MONITOR).json()
    first.__exit__(None, None, None)
    second = serve(history=path)
    assert second.get(MONITOR).json() == before
    assert len(second.get(RECENT).json()["entries"]) == 6
    second.post(SCORE, files=form(camera_files(1, seed=9)))
    assert second.get(MONITOR).json()["images"] == 7


def test_a_full_disk_is_said_and_scoring_goes_on(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(history=tmp_path / "history.sqlite")
    full = True
    transaction = History.transaction

    def fails(self: History) -> Any:
        if full:
            raise HistoryFullError("the disk is full: free some space")
        return transaction(self)

    monkeypatch.setattr(History, "transaction", fails)
    assert client.post(SCORE, files=form(camera_files(3))).status_code == 200
    wait_until(lambda: client.get("/v2/health/ready").json()["history"])
    assert client.get("/v2/health/ready").json()["ready"] is True
    assert "discopatch_history_failing 1.0" in client.get("/metrics").text
    assert client.post(SCORE, files=form(camera_files(2))).status_code == 200
    full = False
    wait_until(lambda: client.get("/v2/health/ready").json()["history"] is None)
    assert len(client.get(RECENT).json()["entries"]) == 5, "nothing was lost"
    assert "discopatch_history_failing 0.0" in client.get("/metrics").text


def test_metrics_count_requests_images_and_refusals(serve: Serve) -> None:
    client = serve()
    client.post(SCORE, files=form([*camera_files(3), ("bad.png", b"x")]))
    client.get("/nothing")
    text = client.get("/metrics").text
    assert 'discopatch_images_total{detector="camera-3"} 3.0' in text
    assert 'discopatch_refused_images_total{detector="camera-3",reason="not_an_image"} 1.0' in text
    score = 'discopatch_requests_total{method="POST",route="/v1/detectors/{name}/score",status="200"} 1.0'
    assert score in text
    assert 'route="unmatched",status="404"' in text
    assert "discopatch_queue_images 0.0" in text
    for name in ("discopatch_request_seconds_bucket", "discopatch_score_bucket", "discopatch_batch_images_bucket"):
        assert name in text


@pytest.fixture
def own_file(tmp_path: Path, detector_file: Path) -> Path:
    return Path(shutil.copy(detector_file, tmp_path / NAME))


@pytest.fixture(scope="session")
def other_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("other") / NAME
    new_detector(head="combined", seed=5).fit(one_camera(60, seed=8), workers=1).save(path)
    return path


def replaced(path: Path, by: Path) -> None:
    new = path.with_name("new")
    shutil.copy(by, new)
    new.replace(path)


def test_a_reload_takes_the_new_detector_and_begins_a_new_stream(
    serve: Serve, own_file: Path, other_file: Path
) -> None:
    client, files = serve(detectors={NAME: own_file}), camera_files(2)
    before = client.post(SCORE, files=form(files)).json()
    replaced(own_file, other_file)
    assert client.post(SCORE, files=form(files)).json()["predictions"] == before["predictions"]
    assert client.post("/v1/reload").json() == {"detectors": [NAME], "changed": [NAME]}
    after = client.post(SCORE, files=form(files)).json()
    wanted = discopatch.load(other_file).predict(named(files)).scores.tolist()
    assert [each["score"] for each in after["predictions"]] == wanted
    assert after["monitor"]["images"] == 2


def test_a_reload_of_the_same_detector_keeps_the_stream(serve: Serve, own_file: Path) -> None:
    client = serve(detectors={NAME: own_file})
    client.post(SCORE, files=form(camera_files(3)))
    assert client.post("/v1/reload").json()["changed"] == []
    assert client.get(MONITOR).json()["images"] == 3


def test_a_bad_file_leaves_all_detectors_as_they_were(
    serve: Serve, own_file: Path, other_file: Path, tmp_path: Path
) -> None:
    second = Path(shutil.copy(own_file, tmp_path / "camera-4"))
    client = serve(detectors={NAME: own_file, "camera-4": second})
    before = client.get("/v1/detectors").json()
    replaced(own_file, other_file)
    second.write_bytes(second.read_bytes()[:1000])
    refused = client.post("/v1/reload")
    assert refused.status_code == 422
    assert "camera-4" in refused.json()["detail"]
    assert client.get("/v1/detectors").json() == before
    second.unlink()
    assert client.post("/v1/reload").status_code == 422
    assert client.post(SCORE, files=form(camera_files(1))).status_code == 200


def test_requests_in_flight_end_with_the_old_detector(serve: Serve, own_file: Path, other_file: Path) -> None:
    client, files = serve(detectors={NAME: own_file}), camera_files(1)
    old = client.app.state.service.registry[NAME]  # type: ignore[attr-defined]
    entered, leave = threading.Event(), threading.Event()
    predict = old.predictor.predict_images

    def wait(images: object, **options: Any) -> Any:
        entered.set()
        leave.wait(60)
        return predict(images, **options)

    old.predictor.predict_images = wait
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(client.post(SCORE, files=form(files)).json()))
    thread.start()
    entered.wait(60)
    replaced(own_file, other_file)
    assert client.post("/v1/reload").json()["changed"] == [NAME]
    leave.set()
    thread.join()
    wanted = tiny_detector().predict(named(files)).scores.tolist()
    assert [each["score"] for each in found[0]["predictions"]] == wanted
    wait_until(lambda: client.get(RECENT).json()["images"] == 1)
    assert client.get(MONITOR).json()["images"] == 0, "the new stream has not had it"


def read_events(lines: Iterator[str], count: int) -> list[dict[str, Any]]:
    """The first events of a stream."""
    found: list[dict[str, Any]] = []
    event: dict[str, Any] = {}
    for line in lines:
        if not line and "event" in event:
            found.append(event)
            if len(found) == count:
                return found
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
    return found


def test_events_follow_what_is_scored_and_go_on_after_the_last_one_seen(tmp_path: Path, export_folder: Path) -> None:
    with running(tmp_path, f"{NAME}={export_folder}", "--no-history") as service, service.client() as client:
        address = f"/v1/detectors/{NAME}/events"
        with client.stream("GET", address) as stream:
            lines = stream.iter_lines()
            assert next(lines) == "retry: 2000"
            for file in camera_files(3):
                assert client.post(SCORE, files=form([file])).status_code == 200
            found = [each for each in read_events(lines, 4) if each["event"] == "prediction"]
            assert stream.headers["content-type"].startswith("text/event-stream")
        wait_until(lambda: len(client.get(RECENT).json()["entries"]) == 3)
        entries = client.get(RECENT).json()["entries"][::-1]
        assert [each["data"] for each in found] == entries[: len(found)]
        with client.stream("GET", address, headers={"Last-Event-ID": str(entries[0]["id"])}) as stream:
            again = read_events(stream.iter_lines(), 2)
        assert [each["data"] for each in again] == entries[1:]
        assert [each["id"] for each in again] == [str(each["id"]) for each in entries[1:]]
        with client.stream("GET", address) as stream:
            assert service.stop() == 0, "a reader of events does not hold up the end"
            list(stream.iter_lines())


def test_a_reader_who_is_too_slow_is_dropped() -> None:
    listener = Listener(NAME)
    for number in range(LONGEST_QUEUE + 50):
        listener.put(Event("prediction", {}, number))
    assert listener.is_ended
    assert listener.queue.qsize() == LONGEST_QUEUE + 1


def test_events_of_a_closed_service_end_at_once() -> None:
    hub = Hub()
    hub.close()
    assert hub.listen(NAME).is_ended


def test_thumbnails_are_small(serve: Serve) -> None:
    client = serve()
    client.post(SCORE, files=form([("large.png", png(noise(700)))]))
    wait_until(lambda: client.get(RECENT).json()["entries"])
    data = client.get(client.get(RECENT).json()["entries"][0]["thumbnail"]).content
    assert len(data) < 10_000
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (96, 96)
