"""Which files are handed out, when, and how little is asked of the file system for it."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from discopatch.watch import Arrival, Arrivals, Stamp
from discopatch.watch.arrivals import COARSE, RECHECKED, RELIST

HOUR = 3600.0


class Clock:
    """The time that arrivals go by."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, content: bytes = b"image", *, age: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def fresh(path: Path, content: bytes = b"image") -> Path:
    """Written this moment, as by a program that may go on writing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class Folder:
    """A folder with its arrivals."""

    def __init__(self, path: Path, **options: object) -> None:
        self.path, self.clock = path, Clock()
        path.mkdir(exist_ok=True)
        self.arrivals = Arrivals(path, clock=self.clock, **options)  # type: ignore[arg-type]

    def names(self, *, after: float = 0.0, done: bool = True) -> list[str]:
        """What is handed out after so many seconds."""
        self.clock.now += after
        self.arrivals.poll()
        found = self.arrivals.take(10**6)
        for arrival in found if done else ():
            self.arrivals.done(arrival)
        return [str(Path(arrival.path).relative_to(self.path)) for arrival in found]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "in")


def test_a_new_file_is_complete_when_it_has_stood_still(folder: Folder) -> None:
    fresh(folder.path / "a.png")
    assert folder.names() == []
    assert folder.names(after=0.9) == []
    assert folder.arrivals.waiting == 1
    assert folder.names(after=0.2) == ["a.png"]
    assert folder.names(after=10) == []
    assert folder.arrivals.waiting == 0


def test_a_file_that_grows_is_not_complete(folder: Folder) -> None:
    path = fresh(folder.path / "a.png", b"")
    for _ in range(5):
        with path.open("ab") as file:
            file.write(b"more")
        assert folder.names(after=0.8) == []
    assert folder.names(after=1.1) == ["a.png"]


def test_a_file_that_another_process_writes_slowly_is_taken_whole(tmp_path: Path) -> None:
    folder, path = tmp_path / "in", tmp_path / "in" / "slow.png"
    folder.mkdir()
    code = (
        "import sys, time\n"
        "with open(sys.argv[1], 'wb', buffering=0) as file:\n"
        "    for _ in range(20):\n"
        "        file.write(bytes(100)); time.sleep(0.02)\n"
    )
    arrivals = Arrivals(folder, settle=0.5)
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    found: list[Arrival] = []
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        arrivals.poll()
        found = arrivals.take(5)
        time.sleep(0.01)
    assert process.wait() == 0
    assert [arrival.stamp.size for arrival in found] == [2000]


def test_an_old_file_that_is_renamed_into_place_is_complete_at_once(folder: Folder) -> None:
    part = write(folder.path / "a.png.part", age=20)  # written long ago; its entry changes with the rename
    assert folder.names(after=5) == []
    part.rename(folder.path / "a.png")
    assert folder.names(after=0.1) == ["a.png"]


def test_files_from_before_the_start_are_complete_at_once_oldest_first(folder: Folder) -> None:
    for name, age in (("young.png", HOUR), ("old.png", 3 * HOUR), ("middle.png", 2 * HOUR)):
        write(folder.path / name, age=age)
    assert folder.names() == ["old.png", "middle.png", "young.png"]


def test_a_clock_of_the_share_that_is_slow_makes_nothing_complete(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fresh(folder.path / "a.png")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 30)
    assert folder.names() == []
    path.write_bytes(b"more of it")
    assert folder.names(after=0.5) == []


@pytest.mark.parametrize(
    "name",
    [".a.png", "a.png.part", "a.png.tmp", "a.png.crdownload", "a.png~", "a.part", "notes.txt", "a.tar", ".in/a.png"],
)
def test_temporary_hidden_and_other_files_are_never_taken(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path / "in", recursive=True)
    write(folder.path / name, age=HOUR)
    write(folder.path / "b.JPG", age=HOUR)
    assert folder.names() == ["b.JPG"]
    assert folder.names(after=100) == []


def test_what_is_no_regular_file_is_never_taken(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe.png")
    (folder.path / "folder.png").mkdir()
    (folder.path / "nowhere.png").symlink_to(folder.path / "missing")
    for _ in range(3):
        assert folder.names(after=50) == []


def test_a_link_to_an_image_is_taken_once(folder: Folder) -> None:
    target = write(folder.path.parent / "image.png", age=HOUR)
    (folder.path / "link.png").symlink_to(target)
    assert [folder.names(after=5) for _ in range(3)] == [["link.png"], [], []]
    write(target, b"another image", age=HOUR / 2)
    assert [name for _ in range(3) for name in folder.names(after=RELIST)] == ["link.png"]


def test_a_pattern_and_folders_inside(tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg", "deep/c.png", "deep/down/d.png"):
        write(tmp_path / "in" / name, age=HOUR)
    assert Folder(tmp_path / "in").names() == ["a.png", "b.jpg"]
    assert Folder(tmp_path / "in", pattern="*.jpg").names() == ["b.jpg"]
    inside = Folder(tmp_path / "in", recursive=True, pattern="*.png")
    assert sorted(inside.names()) == ["a.png", "deep/c.png", "deep/down/d.png"]
    write(tmp_path / "in" / "new" / "folder" / "e.png", age=HOUR)
    assert inside.names(after=5) == ["new/folder/e.png"]
    write(tmp_path / "in" / "deep" / "down" / "f.png", age=HOUR)
    assert inside.names(after=5) == ["deep/down/f.png"]


def test_links_in_circles_have_an_end(tmp_path: Path) -> None:
    write(tmp_path / "in" / "deep" / "a.png", age=HOUR)
    (tmp_path / "in" / "deep" / "circle").symlink_to(tmp_path / "in")
    assert Folder(tmp_path / "in", recursive=True).names() == ["deep/a.png"]


def test_a_file_replaced_by_another_is_new_even_of_the_same_size_and_time(folder: Folder) -> None:
    path = write(folder.path / "a.png", b"one", age=HOUR)
    assert folder.names() == ["a.png"]
    status = path.stat()
    other = write(folder.path / "other.part", b"two")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert folder.names(after=0.5) == ["a.png"]
    assert folder.names(after=50) == []


def test_a_file_written_anew_in_its_place_is_new(folder: Folder) -> None:
    path = fresh(folder.path / "a.png", b"one")
    assert [folder.names(after=2) for _ in range(4)] == [[], ["a.png"], [], []]
    path.write_bytes(b"two of them")
    assert [name for _ in range(4) for name in folder.names(after=RELIST)] == ["a.png"]


def test_one_of_many_written_anew_in_its_place_is_found_in_the_end(folder: Folder) -> None:
    paths = [write(folder.path / f"{number}.png", age=HOUR) for number in range(3 * RECHECKED)]
    assert len(folder.names()) == len(paths)
    write(paths[-1], b"another image", age=HOUR / 2)
    write(paths[0], b"another image", age=HOUR / 2)
    assert sorted(name for _ in range(10) for name in folder.names(after=RELIST)) == ["0.png", paths[-1].name]


def test_what_is_put_back_stands_still_again_first(folder: Folder) -> None:
    write(folder.path / "a.png", age=HOUR)
    folder.arrivals.poll()
    (arrival,) = folder.arrivals.take(1)
    folder.arrivals.put_back(arrival)
    assert folder.names(after=0.5) == []
    assert folder.names(after=1) == ["a.png"]


def test_a_file_that_goes_before_it_is_complete_is_told(folder: Folder) -> None:
    path = fresh(folder.path / "a.png")
    assert folder.names() == []
    path.unlink()
    assert folder.names(after=5) == []
    assert folder.arrivals.gone == [str(path)]
    fresh(path)
    assert [folder.names(after=2) for _ in range(2)] == [[], ["a.png"]]


def test_a_folder_that_goes_away_is_waited_for(folder: Folder) -> None:
    write(folder.path / "a.png", age=HOUR)
    assert folder.names() == ["a.png"]
    folder.path.rename(folder.path.with_name("elsewhere"))
    assert folder.names(after=1) == []
    assert folder.arrivals.away is not None
    folder.path.with_name("elsewhere").rename(folder.path)
    write(folder.path / "b.png", age=HOUR)
    assert folder.names(after=1) == ["b.png"]
    assert folder.arrivals.away is None


def test_an_empty_folder_in_its_place_makes_nothing_new(folder: Folder) -> None:
    write(folder.path / "a.png", age=HOUR)
    assert folder.names() == ["a.png"]
    folder.path.rename(folder.path.with_name("elsewhere"))
    folder.path.mkdir()
    assert folder.names(after=RELIST) == []
    folder.path.rmdir()
    folder.path.with_name("elsewhere").rename(folder.path)
    assert [folder.names(after=RELIST) for _ in range(3)] == [[], [], []]


def test_files_that_are_gone_are_forgotten_but_for_the_newest(folder: Folder) -> None:
    paths = [write(folder.path / f"{number}.png", age=HOUR - number) for number in range(10)]
    assert len(folder.names()) == 10
    for path in paths[:8]:
        path.unlink()
    assert folder.arrivals.forget(keep=20) == []
    assert folder.arrivals.forget(keep=3) == [str(path) for path in paths[:5]]
    assert folder.arrivals.forget(keep=3) == []


def test_known_files_are_not_taken_again(tmp_path: Path) -> None:
    first = Folder(tmp_path / "in")
    path = write(tmp_path / "in" / "a.png", age=HOUR)
    known = {str(path): Stamp.of(path.stat())}
    assert first.names() == ["a.png"]
    assert Folder(tmp_path / "in", known=known).names() == []
    path.write_bytes(b"another image")
    assert Folder(tmp_path / "in", known=known).names() == []  # not complete yet
    other = Folder(tmp_path / "in", known=known)
    assert [name for _ in range(3) for name in other.names(after=5)] == ["a.png"]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often the file system is asked."""
    calls: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*arguments: object, **options: object) -> object:
            calls[name] += 1
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "scandir", "listdir"):
            patch.setattr(os, name, counting(name))
        yield calls


def test_ten_thousand_known_files_cost_few_calls(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10_000):
        write(folder.path / f"{number}.png", b"", age=HOUR)
    with counted(monkeypatch) as calls:
        assert len(folder.names()) == 10_000
    assert calls == {"stat": 10_001, "scandir": 1}
    polls = int(COARSE / 0.5) + 2
    with counted(monkeypatch) as calls:
        for _ in range(polls):
            assert folder.names(after=0.5) == []
    assert calls["stat"] <= polls * (1 + RECHECKED)
    assert calls["scandir"] <= polls
    with counted(monkeypatch) as calls:
        for _ in range(50):  # unchanged by now
            assert folder.names(after=0.5) == []
    assert calls["scandir"] <= 1
    assert calls["stat"] <= 50 + 50 * RECHECKED
    fresh(folder.path / "new.png")
    with counted(monkeypatch) as calls:
        assert [folder.names(after=0.5) for _ in range(4)] == [[], [], ["new.png"], []]
    assert calls["stat"] <= RECHECKED * (polls + 54) + 10


def test_a_known_folder_is_not_asked_about_at_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / "in" / f"{number}.png", age=HOUR) for number in range(1000)]
    known = {str(path): Stamp.of(path.stat()) for path in paths}
    folder = Folder(tmp_path / "in", known=known)
    with counted(monkeypatch) as calls:
        assert folder.names() == []
    assert calls["stat"] <= 1 + RECHECKED


def test_a_listing_just_after_a_change_is_not_the_last(folder: Folder) -> None:
    """Two files within one tick of the file system's clock: the folder's time shows only the first."""
    write(folder.path / "a.png", age=HOUR)
    before = folder.path.stat()
    assert folder.names() == ["a.png"]
    write(folder.path / "b.png", age=HOUR)
    os.utime(folder.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert folder.names(after=0.5) == ["b.png"]


def test_a_folder_inside_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "in", recursive=True)
    write(folder.path / "closed" / "a.png", age=HOUR)
    write(folder.path / "open" / "b.png", age=HOUR)
    real = os.scandir

    def scandir(path: str) -> "os._ScandirIterator[str]":
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert folder.names() == ["open/b.png"]
    assert list(folder.arrivals.closed) == [str(folder.path / "closed")]
    monkeypatch.undo()
    assert folder.names(after=RELIST) == ["closed/a.png"]
    assert folder.arrivals.closed == {}
