"""Which files are handed out, and when."""

import os
import time
from pathlib import Path

import pytest

from discopatch.watch.arrivals import Arrivals

HOUR = 3600.0


def write(path: Path, content: bytes = b"image", *, age: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if age:
        os.utime(path, (time.time() - age, time.time() - age))
    return path


class Folder:
    """A folder with its arrivals and a clock."""

    def __init__(self, path: Path, *, known: dict[str, str] | None = None, recursive: bool = False) -> None:
        self.path, self.now = path, 1000.0
        path.mkdir(exist_ok=True)
        self.arrivals = Arrivals(path, recursive=recursive, clock=lambda: self.now)
        self.arrivals.resume(known or {})

    def names(self, *changed: str, after: float = 0.0) -> list[str]:
        """The files that are handed out so many seconds later; `changed` are notified, as watchfiles does."""
        self.now += after
        self.arrivals.look()
        self.arrivals.add(str(self.path / name) for name in changed)
        found = self.arrivals.complete()
        for arrival in found:
            self.arrivals.done(arrival)
        return [str(Path(arrival.path).relative_to(self.path)) for arrival in found]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "in")


def test_a_new_file_is_complete_when_it_is_stable(folder: Folder) -> None:
    path = write(folder.path / "a.png", b"")
    for _ in range(3):
        assert folder.names(after=0.8) == []
        with path.open("ab") as file:
            file.write(b"more")
    assert folder.names(after=0.8) == []
    assert list(folder.arrivals.waiting) == [str(path)]
    assert folder.names(after=1.1) == ["a.png"]
    assert folder.names(after=10) == []
    assert not folder.arrivals.waiting


def test_files_that_are_renamed_into_place_are_complete_at_once_oldest_first(folder: Folder) -> None:
    parts = [write(folder.path / f"{name}.png.part", age=age) for name, age in (("young", 20), ("old", 3 * HOUR))]
    assert folder.names(after=5) == []
    for part in parts:
        part.rename(part.with_suffix(""))
    assert folder.names(after=0.1) == ["old.png", "young.png"]


def test_only_visible_images_are_taken(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "in", recursive=True)
    names = [".a.png", "a.png.part", "a.png.tmp", "a.png~", "a.part", "notes.txt", "a.tar", ".in/a.png"]
    for name in (*names, "b.JPG", "deep/d.png"):
        write(folder.path / name, age=HOUR)
    os.mkfifo(folder.path / "pipe.png")
    (folder.path / "folder.png").mkdir()
    (folder.path / "link.png").symlink_to(folder.path / "b.JPG")
    (folder.path / "dangling.png").symlink_to(folder.path / "nowhere")
    assert sorted(folder.names()) == ["b.JPG", "deep/d.png", "link.png"]
    assert folder.names(after=100) == []
    assert sorted(Folder(tmp_path / "in").names()) == ["b.JPG", "link.png"]


def test_changed_content_is_handed_out_again_and_known_content_is_not(folder: Folder, tmp_path: Path) -> None:
    path = write(folder.path / "a.png", age=HOUR)
    assert folder.names() == ["a.png"]
    assert folder.names("a.png", after=5) == []
    write(path, b"another image")
    assert folder.names("a.png") == []
    assert folder.names(after=2) == ["a.png"]
    status = path.stat()
    known = {str(path): f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"}
    assert Folder(tmp_path / "in", known=known).names("a.png", after=5) == []


def test_marks_of_files_that_are_gone_are_bounded(folder: Folder) -> None:
    for number in range(10):
        write(folder.path / f"{number}.png", age=HOUR)
    assert len(folder.names()) == 10
    for number in range(8):
        (folder.path / f"{number}.png").unlink()
    assert len(folder.arrivals.forget(keep=3)) == 5
    assert len(folder.arrivals.forget(keep=3)) == 0
