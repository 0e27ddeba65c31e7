"""Every image that arrives is kept once, with all that follows from it."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from discopatch import HistoryFullError, WatchError
from discopatch.history import Change, Counts, History
from discopatch.images import Refusal, RefusalReason
from discopatch.images.items import Item
from discopatch.results import PredictedImage
from discopatch.watch import Command, Delivery, Watcher, WatchOptions, Webhook, check_places, keeper, only_watcher
from tests.cli.test_outputs import mounted

from .samples import PATIENCE, ReadScores, Watched, kept
from .test_notify import Server, serving


@contextmanager
def running(watcher: Watcher) -> Iterator[None]:
    """The watcher at work in a thread."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            watcher.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        watcher.stopped.set()
        thread.join(PATIENCE)
    assert errors == []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.01)


def test_files_are_scored_once_by_their_age_and_never_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(5):
        watched.put(f"{number}.png", age=7200 - number)
    assert watched.once() == [f"{number}.png" for number in range(5)]
    watched.put("5.png", 99)
    assert watched.once() == [f"{number}.png" for number in range(6)]
    assert set(watched.predictor.scored.values()) == {1}
    with History(watched.database) as history:
        assert history.counts("camera") == Counts(6, 1, 0)
        assert [entry.source for entry in history.recent("camera", 1)] == [str(watched.folder / "5.png")]
    assert sorted(path.name for path in watched.folder.iterdir()) == [f"{number}.png" for number in range(6)]


def test_files_that_arrive_one_by_one_are_scored_as_they_come(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with History(watched.database) as history:
        watcher = watched.watcher(history)
        with running(watcher):
            for number in range(30):
                (watched.folder / f"{number}.png").write_text("0.5")
                if number % 10 == 0:
                    until(lambda: history.counts("camera").images > 0)
            until(lambda: history.counts("camera").images == 30)
        assert sorted(kept(history)) == sorted(f"{number}.png" for number in range(30))
    assert watched.events("status") == ["status"]


def test_a_refused_image_is_a_prediction_with_an_error(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.put("broken.png", "")
    watched.once()
    with History(watched.database) as history:
        (entry,) = history.recent("camera")
        assert entry.prediction.error == "truncated: cut short"
        assert history.counts("camera") == Counts(1, 0, 1)


def test_another_file_of_the_same_name_is_another_image(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.put("a.png", 1)
    watched.once()
    watched.put("a.png", 2)
    assert watched.once() == ["a.png", "a.png"]
    assert watched.once() == ["a.png", "a.png"]


class Meddling(ReadScores):
    """Does something to a file as it is scored."""

    def __init__(self, meddle: Callable[[Path], object], *, before: bool) -> None:
        super().__init__()
        self.meddle, self.before = meddle, before

    def predict_item(self, item: Item) -> PredictedImage:
        assert isinstance(item.content, Path)
        if self.before:
            self.meddle(item.content)
        found = super().predict_item(item)
        if not self.before:
            self.meddle(item.content)
        return found


@pytest.mark.parametrize("before", [True, False])
def test_a_file_replaced_while_it_is_scored_is_scored_as_what_it_is_then(tmp_path: Path, before: bool) -> None:
    def replace(path: Path) -> None:
        if watched.predictor.scored.total() < (1 if before else 2):
            watched.put(path.name, 7)

    watched = Watched(tmp_path, Meddling(replace, before=before))
    watched.put("a.png", 1)
    assert watched.once() == ["a.png"]
    with History(watched.database) as history:
        assert history.recent("camera")[0].prediction.score == 7


def remove_first(path: Path) -> None:
    if path.name == "a.png":
        path.unlink()


def test_a_file_deleted_before_it_is_scored_is_told_and_no_prediction(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Meddling(remove_first, before=True))
    watched.put("a.png", age=7200)
    watched.put("b.png")
    assert watched.once() == ["b.png"]
    assert watched.events("gone") == ["gone"]


def test_a_file_deleted_once_it_was_read_is_a_prediction(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Meddling(lambda path: path.unlink(), before=False))
    watched.put("a.png")
    assert watched.once() == ["a.png"]
    assert watched.events("gone") == []


def test_a_file_that_cannot_be_read_at_once_is_tried_again(tmp_path: Path) -> None:
    class Refusing(ReadScores):
        def predict_item(self, item: Item) -> PredictedImage:
            if self.scored[item.name] < {"a.png": 2, "b.png": 99}[item.name]:
                self.scored[item.name] += 1
                return PredictedImage.refused(Refusal(item.name, RefusalReason.UNREADABLE, "stale"))
            return super().predict_item(item)

    watched = Watched(tmp_path, Refusing())
    watched.put("a.png")
    watched.put("b.png")
    assert sorted(watched.once()) == ["a.png", "b.png"]
    with History(watched.database) as history:
        assert {entry.prediction.name: entry.prediction.error for entry in history.recent("camera")} == {
            "a.png": None,
            "b.png": "unreadable: stale",
        }
    assert watched.predictor.scored == {"a.png": 3, "b.png": 3}


def test_what_is_still_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path, settle=0.2)
    growing, ended = watched.folder / "growing.png", threading.Event()

    def write() -> None:
        while not ended.wait(0.01):
            with growing.open("a") as file:
                file.write("1")

    thread = threading.Thread(target=write)
    thread.start()
    until(growing.exists)
    watched.put("whole.png")
    try:
        assert watched.once() == ["whole.png"]
    finally:
        ended.set()
        thread.join()
    assert watched.events("left") == ["left"]
    growing.write_text("1")
    assert watched.once() == ["whole.png", "growing.png"]


def test_a_folder_that_goes_away_is_waited_for_and_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.put("a.png")
    with History(watched.database) as history, running(watched.watcher(history)):
        until(lambda: history.counts("camera").images == 1)
        watched.folder.rename(tmp_path / "elsewhere")
        until(lambda: watched.events("away") == ["away"])
        (tmp_path / "elsewhere").rename(watched.folder)
        watched.put("b.png")
        until(lambda: history.counts("camera").images == 2)
    assert watched.events("away", "back") == ["away", "back"]


def test_a_stream_that_changes_is_one_alarm_with_its_messages(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(40):
        watched.put(f"{number}.png", 5 + number / 100, age=7200 - number)
    with serving() as server:
        for _ in range(2):
            with History(watched.database) as history:
                delivery = Delivery(history, Webhook(server.url), "camera", told=print)
                watched.watcher(history, delivery).run(once=True)
        assert len(server.received) == 1
        body = server.received[0].body
    assert (body["event"], body["detector"], body["folder"]) == ("alarm", "camera", str(watched.folder))
    assert body["id"] == server.received[0].key
    assert body["monitor"]["alarm"] is True  # type: ignore[index]
    with History(watched.database) as history:
        (alarm,) = history.alarms("camera")
        assert alarm.status == body["monitor"]
        at = alarm.status["alarm_at"]
        assert body["image"]["name"] == f"{at - 1}.png"  # type: ignore[index]
    assert watched.events("alarm") == ["alarm"]


def test_flagged_images_are_told_where_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "told.txt"
    watched = Watched(tmp_path, on="flagged")
    for name, score in (("a.png", 0), ("b.png", 9), ("c.png", -0.1), ("d.png", 9)):
        watched.put(name, score)
    script = tmp_path / "script.sh"
    script.write_text('#!/bin/sh\necho "$DISCOPATCH_EVENT $DISCOPATCH_IMAGE" >> "$1"\n')
    script.chmod(0o700)
    with History(watched.database) as history:
        delivery = Delivery(history, Command(f"{script} {out}"), "camera", told=print)
        watched.watcher(history, delivery).run(once=True)
        assert delivery.queued() == 0
    assert out.read_text().splitlines() == ["flagged b.png", "flagged d.png"]


def test_a_dead_webhook_never_stops_scoring_and_its_messages_stay(tmp_path: Path) -> None:
    watched = Watched(tmp_path, on="flagged")
    with serving() as server:
        server.answer = lambda received: 0  # takes the message and never answers
        with History(watched.database) as history:
            delivery = Delivery(history, Webhook(server.url, timeout=0.5), "camera", told=print)
            with running(watched.watcher(history, delivery)):
                for number in range(20):
                    watched.put(f"{number}.png", 9)
                until(lambda: history.counts("camera").images == 20)
            assert delivery.queued() >= 20
    assert watched.events("queued") == ["queued"]
    with serving() as server, History(watched.database) as history:
        with history.transaction() as change:
            change.execute("UPDATE notifications SET due = 0")
        delivery = Delivery(history, Webhook(server.url), "camera", told=print)
        watched.watcher(history, delivery).run(once=True)
        keys = [each.key for each in server.received]
        assert len(keys) == len(set(keys)) >= 20


def test_a_full_disk_holds_scoring_up_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FULL_PAUSE", 0.02)
    watched = Watched(tmp_path)
    with mounted(tmp_path / "disk", "size=250k") as disk:
        watched.database = disk / "history.sqlite"
        with History(watched.database) as history, running(watched.watcher(history)):
            number = 0
            while not watched.events("full"):
                watched.put(f"{number}.png")
                number += 1
                time.sleep(0.001)
            scored = watched.predictor.scored.total()
            for more in range(50):
                watched.put(f"{number + more}.png")
            time.sleep(0.3)
            assert watched.predictor.scored.total() <= scored + keeper.COMMIT_IMAGES
            subprocess.run(["mount", "-o", "remount,size=16M", str(disk)], check=True)
            until(lambda: history.counts("camera").images == number + 50)
            assert sorted(kept(history)) == sorted(f"{each}.png" for each in range(number + 50))
    assert watched.events("full", "written") == ["full", "written"]
    assert set(watched.predictor.scored.values()) == {1}


def test_a_stop_while_the_disk_is_full_scores_again_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path)
    watched.put("a.png")
    with History(watched.database) as history:
        watcher = watched.watcher(history)
        real = history.transaction

        def full() -> NoReturn:
            watcher.stopped.set()
            raise HistoryFullError("full: free some space")

        monkeypatch.setattr(history, "transaction", full)
        with pytest.raises(WatchError, match="scored again"):
            watcher.run(once=True)
        monkeypatch.setattr(history, "transaction", real)
        assert kept(history) == []
    assert watched.once() == ["a.png"]


def test_a_stop_finishes_the_image_in_hand(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(100):
        watched.put(f"{number}.png", age=7200 - number)
    with History(watched.database) as history:
        watcher = watched.watcher(history)
        setattr(watched.predictor, "predict_item", stopping_at(watched.predictor, watcher, 10))  # noqa: B010 - a method
        watcher.run()
        assert kept(history) == [f"{number}.png" for number in range(10)]
    assert watched.once() == [f"{number}.png" for number in range(100)]


def stopping_at(predictor: ReadScores, watcher: Watcher, count: int) -> Callable[[Item], PredictedImage]:
    real = predictor.predict_item

    def predict(item: Item) -> PredictedImage:
        found = real(item)
        if predictor.scored.total() == count:
            watcher.stopped.set()
        return found

    return predict


def run_in_process(watched: Watched, kill: str | None) -> int:
    """The exit code of a process that scores all there is, unless it is killed in or after a transaction."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with History(watched.database) as history:
                watcher = watched.watcher(history)
                history.transaction = killing(history.transaction, kill)  # type: ignore[method-assign, assignment]
                watcher.run(once=True)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killing(real: Callable[[], AbstractContextManager[Change]], kill: str | None) -> Callable[[], object]:
    count = 0

    @contextmanager
    def transaction() -> Iterator[Change]:
        nonlocal count
        count += 1
        with real() as change:
            yield change
            if kill == f"in {count}":  # all is written, nothing is committed
                os.kill(os.getpid(), signal.SIGKILL)
        if kill == f"after {count}":
            os.kill(os.getpid(), signal.SIGKILL)

    return transaction


def test_watchers_that_are_killed_keep_what_one_that_never_was_keeps(tmp_path: Path) -> None:
    expected, watched = Watched(tmp_path / "expected"), Watched(tmp_path / "killed")
    for each in (expected, watched):
        for number in range(600):
            each.put(f"{number}.png", number % 17 / 5 - 1.5, age=7200 - number)
    expected.once()
    for kill in ("in 1", "after 1", "in 2", "after 2", "in 1", "in 3"):
        assert run_in_process(watched, kill) == -signal.SIGKILL
    assert run_in_process(watched, None) == 0
    with History(watched.database) as found, History(expected.database) as whole:
        assert kept(found) == kept(whole) == [f"{number}.png" for number in range(600)]
        assert found.state("camera") == whole.state("camera")
        assert found.counts("camera") == whole.counts("camera")


@pytest.mark.slow
def test_ten_thousand_files_are_scored_once_each(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(10_000):
        (watched.folder / f"{number:05d}.png").write_text("0.1")
        os.utime(watched.folder / f"{number:05d}.png", (1e9 + number, 1e9 + number))
    assert len(watched.once()) == len(set(watched.once())) == 10_000
    assert watched.predictor.scored.total() == 10_000


def test_marks_of_files_that_are_gone_are_bounded(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with History(watched.database, keep=20) as history, running(watched.watcher(history)):
        for number in range(100):
            path = watched.put(f"{number}.png")
            until(lambda count=number: history.counts("camera").images > count)  # type: ignore[misc]
            path.unlink()
        until(lambda: history.rows("SELECT count(*) FROM files")[0][0] < 50)


def test_parts_of_parquet_hold_each_prediction_once(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    watched = Watched(tmp_path)
    for number in range(3):
        watched.put(f"{number}.png")
        watched.once(parquet=tmp_path / "parts")
    rows = [row["name"] for path in (tmp_path / "parts").iterdir() for row in parquet.read_table(path).to_pylist()]
    assert sorted(rows) == ["0.png", "1.png", "2.png"]


def test_one_detector_has_one_watcher(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history, only_watcher(history, "camera"):
        with only_watcher(history, "another"):
            pass
        with pytest.raises(WatchError, match="another process"), only_watcher(history, "camera"):
            pass
    with History(tmp_path / "history.sqlite") as history, only_watcher(history, "camera"):
        pass


def test_nothing_is_written_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    check_places(tmp_path / "in", tmp_path / "history.sqlite", tmp_path / "in-parts")
    for database, parquet in ((tmp_path / "in" / "h.sqlite", None), (tmp_path / "h.sqlite", tmp_path / "in" / "deep")):
        with pytest.raises(ValueError, match="choose another place"):
            check_places(tmp_path / "in", database, parquet)
    with pytest.raises(WatchError, match="check the path"):
        check_places(tmp_path / "nowhere", tmp_path / "h.sqlite", None)


@pytest.mark.parametrize("options", [{"poll": 0.0}, {"settle": -1.0}, {"poll": float("nan")}])
def test_times_that_are_none_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="poll="):
        WatchOptions(**options)  # type: ignore[arg-type]


def test_messages_are_json_whatever_files_are_called(tmp_path: Path) -> None:
    watched = Watched(tmp_path, on="flagged")
    watched.put(os.fsdecode(b"caf\xe9 \n.png"), 9)
    server: Server
    with serving() as server, History(watched.database) as history:
        watched.watcher(history, Delivery(history, Webhook(server.url), "camera", told=print)).run(once=True)
        (received,) = server.received
    assert json.loads(json.dumps(received.body))["image"]["name"] == "caf\\xe9 \n.png"
