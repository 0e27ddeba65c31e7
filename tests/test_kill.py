"""Whatever is killed at whatever moment: what was there is there, nothing is half-written, the next run goes on."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from killing import COMMANDS, OUTPUT, Changes, Commands, Harness, KillAt, Material, cases, unfinished

from discopatch import utils
from discopatch.export.metadata import staged_folder
from discopatch.images import Transform, open_cache
from discopatch.utils import remove_leftovers, temporary_folder, workplace, write_atomically, write_json
from tests.samples import one_camera, save_images

Work = Callable[[Path], object]


def killed_at(change: int, work: Work, folder: Path) -> bool:
    """Whether a process that does the work was killed as it began to change files for the n-th time."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            sys.addaudithook(Changes(folder, KillAt(change, 0)))
            work(folder)
            status = 0
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


def killed_everywhere(work: Work, folder: Path, prepare: Work = lambda folder: None) -> Iterator[int]:
    """Does the work again and again, each time killed one change of files later, until it comes to its end."""
    change = 0
    while True:
        change += 1
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        prepare(folder)
        if not killed_at(change, work, folder):
            return
        yield change


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_new(folder: Path) -> None:
    write_atomically(folder / "file.txt", half_by_half)


def half_by_half(partial: Path) -> None:
    """As libraries do it that write a file of their own beside the one that they were asked for."""
    own = partial.with_name(".tmp123")
    for part in ("the new ", "content"):
        with own.open("a") as file:
            file.write(part)
    own.rename(partial)


@pytest.mark.parametrize("old", [None, "the old content"])
def test_a_file_is_the_old_or_the_new_one_and_the_next_write_cleans(tmp_path: Path, old: str | None) -> None:
    folder = tmp_path / "folder"
    found, left = set(), 0
    for _ in killed_everywhere(write_new, folder, lambda folder: old and (folder / "file.txt").write_text(old)):
        found.add((folder / "file.txt").read_text() if (folder / "file.txt").exists() else None)
        left += len(unfinished(folder))
        write_json(folder / "other.json", {})
        assert {"other.json"} <= set(names(folder)) <= {"file.txt", "other.json"}
    assert found == {old, "the new content"}
    assert left > 3


def fill(folder: Path, content: str) -> None:
    for name in ("detector.json", "detector.onnx"):
        (folder / name).write_text(content)


def replace_export(folder: Path) -> None:
    with staged_folder(folder / "export", force=True) as staged:
        fill(staged, "new")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_an_export_is_the_old_or_the_new_one_and_the_next_cleans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool, old: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(utils, "exchange", lambda first, second: False)
    folder = tmp_path / "folder"

    def prepare(folder: Path) -> None:
        if old:
            (folder / "export").mkdir()
            fill(folder / "export", "old")

    found = set()
    for _ in killed_everywhere(replace_export, folder, prepare):
        if not at_once:  # two renames: between them the old one is out of the way, until the next run looks
            remove_leftovers(folder)
        export = folder / "export"
        content = {path.name: path.read_text() for path in export.iterdir()} if export.exists() else {}
        assert len(content) in (0, 2)
        assert len(set(content.values())) <= 1
        found.add(next(iter(content.values()), None))
        with staged_folder(folder / "another") as staged:
            fill(staged, "another")
        assert set(names(folder)) <= {"export", "another"}
        assert export.exists() == bool(content)
    assert found == {"old" if old else None, "new"}


def test_a_cache_of_pixels_goes_on_and_leaves_only_itself(tmp_path: Path) -> None:
    images = [str(path) for path in save_images(tmp_path / "images", one_camera(6))]
    transform, folder = Transform(size=32), tmp_path / "folder"
    expected = open_cache(images, transform, tmp_path / "expected")

    def build(folder: Path) -> object:
        return open_cache(images, transform, folder, workers=1)

    for _ in killed_everywhere(build, folder):
        cache = open_cache(images, transform, folder, workers=1)
        assert cache.digest == expected.digest
        (finished,) = (path for path in folder.iterdir() if path.suffix != ".lock")
        assert names(finished) == ["index.json", "pixels.bin"]


def test_a_temporary_folder_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    def work(folder: Path) -> None:
        with temporary_folder() as place:
            (place / "run").mkdir()
            (place / "run" / "pixels.bin").write_bytes(bytes(1000))

    for _ in killed_everywhere(work, tmp_path / "temporary"):
        with temporary_folder() as place:
            assert names(place) == []
            assert names(tmp_path / "temporary") == [place.parent.name]
        assert names(tmp_path / "temporary") == []


def test_leftovers_below_a_folder_go_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def work(folder: Path) -> None:
        write_json(folder / "deep" / "down" / "file.json", {})

    for _ in killed_everywhere(work, folder):
        remove_leftovers(folder, below=True)
        assert unfinished(folder) == []


def test_what_a_living_process_is_writing_stays(tmp_path: Path) -> None:
    with workplace(tmp_path) as place:
        (place / "new").write_text("half of ")
        pid = os.fork()
        if pid == 0:
            write_json(tmp_path / "file.json", {})
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        write_json(tmp_path / "file.json", {})
        assert (place / "new").read_text() == "half of "
    assert names(tmp_path) == ["file.json"]


def test_what_looks_like_a_leftover_and_is_none_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "photo.png").touch()
    (tmp_path / ".discopatch-00000000.partial").symlink_to(precious)
    (tmp_path / ".discopatch-00000001.partial").write_text("a file")
    (tmp_path / ".discopatch-00000002.partial").mkdir()
    (tmp_path / ".discopatch-00000002.partial" / "photo.png").touch()
    before = names(tmp_path)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == before
    assert names(precious) == ["photo.png"]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module")
def harness(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Harness]:
    root = tmp_path_factory.mktemp("killed")
    found = cases(Material.make(root / "material"), root / "detector")

    def make(name: str) -> Harness:
        if name != "fit" and not (root / "detector").exists():
            made = Harness(commands, found["fit"], root / "detectors")
            shutil.copy(made.root / "reference" / OUTPUT / "detector", root / "detector")
        return Harness(commands, found[name], root / name)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_killed_and_nothing_is_lost(harness: Callable[[str], Harness], command: str) -> None:
    killing, rng = harness(command), np.random.default_rng(0)
    kills = [
        killing.kill(rng, writing=number % 2 == 0, fresh=number % 4 == 3, existing=number % 4 < 2)
        for number in range(2)
    ]
    assert [wrong for kill in kills for wrong in kill.wrong] == []
