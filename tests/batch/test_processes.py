"""Processes that are killed, stopped, started twice, or run out of space: what is there stays, the rest follows."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from killing import CHANGES, PRINTED, Commands, KillAt, unfinished

from discopatch import OutputError
from discopatch.batch import Run, read_scores, score_to
from tests.cli.test_outputs import mounted
from tests.export.samples import tiny_detector

from .samples import contents, image_folder, part_files, shard_folder

PATIENCE = 600.0  # seconds


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six shards and fourteen loose images, and a detector."""
    root = tmp_path_factory.mktemp("material")
    shard_folder(root / "in", [3, 7, 2, 5, 4, 3])
    image_folder(root / "in", 14, first="loose-")
    (root / "in" / "loose-999.png").write_text("no image")
    tiny_detector().save(root / "detector")
    return root


@pytest.fixture(scope="module")
def expected(material: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "scores"
    score_to(tiny_detector(), material / "in", out, per_part=4, features=True, workers=1)
    return contents(out)


def arguments(material: Path, out: Path, *more: object) -> list[object]:
    given = ["score", material / "in", "--detector", material / "detector", "--out", out, "--per-part", 4]
    return [*given, "--features", "--device", "cpu", *more]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.mark.slow
def test_a_run_that_is_killed_at_ten_moments_ends_as_one_that_was_not(
    commands: Commands, material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Every other kill is at a change of files, such as between the writing of a part and its rename."""
    rng, kills, left, runs = np.random.default_rng(0), 0, 0, itertools.count()
    while kills < 10:
        root = tmp_path / str(next(runs))
        (root / "output").mkdir(parents=True)
        out, changes, seconds = root / "output" / "scores", 60, 1.0
        while True:
            workers = int(rng.integers(1, 4))
            given = arguments(material, out, "--workers", workers)
            if kills % 2:
                command = commands.start(given, root, KillAt(int(rng.integers(1, changes)), 0))
                killed = command.wait() == -signal.SIGKILL
            else:
                killed = commands.start(given, root).kill_after(float(rng.uniform(0, seconds)))
            left += len(unfinished(root))
            for name, content in contents(out).items() if out.exists() else ():
                assert content == expected[name]  # whatever is there is whole
            if not killed:
                assert contents(out) == expected, (root / PRINTED).read_text()[-2000:]
                assert unfinished(root / "output") == []
                break
            kills += 1
            if kills >= 10:
                assert commands.start(arguments(material, out), root).wait() == 0
                assert contents(out) == expected
                assert unfinished(root / "output") == []
                break
    assert left > 0
    assert int((root / CHANGES).read_text()) > 0


@pytest.mark.slow
def test_two_processes_and_three_ranks_on_one_folder(
    commands: Commands, material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    started = []
    layouts = [(), ("--workers", 1), *((("--rank", rank, "--world", 3)) for rank in range(3))]
    for number, layout in enumerate(layouts):
        root = tmp_path / str(number)
        root.mkdir()
        started.append((commands.start(arguments(material, tmp_path / "scores", *layout), root), root))
    for command, root in started:
        assert command.wait() == 0, (root / PRINTED).read_text()[-2000:]
    assert contents(tmp_path / "scores") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drops_the_part_in_work_and_keeps_the_others(
    number: signal.Signals, status: int, material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    command = [sys.executable, "-m", "discopatch", *map(str, arguments(material, out))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE
    while not (out.exists() and part_files(out)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(number)
    _, printed = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in printed
    if process.returncode:  # else it came too late
        assert process.returncode == status
        assert printed.splitlines()[-1].startswith("stopped: ")
    assert contents(out).items() <= expected.items()
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert contents(out) == expected
    assert unfinished(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("variables", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")])
def test_launchers_tell_the_rank(
    variables: tuple[str, str], material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "discopatch", *map(str, arguments(material, tmp_path / "scores"))]
    for rank in range(2):
        given = dict(zip(variables, (str(rank), "2"), strict=True))
        done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"rank {rank} of 2" in done.stderr
    assert contents(tmp_path / "scores") == expected


def test_a_full_disk_is_one_error_and_the_run_goes_on_when_there_is_room(
    material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    size = sum(map(len, expected.values()))
    with mounted(tmp_path / "disk", f"size={80 + size // 2048}k") as disk:
        out = disk / "scores"

        def fill(run: Run) -> None:
            if run.parts == 2:
                with suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))

        with pytest.raises(OutputError, match="free some space"):
            score_to(tiny_detector(), material / "in", out, per_part=4, features=True, workers=1, progress=fill)
        assert len(part_files(out)) == 2
        assert contents(out).items() <= expected.items()
        assert unfinished(disk) == []
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", f"remount,size={4 * size + 2**20}", str(disk)], check=True)
        score_to(tiny_detector(), material / "in", out, features=True)
        assert contents(out) == expected


def test_a_process_that_is_given_another_plan_adds_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of one and its plan, another one writes a plan of fewer images."""
    source, out = image_folder(tmp_path / "in", 3), tmp_path / "scores"
    from discopatch.batch import folder

    create, first = folder.create_plan, [True]

    def late(store: object, parts: object, generation: int) -> bool:
        if first.pop() if first else False:
            monkeypatch.setattr(folder, "create_plan", create)
            score_to(tiny_detector(), [str(source / "001.png")], out)
            monkeypatch.setattr(folder, "create_plan", late)
        return create(store, parts, generation)  # type: ignore[arg-type]

    monkeypatch.setattr(folder, "create_plan", late)
    score_to(tiny_detector(), source, out)
    names = [Path(name).name for name in read_scores(out).to_table()["name"].to_pylist()]
    assert names == ["001.png", "000.png", "002.png"]
