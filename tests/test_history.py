"""The history: whole after a kill at any moment and on a full disk, bounded, and never a file of another program."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from discopatch import Prediction
from discopatch.errors import OutputError, ParameterError, StoreError
from discopatch.history import Answer, Counts, History
from discopatch.results import ComponentScore
from tests.cli.test_outputs import mounted
from tests.postgres import PASSWORD, Server

NORMAL = Prediction("normal.png", 0.1 + 0.2, 1 / 3, False)
FLAGGED = Prediction("flagged.png", 7.25, 0.01, True, components=(ComponentScore("place", 4.5, True),))
REFUSED = Prediction("broken.png", None, None, None, "truncated: JPEG cut short or damaged: copy it again")


Place: TypeAlias = Path | str


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a history may be: a file, or a database of a real server."""
    if request.param == "sqlite":
        return tmp_path / "new" / "history.sqlite"
    return str(request.getfixturevalue("postgres").new_database())


def add(history: History, *predictions: Prediction, detector: str = "camera") -> list[int]:
    with history.transaction() as change:
        return [change.add(detector, each, time=5.0) for each in predictions]


def names(history: History, detector: str = "camera", limit: int = 1000) -> list[str]:
    return [entry.prediction.name for entry in history.recent(detector, limit)]


def numbered(count: int) -> list[Prediction]:
    return [Prediction(f"{number}.png", float(number), 0.5, False) for number in range(count)]


def test_nothing_is_added_to_a_file_that_was_deleted_or_replaced(tmp_path: Path) -> None:
    path, moved = tmp_path / "history.sqlite", tmp_path / "moved.sqlite"
    with History(path) as history:
        add(history, NORMAL)
        path.rename(moved)
        with pytest.raises(StoreError, match="deleted or replaced"):
            add(history, NORMAL)
        path.write_bytes(moved.read_bytes())
        with pytest.raises(StoreError, match="deleted or replaced"):
            add(history, NORMAL)
        moved.replace(path)
        add(history, FLAGGED)
        assert names(history) == ["flagged.png", "normal.png"]


def test_what_was_added_is_there_to_the_bit_newest_first(place: Place) -> None:
    with History(place) as history, history.transaction() as change:
        change.add("camera", NORMAL, time=1.5, source="/in/normal.png", digest="00ff")
        change.add("camera", FLAGGED, time=2.5, thumbnail=b"image", evidence=-0.1 - 0.2)
        change.add("camera", REFUSED, time=3.5)
        change.add("other", NORMAL, time=4.5)
    with History(place) as history:
        found = history.recent("camera")
        assert [entry.prediction for entry in found] == [REFUSED, FLAGGED, NORMAL]
        assert [(entry.time, entry.source, entry.has_thumbnail) for entry in found] == [
            *((3.5, None, False), (2.5, None, True), (1.5, "/in/normal.png", False))
        ]
        assert [entry.evidence for entry in found] == [None, -0.1 - 0.2, None]
        assert [entry.id for entry in found] == sorted((entry.id for entry in found), reverse=True)
        assert [history.thumbnail(entry.id) for entry in found] == [None, b"image", None]
        assert history.recent("camera", limit=1, before=found[0].id) == found[1:2]
        assert history.following("camera", found[2].id, limit=5) == [found[1], found[0]]
        assert history.counts("camera") == Counts(images=3, flagged=1, refused=1)
        assert history.counts("unknown") == Counts(0, 0, 0)
        assert history.recent("unknown") == []
        assert history.thumbnail(10**6) is None


def test_alarms_and_the_state_of_the_monitor_are_kept(place: Place) -> None:
    with History(place) as history:
        assert history.state("camera") is None
        for number in range(3):
            with history.transaction() as change:
                change.add_alarm("camera", float(number), {"images": number, "alarm": True})
                change.put("camera", state=b"%d" % number)
        assert history.state("camera") == b"2"
        assert [(each["time"], each["images"]) for each in history.alarms("camera", limit=2)] == [(2, 2), (1, 1)]
        assert history.alarms("other") == []


def test_an_error_in_a_transaction_undoes_all_of_it(place: Place) -> None:
    with History(place) as history:
        add(history, NORMAL)
        with contextlib.suppress(KeyError), history.transaction() as change:
            change.add("camera", FLAGGED, time=0.0)
            change.put("camera", state=b"state")
            change.add_alarm("camera", 0.0, {})
            change.mark_file("camera", "/in/a.png", "1 2 3")
            raise KeyError
        assert names(history) == ["normal.png"]
        assert (history.counts("camera"), history.state("camera")) == (Counts(1, 0, 0), None)
        for table in ("alarms", "files"):
            assert history.rows(f"SELECT count(*) FROM {table}") == [(0,)]


def test_the_newest_stay_and_totals_count_all(place: Place) -> None:
    added = [*numbered(500), FLAGGED, REFUSED]
    with History(place, keep=20) as history:
        add(history, *numbered(5), detector="other")
        for start in range(0, len(added), 7):
            add(history, *added[start : start + 7])
        assert names(history) == [each.name for each in reversed(added[-20:])]
        assert history.counts("camera") == Counts(502, 1, 1)
        assert len(history.recent("other")) == 5


def test_names_that_are_not_unicode_are_escaped_and_their_files_are_exact(place: Place) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    with History(place) as history, history.transaction() as change:
        change.add("camera", Prediction(name, 1.0, 0.5, False), time=0.0, source=name)
        change.mark_file("camera", name, "1 2 3")
        (entry,) = history.recent("camera")
        assert (entry.prediction.name, entry.source) == ("caf\\xe9.png", "caf\\xe9.png")
        assert history.rows("SELECT path, stamp FROM files") == [(b"caf\xe9.png", "1 2 3")]


def test_an_answer_is_kept_with_its_key_until_there_are_many(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discopatch.history.KEPT_ANSWERS", 10)
    with History(place) as history:
        for number in range(6):
            with history.transaction() as change:
                change.add_answer("camera", f"key-{number}", Answer("digest", f"body-{number}"), images=number)
        found = [history.answer("camera", f"key-{number}") for number in range(6)]
        assert found == [None] * 4 + [Answer("digest", "body-4"), Answer("digest", "body-5")]
        with history.transaction() as change:
            change.add_answer("camera", "key-6", Answer("digest", "body-6"), images=3)
        assert [history.answer("camera", f"key-{number}") is not None for number in (4, 5, 6)] == [False, True, True]
        assert history.answer("other", "key-5") is None


def test_many_threads_write_and_read(place: Place) -> None:
    def work(_: int) -> None:
        for _ in range(25):
            add(history, NORMAL, FLAGGED)
            assert len(history.recent("camera", limit=2)) == 2
            assert history.counts("camera").images % 2 == 0

    with History(place) as history:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert history.counts("camera") == Counts(400, 200, 0)
        assert len(names(history)) == 400


KILLED = """
import sys, os, signal
from discopatch.results import Prediction
from discopatch.history import History
history = History(sys.argv[1], keep=50)
for number in range(10**6):
    with history.transaction() as change:
        for half in ("a", "b"):
            change.add("camera", Prediction(f"{number}{half}.png", 1.0, 0.5, True), time=0.0)
        change.put("camera", state=str(number).encode() * 5000)
        if number == 30:
            print("now", flush=True)
        if number == 60 and sys.argv[2] == "inside":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["inside", "any"])
def test_a_killed_process_leaves_whole_transactions(place: Place, moment: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(place), moment], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    if moment == "any":
        process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    with History(place, keep=50) as history:
        newest, before = history.recent("camera", limit=2)
        last = int(newest.prediction.name.removesuffix("b.png"))
        assert before.prediction.name == f"{last}a.png"
        assert history.counts("camera") == Counts(2 * (last + 1), 2 * (last + 1), 0)
        assert history.state("camera") == str(last).encode() * 5000
        assert len(names(history)) == 50
        if moment == "inside":
            assert last == 59
        add(history, NORMAL)
        if isinstance(place, Path):
            assert history.rows("PRAGMA integrity_check") == [("ok",)]


def test_a_full_disk_is_an_error_of_its_own_and_loses_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=300k") as disk, History(disk / "history.sqlite") as history:
        added, refused = 0, 0
        while refused < 3:
            try:
                with history.transaction() as change:
                    change.add("camera", NORMAL, time=0.0, thumbnail=os.urandom(3000))
                    change.add("camera", FLAGGED, time=0.0, thumbnail=os.urandom(3000))
                added += 1
            except OutputError:
                refused += 1
        assert history.counts("camera") == Counts(2 * added, added, 0)
        subprocess.run(["mount", "-o", "remount,size=8M", str(disk)], check=True)
        for _ in range(100):
            add(history, NORMAL)
        assert history.counts("camera") == Counts(2 * added + 100, added, 0)
        assert history.rows("PRAGMA integrity_check") == [("ok",)]


def test_files_of_others_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    text, database, newer = tmp_path / "notes.txt", tmp_path / "others.sqlite", tmp_path / "newer.sqlite"
    text.write_text("important notes, more than sixteen bytes of them\n" * 100)
    History(newer).close()
    for path, statement in (
        (database, "CREATE TABLE predictions (precious TEXT)"),
        (newer, "PRAGMA user_version = 99"),
    ):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
    for path in (text, database, newer):
        before = path.read_bytes()
        with pytest.raises(StoreError, match=path.name):
            History(path)
        assert path.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newer.sqlite", "notes.txt", "others.sqlite"]
    for path in (tmp_path, text / "history.sqlite"):
        with pytest.raises(StoreError):
            History(path)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with History(path) as history:
        add(history, *numbered(2000))
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError), History(path) as history:
        history.recent("camera")


def test_one_process_at_a_time_records_for_a_detector(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with History(path) as history, History(path) as other:
        history.reserve("camera")
        other.reserve("another")
        with pytest.raises(StoreError, match="camera"):
            other.reserve("camera")
    with History(path) as history:
        history.reserve("camera")


@pytest.mark.slow
def test_a_reader_of_new_entries_misses_none_of_several_writers(postgres: Server) -> None:
    address = postgres.new_database()

    def write(writer: int) -> None:
        with History(address) as history:
            for number in range(40):
                add(
                    history,
                    *[Prediction(f"{writer}-{number}-{each}", 1.0, 0.5, False) for each in range(1 + number % 3)],
                )

    with History(address) as history, ThreadPoolExecutor(4) as pool:
        writers, last, found = [pool.submit(write, number) for number in range(4)], 0, list[str]()
        while True:
            are_done = all(each.done() for each in writers)
            for entry in history.following("camera", last, 10):
                last = entry.id
                found.append(entry.prediction.name)
            if are_done and len(found) == history.counts("camera").images:
                break
            assert not are_done or history.following("camera", last, 1), "an entry was committed behind the reader"
        assert [each.result() for each in writers] == [None] * 4
        assert len(set(found)) == len(found) == 4 * (14 * 1 + 13 * 2 + 13 * 3)


@pytest.mark.slow
def test_a_server_that_goes_away_is_an_error_and_its_return_is_found(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres.new_database()
    monkeypatch.setattr("discopatch.databases.AWAY_SECONDS", 0)
    with History(address) as history:
        add(history, NORMAL)
        postgres.stop()
        try:
            for _ in range(2):
                with pytest.raises(StoreError, match=r"database\d") as caught:
                    add(history, FLAGGED)
                assert PASSWORD not in str(caught.value)
            with pytest.raises(StoreError):
                names(history)
        finally:
            postgres.start()
        assert names(history) == ["normal.png"]
        postgres.stop("fast")
        postgres.start()
        add(history, REFUSED)
        assert names(history) == ["broken.png", "normal.png"]


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", ["before", "after"])
def test_a_commit_whose_answer_was_lost_is_known_afterwards(postgres: Server, is_lost: str) -> None:
    with History(postgres.new_database()) as history:
        add(history, NORMAL)
        database: Any = history.database
        execute = database.execute

        def lose(statement: str, values: tuple[object, ...] = ()) -> Any:
            if statement == "COMMIT":
                if is_lost == "after":
                    execute(statement)
                database._connection.close()
            return execute(statement, values)

        database.execute = lose
        with pytest.raises(StoreError):
            add(history, FLAGGED)
        database.execute = execute
        assert history.database.doubt is not None
        assert history.was_committed(history.database.doubt) == (is_lost == "after")
        assert len(names(history)) == 1 + (is_lost == "after")
        add(history, NORMAL)
        assert history.database.doubt is None


@pytest.mark.slow
def test_databases_of_others_and_wrong_addresses_are_refused_without_the_password(postgres: Server) -> None:
    psycopg = pytest.importorskip("psycopg")
    newer, others = postgres.new_database(), postgres.new_database()
    History(newer).close()
    for address, statement in (
        (newer, "UPDATE discopatch.version SET number = 99"),
        (others, "CREATE SCHEMA discopatch CREATE TABLE predictions (precious TEXT)"),
    ):
        with psycopg.connect(address) as connection:
            connection.execute(statement)
    wrong = (
        newer,
        others,
        newer.replace("database", "missing"),
        newer.replace("word@", "word2@"),
        f"{newer}?port={PASSWORD}",
    )
    for address in wrong:
        with pytest.raises((StoreError, ParameterError)) as caught:
            History(address)
        assert PASSWORD not in str(caught.value)
    with psycopg.connect(others) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'discopatch'").fetchone() == (1,)
