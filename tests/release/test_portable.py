"""Windows' rules of files, applied to a process on Linux: what is written, replaced and removed would be there too."""

import ast
import errno
import fcntl
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from discopatch import Detector
from discopatch.errors import HistoryError, OutputError
from discopatch.export.metadata import staged_folder
from discopatch.history import History
from discopatch.images import Transform
from discopatch.images.cache import open_cache
from discopatch.utils import locked, remove_leftovers, workplace, write_atomically, write_json
from discopatch.watch.notify import split_words
from tests.deploy.dockerfile import ROOT
from tests.export.samples import tiny_detector
from tests.samples import one_camera

POSIX_ALONE = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "crypt", "nis"}
OPEN_FILES = Path("/proc/self/fd")

pytestmark = pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="needs Linux, which lists the open files of a process")


def in_use() -> set[str]:
    """The files that this process has open or mapped into memory."""
    found = set()
    for name in os.listdir(OPEN_FILES):  # noqa: PTH208
        try:
            found.add(os.readlink(OPEN_FILES / name))  # noqa: PTH115
        except FileNotFoundError:
            continue
    mapped = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    return found | {line.split(maxsplit=5)[5] for line in mapped if line.count("/")}


def check_free(path: str | bytes | os.PathLike[str], **_: Any) -> None:
    place = os.path.realpath(os.fsdecode(path))
    if any(each == place or each.startswith(f"{place}/") for each in in_use()):
        raise PermissionError(errno.EACCES, "it is open", place)


def refuse_open(function: Callable[..., None]) -> Callable[..., None]:
    """The function, which refuses paths that are in use."""

    def refusing(*paths: Any, **options: Any) -> None:
        if options.get("dir_fd") is None:  # `shutil.rmtree` names files by an open folder, on Linux alone
            for path in paths:
                check_free(path)
        function(*paths, **options)

    return refusing


def sync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    real(descriptor)


def lock(descriptor: int, mode: int, count: int, flock: Callable[[int, int], None] = fcntl.flock) -> None:
    """As `msvcrt.locking` has it."""
    assert (mode, count) == (2, 1)
    try:
        flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "locked") from error


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("unlink", "remove", "rename", "replace"):
        monkeypatch.setattr(os, name, refuse_open(getattr(os, name)))
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=lock, LK_NBLCK=2))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(sys, "platform", "win32")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("windows")
def test_files_are_written_and_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        write_atomically(tmp_path / "file.txt", partial(Path.write_bytes, data=content))
    write_json(tmp_path / "run.json", {"step": 1})
    assert (tmp_path / "file.txt").read_text() == "second"
    assert b"\r" not in (tmp_path / "run.json").read_bytes()
    assert names(tmp_path) == ["file.txt", "run.json"]


@pytest.mark.usefixtures("windows")
def test_a_file_that_another_program_has_open_is_an_error_that_names_it_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with path.open(), pytest.raises(OutputError, match=r"file\.txt"):
        write_atomically(path, partial(Path.write_text, data="new"))
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


@pytest.mark.usefixtures("windows")
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_stays(tmp_path: Path) -> None:
    left = tmp_path / ".discopatch-0123abcd.partial"
    left.mkdir()
    for name in ("lock", "new"):
        (left / name).touch()
    with workplace(tmp_path) as place:
        assert not left.exists()
        (place / "new").write_text("half of")
        remove_leftovers(tmp_path)
        assert (place / "new").exists()
    assert names(tmp_path) == []


@pytest.mark.usefixtures("windows")
def test_a_folder_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with staged_folder(tmp_path / "camera-onnx", force=True) as folder:
            (folder / "detector.json").write_text(content)
    assert (tmp_path / "camera-onnx" / "detector.json").read_text() == "second"
    assert names(tmp_path) == ["camera-onnx"]


@pytest.mark.slow
def test_a_detector_is_saved_twice_and_loaded(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fitted = tiny_detector()
    request.getfixturevalue("windows")
    for _ in range(2):
        fitted.save(tmp_path / "camera")
    assert names(tmp_path) == ["camera"]
    loaded = Detector.load(tmp_path / "camera")
    loaded.save(tmp_path / "other")
    assert names(tmp_path) == ["camera", "other"]
    assert Detector.load(tmp_path / "other").threshold_ == loaded.threshold_


@pytest.mark.usefixtures("windows")
def test_one_process_at_a_time_records_for_a_detector(tmp_path: Path) -> None:
    first, second = History(tmp_path / "history.sqlite"), History(tmp_path / "history.sqlite")
    try:
        first.reserve("camera")
        with pytest.raises(HistoryError, match="another process"):
            second.reserve("camera")
        second.reserve("another")
    finally:
        first.close()
        second.close()


@pytest.mark.usefixtures("windows")
def test_a_lock_is_waited_for_and_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "folder" / "key.lock"):
            pass


def test_the_cache_of_pixels_is_built_and_found_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    images = one_camera(5)
    request.getfixturevalue("windows")
    first = open_cache(images, Transform(size=64), tmp_path, workers=1)
    again = open_cache(images, Transform(size=64), tmp_path, workers=1)
    assert np.array_equal(first.pixels, again.pixels)
    assert first.digest == again.digest


def test_words_of_a_command_keep_their_backslashes_on_windows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    command = r'"C:\Program Files\tell.exe" --to ops C:\logs'
    monkeypatch.setattr(sys, "platform", "win32")
    assert split_words(command) == [r"C:\Program Files\tell.exe", "--to", "ops", r"C:\logs"]
    monkeypatch.setattr(sys, "platform", "linux")
    assert split_words(r"tell a\ b 'c d'") == ["tell", "a b", "c d"]


def imported_at_once(tree: ast.Module) -> set[str]:
    """The packages that importing the module imports, those in its functions left out."""
    found, waiting = set(), list[ast.AST](tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found


def test_no_module_imports_what_only_some_systems_have() -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    assert len(modules) > 100
    assert imported_at_once(ast.parse("import os\nif True:\n    import fcntl")) == {"os", "fcntl"}
    found = {path.name: imported_at_once(ast.parse(path.read_text())) & POSIX_ALONE for path in modules}
    assert {name: each for name, each in found.items() if each} == {}
