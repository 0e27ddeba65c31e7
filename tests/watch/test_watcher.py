"""Every image that arrives is stored once, with all that follows from it."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from discopatch.calibration import Guarantee
from discopatch.errors import RunError
from discopatch.history import Counts, History
from discopatch.images import Item
from discopatch.results import PredictedImage, column_types
from discopatch.watch import watcher
from discopatch.watch.notify import Delivery, webhook
from tests.cli.test_outputs import mounted

from .samples import ReadScores, Watched, kept, until
from .test_notify import serving


def test_files_are_scored_once_by_their_age_and_never_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(5):
        watched.put(f"{number}.png", age=7200 - number)
    assert watched.run() == [f"{number}.png" for number in range(5)]
    watched.put("5.png", 99)
    watched.put("6.png", "")
    assert watched.run() == [f"{number}.png" for number in range(7)]
    assert set(watched.predictor.scored.values()) == {1}
    watched.put("5.png", 2)  # another file with the same name
    assert watched.run()[7:] == ["5.png"]
    with History(watched.database) as history:
        assert history.counts("camera") == Counts(8, 1, 1)
        assert [entry.source for entry in history.recent("camera", 1)] == [str(watched.folder / "5.png")]
        assert history.recent("camera", 3)[1].prediction.error == "truncated: cut short"
    assert sorted(path.name for path in watched.folder.iterdir()) == [f"{number}.png" for number in range(7)]


@pytest.mark.parametrize("poll", [None, 0.05])
def test_files_are_scored_as_they_arrive_and_a_folder_may_go_away(tmp_path: Path, poll: float | None) -> None:
    watched = Watched(tmp_path, poll=poll, recursive=True)
    with History(watched.database) as history:
        with watched.running(history=history):
            for number in range(20):
                (watched.folder / f"{number}.png").write_text("0.5")
            until(lambda: history.counts("camera").images == 20)
            for count, name in ((21, "deep/20.png"), (22, "deep/er/21.png")):
                watched.put(name)
                until(lambda count=count: history.counts("camera").images == count)  # type: ignore[misc]
            watched.folder.rename(tmp_path / "elsewhere")
            until(lambda: watched.events("away") == ["away"])
            (tmp_path / "elsewhere").rename(watched.folder)
            watched.put("22.png")
            until(lambda: history.counts("camera").images == 23)
        assert {Path(name).name for name in kept(history)} == {f"{number}.png" for number in range(23)}
    assert watched.events("away", "away-ended", "status") == ["away", "away-ended", "status"]


class Meddling(ReadScores):
    """Changes a file before or after it is scored."""

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
def test_a_file_replaced_while_it_is_scored_is_scored_again_and_a_deleted_one_only_if_it_was_read(
    tmp_path: Path, before: bool
) -> None:
    def meddle(path: Path) -> None:
        if path.name == "deleted.png":
            path.unlink()
        elif watched.predictor.scored["replaced.png"] == (0 if before else 1):
            watched.put(path.name, 7)

    watched = Watched(tmp_path, Meddling(meddle, before=before))
    watched.put("deleted.png", age=7200)
    watched.put("replaced.png", 1)
    assert watched.run() == ["deleted.png"] * (not before) + ["replaced.png"]
    with History(watched.database) as history:
        assert history.recent("camera")[0].prediction.score == 7


def test_a_file_that_is_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
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
        assert watched.run() == ["whole.png"]
    finally:
        ended.set()
        thread.join()
    assert watched.events("left") == ["left"]
    growing.write_text("1")
    assert watched.run() == ["whole.png", "growing.png"]


def test_a_changed_stream_is_one_alarm_with_its_message(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(40):
        watched.put(f"{number}.png", 5 + number / 100, age=7200 - number)
    with serving() as server:
        for _ in range(2):
            with History(watched.database) as history:
                delivery = Delivery(history, "camera", webhook(server.url), print)
                watched.watcher(history, delivery).run(once=True)
        (received,) = server.received
    body = received.body
    assert (body["event"], body["detector"], body["source"], body["id"]) == (
        *("alarm", "camera", str(watched.folder)),
        received.key,
    )
    with History(watched.database) as history:
        (alarm,) = history.alarms("camera")
        assert alarm.items() >= body["monitor"].items()  # type: ignore[attr-defined]
        assert body["image"].keys() == column_types().keys()  # type: ignore[attr-defined]
        assert body["image"]["name"] == f"{alarm['alarm_at'] - 1}.png"  # type: ignore[index]
    assert watched.events("alarm") == ["alarm"]


class Grouped(ReadScores):
    """Fitted on groups of one image each, by name."""

    guarantee_ = Guarantee(99, 99, 0.01, 198)

    def settings(self) -> dict[str, object]:
        return {"groups": "name"}


def test_images_that_do_not_count_are_reported_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Grouped())
    for number in range(20):
        watched.put(f"frame_{number}.png", 99, age=7200 - number)
    watched.put("other_1.png", 99)
    watched.run()
    assert watched.events("uncounted", "uncounted-ended") == ["uncounted", "uncounted-ended"]


def test_a_dead_webhook_never_stops_scoring_and_its_messages_stay(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with serving() as server, History(watched.database) as history:
        server.answer = lambda received: 0  # never answers
        delivery = Delivery(history, "camera", webhook(server.url, timeout=0.5), print)
        with watched.running(delivery, history=history, on="flagged"):
            for number in range(20):
                watched.put(f"{number}.png", 9)
            until(lambda: history.counts("camera").images == 20)
        assert delivery.queued() >= 20


def test_a_full_disk_stops_scoring_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "FULL_PAUSE", 0.02)
    watched = Watched(tmp_path)
    with mounted(tmp_path / "disk", "size=250k") as disk:
        watched.database = disk / "history.sqlite"
        with History(watched.database) as history, watched.running(history=history):
            number = 0
            while not watched.events("full"):
                watched.put(f"{number}.png")
                number += 1
                time.sleep(0.001)
            scored = watched.predictor.scored.total()
            for more in range(50):
                watched.put(f"{number + more}.png")
            time.sleep(0.3)
            assert watched.predictor.scored.total() <= scored + watcher.COMMIT_IMAGES
            subprocess.run(["mount", "-o", "remount,size=16M", str(disk)], check=True)
            until(lambda: history.counts("camera").images == number + 50)
            assert sorted(kept(history)) == sorted(f"{each}.png" for each in range(number + 50))
    assert watched.events("full", "full-ended") == ["full", "full-ended"]
    assert set(watched.predictor.scored.values()) == {1}


def test_a_deleted_history_ends_it_and_the_next_start_scores_everything_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for number in range(3):
        watched.put(f"{number}.png")
    with History(watched.database) as history:
        watcher = watched.watcher(history)
        watcher.run(once=True)
        watched.database.unlink()
        watched.put("3.png")
        watched.put("4.png")
        with pytest.raises(RunError, match=r"history\.sqlite was deleted"):
            watcher.run(once=True)
    names = [f"{number}.png" for number in range(5)]
    assert sorted(watched.run()) == names


def test_a_stop_finishes_the_current_image(tmp_path: Path) -> None:
    def stop(path: Path) -> None:
        if watched.predictor.scored.total() == 10:
            watcher.stopped.set()

    watched = Watched(tmp_path, Meddling(stop, before=False))
    for number in range(100):
        watched.put(f"{number}.png", age=7200 - number)
    with History(watched.database) as history:
        watcher = watched.watcher(history)
        watcher.run()
        assert kept(history) == [f"{number}.png" for number in range(10)]
    assert watched.run() == [f"{number}.png" for number in range(100)]


def run_in_process(watched: Watched, kill: str) -> int:
    """The exit code of a process that scores all files, unless it is killed in or after a transaction."""
    if (pid := os.fork()) > 0:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    count = 0

    @contextmanager
    def transaction() -> Iterator[History]:
        nonlocal count
        count += 1
        with real() as change:
            yield change
            if kill == f"in {count}":  # nothing is committed
                os.kill(os.getpid(), signal.SIGKILL)
        if kill == f"after {count}":
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with History(watched.database) as history:
            watcher = watched.watcher(history)
            real, history.transaction = history.transaction, transaction  # type: ignore[method-assign]
            watcher.run(once=True)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
def test_killed_watchers_store_what_one_that_was_not_stores(tmp_path: Path) -> None:
    expected, watched = Watched(tmp_path / "expected"), Watched(tmp_path / "killed")
    for each in (expected, watched):
        for number in range(400):
            each.put(f"{number}.png", number % 17 / 5 - 1.5, age=7200 - number)
    expected.run()
    for kill in ("in 1", "after 1", "in 2", "after 2", "in 1", "after 2", "in 1"):
        assert run_in_process(watched, kill) == -signal.SIGKILL, kill
    assert run_in_process(watched, "never") == 0
    names = [f"{number}.png" for number in range(400)]
    with History(watched.database) as found, History(expected.database) as whole:
        assert kept(found) == kept(whole) == names
        assert found.state("camera") == whole.state("camera")
        assert found.counts("camera") == whole.counts("camera")
