"""The queue, the monitor, the history and reloads."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import discopatch
from discopatch import Detector
from discopatch.images import Item
from discopatch.monitor import Monitor
from tests.serve.conftest import Gate, Serve
from tests.serve.samples import MONITOR, NAME, RECENT, SCORE, Files, camera_files, form, noise, png, rows_of, wait_until

POOL = ThreadPoolExecutor(8)


def later(client: TestClient, files: Files) -> "Future[Any]":
    return POOL.submit(client.post, SCORE, files=form(files))


def metric(client: TestClient, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


def test_a_full_queue_answers_503_and_goes_on(serve: Serve) -> None:
    client = serve(threads=1, max_queue=3, max_files=2)
    with Gate(client) as gate:
        first = later(client, camera_files(1))
        wait_until(lambda: gate.batches)
        second = later(client, camera_files(2))
        wait_until(lambda: metric(client, "discopatch_queue_images") == 2)
        refused = client.post(SCORE, files=form(camera_files(2)))
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert refused.json()["type"].endswith("queue-full")
    assert [each.result().status_code for each in (first, second)] == [200, 200]
    assert client.post(SCORE, files=form(camera_files(2))).status_code == 200


def test_images_of_several_requests_are_scored_together_and_a_failure_affects_its_own_only(serve: Serve) -> None:
    client = serve(batch_size=3)
    detector = client.app.state.service.loaded[NAME].detector  # type: ignore[attr-defined]
    predict = detector.predict_images

    def fail(items: list[Item], **options: Any) -> Any:
        if any(item.name == "bad" for item in items):
            raise RuntimeError("a bad image")
        return predict(items, **options)

    detector.predict_images = fail
    with Gate(client) as gate:
        answers = [later(client, camera_files(1))]
        wait_until(lambda: gate.batches)
        for count, files in ((2, camera_files(2)), (3, [("bad", b"x")]), (4, camera_files(1))):
            answers.append(later(client, files))
            wait_until(lambda count=count: metric(client, "discopatch_queue_images") == count)  # type: ignore[misc]
    assert [each.result().status_code for each in answers] == [200, 200, 500, 200]
    assert [len(each) for each in gate.batches[:2]] == [1, 3]


def test_bytes_of_all_requests_together_are_bounded(serve: Serve) -> None:
    size = sum(len(data) for _, data in camera_files(1)) + 1000
    client = serve(threads=1, max_request_bytes=size, max_json_bytes=1)
    with Gate(client):
        answers = [later(client, camera_files(1)) for _ in range(4)]
        wait_until(lambda: metric(client, "discopatch_queue_bytes") > 3 * (size - 1000))
        assert client.post(SCORE, files=form(camera_files(1))).status_code == 503
    assert [each.result().status_code for each in answers] == [200] * 4
    assert metric(client, "discopatch_queue_bytes") == 0


def test_a_late_answer_is_503_and_its_images_leave_the_queue_and_do_not_count(serve: Serve) -> None:
    client = serve(threads=1, timeout=0.3)
    with Gate(client) as gate:
        late = client.post(SCORE, files=form(camera_files(3)))
        assert (late.status_code, late.json()["type"].rpartition(":")[2]) == (503, "timeout")
        assert gate.batches
        assert metric(client, "discopatch_queue_images") == 0
    wait_until(lambda: client.post(SCORE, files=form(camera_files(1))).status_code == 200)
    assert client.get(MONITOR).json()["images"] == 1


def test_a_request_with_the_key_of_an_earlier_one_gets_its_answer_and_counts_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, files = serve(threads=1), camera_files(2)

    def send(key: str, files: Files = files, **options: Any) -> Any:
        return client.post(SCORE, files=form(files), headers={"Idempotency-Key": key}, **options)

    with Gate(client) as gate:
        first = POOL.submit(send, "a")
        wait_until(lambda: gate.batches)
        again = POOL.submit(send, "a")  # while the first is in flight
    answers = [first.result(), again.result(), send("a")]
    assert len({str(each.json()["predictions"]) for each in answers}) == 1
    assert client.get(MONITOR).json()["images"] == 2
    assert sum(map(len, gate.batches)) == 2, "the images were scored once"
    assert send("a", camera_files(1)).status_code == 422
    assert send("a", params={"count": "false"}).status_code == 422
    assert send("x" * 256).status_code == 422
    monkeypatch.setattr("discopatch.history.KEPT_ANSWERS", 6)
    for key in ("b", "c"):
        assert send(key).status_code == 200
    assert client.get(MONITOR).json()["images"] == 6
    answers = client.app.state.service.history.rows("SELECT key FROM answers")  # type: ignore[attr-defined]
    assert sorted(answers) == [("b",), ("c",)], "the oldest key is forgotten"
    assert send("c").status_code == 200
    assert client.get(MONITOR).json()["images"] == 6


def test_a_repeated_request_whose_first_answer_was_late_counts_once(serve: Serve) -> None:
    client, options = (
        serve(threads=1, timeout=0.3),
        {"files": form(camera_files(1)), "headers": {"Idempotency-Key": "a"}},
    )
    with Gate(client):
        assert client.post(SCORE, **options).status_code == 503  # type: ignore[arg-type]
    wait_until(lambda: client.post(SCORE, **options).status_code == 200)  # type: ignore[arg-type]
    assert client.post(SCORE, **options).status_code == 200  # type: ignore[arg-type]
    assert client.get(MONITOR).json()["images"] == 1


def test_the_monitor_is_that_of_the_library(serve: Serve, detector: Detector) -> None:
    client, monitor, odd = serve(), Monitor(detector), ("noise.png", png(noise(64)))
    for file in [*camera_files(3), *[odd] * 60]:
        found = client.post(SCORE, files=form([file])).json()["monitor"]
        (prediction,) = detector.predict([Item(*file)])
        assert found["log10_evidence"] == monitor.update(prediction).log10_evidence
        if found["alarm"]:
            break
    assert found["alarm_at"] == monitor.status.alarm_at
    assert metric(client, "discopatch_monitor_alarm") == 1
    wait_until(lambda: client.get(MONITOR).json()["alarms"])
    (alarm,) = client.get(MONITOR).json()["alarms"]
    assert (alarm["alarm_at"], alarm["time"][:2]) == (found["alarm_at"], "20")
    assert client.post(f"{MONITOR}/restart").json()["images"] == 0
    assert client.get(MONITOR).json()["alarm"] is False
    assert len(client.get(MONITOR).json()["alarms"]) == 1


def test_history_comes_back_in_pages_and_after_a_restart(serve: Serve, detector: Detector, tmp_path: Path) -> None:
    client, files = serve(history=str(tmp_path / "history.sqlite")), [*camera_files(5), ("bad.png", b"x")]
    for file in files:
        client.post(SCORE, files=form([file]))
    wait_until(lambda: client.get(RECENT).json()["images"] == 6)
    found = client.get(RECENT).json()
    entries = found["entries"]
    rows = rows_of(detector, files)[::-1]
    assert [{name: each[name] for name in rows[0]} for each in entries] == rows
    assert (found["images"], found["refused"]) == (6, 1)
    page = client.get(RECENT, params={"limit": 2, "before": entries[1]["id"]}).json()["entries"]
    assert page == entries[2:4]
    assert entries[0]["thumbnail"] is None
    assert client.get(entries[1]["thumbnail"]).content[:2] == b"\xff\xd8"
    before = client.get(MONITOR).json()
    client.__exit__(None, None, None)
    second = serve(history=str(tmp_path / "history.sqlite"))
    assert second.get(MONITOR).json() == before
    assert second.get(RECENT).json()["entries"] == entries


@pytest.fixture
def own_file(tmp_path: Path, detector_file: Path) -> Path:
    return Path(shutil.copy(detector_file, tmp_path / NAME))


def replace(path: Path, by: Path) -> None:
    Path(shutil.copy(by, path.with_name("new"))).replace(path)


def test_a_reload_swaps_detectors_and_requests_in_flight_keep_theirs(
    serve: Serve, own_file: Path, other_file: Path, detector: Detector
) -> None:
    client, files = serve(detectors={NAME: own_file}), camera_files(1)
    client.post(SCORE, files=form(files))
    assert client.post("/v1/reload").json() == {"detectors": [NAME], "changed": []}
    assert client.get(MONITOR).json()["images"] == 1, "the stream continues with the same detector"
    with Gate(client) as gate:
        answer = later(client, files)
        wait_until(lambda: gate.batches)
        replace(own_file, other_file)
        assert client.post("/v1/reload").json()["changed"] == [NAME]
    assert answer.result().json()["predictions"] == rows_of(detector, files)
    wait_until(lambda: client.get(RECENT).json()["images"] == 2)
    assert client.get(MONITOR).json()["images"] == 0, "the new stream does not have the old image"
    other = discopatch.load(other_file, device="cpu")
    assert client.post(SCORE, files=form(files)).json()["predictions"] == rows_of(other, files)


def test_one_bad_file_leaves_all_detectors_unchanged(
    serve: Serve, own_file: Path, other_file: Path, tmp_path: Path
) -> None:
    second = Path(shutil.copy(other_file, tmp_path / "camera-4"))
    client = serve(detectors={NAME: own_file, "camera-4": second})
    before = client.get("/v1/detectors").json()
    replace(own_file, other_file)
    second.write_bytes(second.read_bytes()[:1000])
    refused = client.post("/v1/reload")
    assert (refused.status_code, "camera-4" in refused.json()["detail"]) == (422, True)
    second.unlink()
    assert client.post("/v1/reload").status_code == 422
    assert client.get("/v1/detectors").json() == before
    assert client.post(SCORE, files=form(camera_files(1))).status_code == 200
