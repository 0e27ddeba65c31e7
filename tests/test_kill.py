"""Kills at any moment: older files stay, nothing is half-written, and the next run continues and cleans up."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import discopatch
from discopatch.images import Transform, open_cache
from discopatch.model import Weights
from discopatch.utils import remove_leftovers, staged_folder, temporary_folder, workplace, write_atomically, write_json
from tests.batch.samples import shard_folder
from tests.killing import CHANGES, OUTPUT, Changes, Commands, command_server, contents, unfinished
from tests.samples import one_camera, save_images, tiny_weights

Work = Callable[[Path], object]


def killed_at(change: int, work: Work, folder: Path) -> bool:
    """Whether a process that does the work was killed when it changed files for the n-th time."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            sys.addaudithook(Changes(folder, change))
            work(folder)
            status = 0
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


def killed_everywhere(work: Work, folder: Path, prepare: Work = lambda folder: None) -> Iterator[int]:
    """Does the work again and again, killed one change of files later each time, until it ends by itself."""
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


def half_by_half(partial: Path) -> None:
    """Writes as libraries do that use a file of their own beside the given one."""
    own = partial.with_name(".tmp123")
    for part in ("the new ", "content"):
        with own.open("a") as file:
            file.write(part)
    own.rename(partial)


@pytest.mark.parametrize("old", [None, "the old content"])
def test_a_file_is_the_old_or_the_new_one_and_the_next_write_cleans(tmp_path: Path, old: str | None) -> None:
    folder = tmp_path / "folder"
    found, left = set(), 0

    def write(folder: Path) -> None:
        write_atomically(folder / "file.txt", half_by_half)

    for _ in killed_everywhere(write, folder, lambda folder: old and (folder / "file.txt").write_text(old)):
        found.add((folder / "file.txt").read_text() if (folder / "file.txt").exists() else None)
        left += len(unfinished(folder))
        write_json(folder / "other.json", {})
        assert {"other.json"} <= set(names(folder)) <= {"file.txt", "other.json"}
    assert found == {old, "the new content"}
    assert left > 3


def fill(folder: Path, content: str) -> None:
    for name in ("detector.json", "detector.onnx"):
        (folder / name).write_text(content)


@pytest.mark.parametrize("old", [True, False])
def test_an_export_is_the_old_or_the_new_one_and_the_next_cleans(tmp_path: Path, old: bool) -> None:
    folder = tmp_path / "folder"

    def prepare(folder: Path) -> None:
        if old:
            (folder / "export").mkdir()
            fill(folder / "export", "old")

    def replace_export(folder: Path) -> None:
        with staged_folder(folder / "export") as staged:
            fill(staged, "new")

    found = set()
    for _ in killed_everywhere(replace_export, folder, prepare):
        remove_leftovers(folder)  # between two renames the old one is out of the way, until the next run
        export = folder / "export"
        content = {path.name: path.read_text() for path in export.iterdir()} if export.exists() else {}
        assert len(content) in (0, 2)
        assert len(set(content.values())) <= 1
        found.add(next(iter(content.values()), None))
        with staged_folder(folder / "another") as staged:
            fill(staged, "another")
        assert set(names(folder)) <= {"export", "another"}
    assert found == {"old" if old else None, "new"}


@pytest.mark.slow
def test_a_cache_of_pixels_continues_and_leaves_only_itself(tmp_path: Path) -> None:
    images = [str(path) for path in save_images(tmp_path / "images", one_camera(6))]
    transform, folder = Transform(size=32), tmp_path / "folder"
    expected = open_cache(images, transform, tmp_path / "expected")
    for _ in killed_everywhere(lambda folder: open_cache(images, transform, folder, workers=1), folder):
        cache = open_cache(images, transform, folder, workers=1)
        assert cache.digest == expected.digest
        remove_leftovers(folder)  # as the next cache does
        (finished,) = (path for path in folder.iterdir() if path.suffix != ".lock")
        assert names(finished) == ["index.json", "pixels.bin"]


def test_a_temporary_folder_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))

    def work(folder: Path) -> None:
        with temporary_folder() as place:
            (place / "pixels.bin").write_bytes(bytes(1000))

    for _ in killed_everywhere(work, tmp_path / "temporary"):
        with temporary_folder() as place:
            assert names(place) == []
            assert names(tmp_path / "temporary") == [place.parent.name]
        assert names(tmp_path / "temporary") == []


def test_files_of_a_living_process_and_of_others_stay(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "photo.png").touch()
    (tmp_path / ".discopatch-00000000.partial").symlink_to(precious)
    (tmp_path / ".discopatch-00000001.partial").write_text("a file")
    (tmp_path / ".discopatch-00000002.partial").mkdir()
    (tmp_path / ".discopatch-00000002.partial" / "photo.png").touch()
    before = names(tmp_path)
    with workplace(tmp_path) as place:
        (place / "new").write_text("half of ")
        pid = os.fork()
        if pid == 0:
            write_json(tmp_path / "file.json", {})
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert (place / "new").read_text() == "half of "
    assert names(tmp_path) == sorted([*before, "file.json"])
    assert names(precious) == ["photo.png"]


@dataclass(frozen=True)
class Case:
    """One command, a check that its output is whole, and a result that is the same after every finished run."""

    arguments: list[object]
    check: Callable[[Path], object]
    result: Callable[[Path], object]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("material")
    save_images(root / "normal", one_camera(30))
    shard_folder(root / "new", [3, 4, 2])
    tiny_weights().save(root / "tiny.safetensors")
    return root


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with command_server() as commands:
        yield commands


def case(command: str, material: Path, detector: Path, out: Path) -> Case:
    quick = ("--device", "cpu", "--workers", 1)
    score = ["score", material / "new", "--detector", detector, *quick]
    few = ("--false-alarm-rate", 0.1, "--detection-images", 1)
    fit = ["fit", material / "normal", "--weights", material / "tiny.safetensors", *few, *quick]
    train = ["train", material / "normal", "--preset", "tiny", "--steps", 6]
    resume = ["--resume"] if (out / "run" / "run.json").exists() else []

    def load(path: Path) -> object:
        return path.exists() and discopatch.load(path)

    def weights(path: Path) -> dict[str, bytes]:
        state = Weights.load(next(path.rglob("discriminator.safetensors"))).discriminator.state_dict()
        return {name: value.numpy().tobytes() for name, value in state.items()}

    return {
        "fit": Case([*fit, "-o", out / "detector", "--force"], lambda out: load(out / "detector"), contents),
        "score --report": Case(
            [*score, "--report", out / "report.html"],
            lambda out: all(path.read_text().rstrip().endswith("</html>") for path in out.glob("*.html")),
            lambda out: sorted(contents(out)),
        ),
        "train": Case(
            [*train, "--set", "images=2", "--set", "patches=2", "--accelerator", "cpu", "--out", out / "run", *resume],
            lambda out: [json.loads(path.read_text()) for path in out.rglob("run.json")],
            weights,
        ),
    }[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "score --report", pytest.param("train", marks=pytest.mark.nightly)])
def test_a_killed_command_loses_nothing(command: str, commands: Commands, material: Path, tmp_path: Path) -> None:
    detector, rng = material / "detector", np.random.default_rng(0)
    if not detector.exists():
        commands.run(case("fit", material, detector, material / OUTPUT).arguments, material)
        shutil.copy(material / OUTPUT / "detector", detector)
    reference = tmp_path / "reference"
    commands.run(case(command, material, detector, reference / OUTPUT).arguments, reference)
    changes, killed = int((reference / CHANGES).read_text()), 0
    for number in range(2):
        root = tmp_path / str(number)
        for _ in range(2):
            given = case(command, material, detector, root / OUTPUT)
            status = commands.wait(commands.start(given.arguments, root, int(rng.integers(1, changes + 1))))
            killed += status == -signal.SIGKILL
            given.check(root / OUTPUT)
        commands.run(case(command, material, detector, root / OUTPUT).arguments, root)
        assert given.result(root / OUTPUT) == given.result(reference / OUTPUT)
        assert unfinished(root) == []
    assert killed > 0
