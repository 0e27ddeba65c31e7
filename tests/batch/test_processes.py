"""Processes that are killed, stopped, started twice, or run out of space: finished parts stay, the rest follows."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from discopatch import Detector
from discopatch.batch import Run, score_to
from discopatch.errors import OutputError
from tests.cli.test_outputs import mounted
from tests.killing import CHANGES, OUTPUT, PRINTED, Commands, command_server, unfinished

from .samples import contents, image_folder, part_files, shard_folder


@pytest.fixture(scope="module")
def material(tiny: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six shards and fourteen loose images, and a detector."""
    root = tmp_path_factory.mktemp("material")
    shard_folder(root / "in", [3, 7, 2, 5, 4, 3])
    image_folder(root / "in", 14, first="loose-")
    (root / "in" / "loose-999.png").write_text("no image")
    tiny.save(root / "detector")
    return root


@pytest.fixture(scope="module")
def expected(tiny: Detector, material: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected") / "scores"
    score_to(tiny, material / "in", out, workers=1)
    return contents(out)


def arguments(material: Path, out: Path, *more: object) -> list[object]:
    given = ["score", material / "in", "--detector", material / "detector", "--out", out]
    return [*given, "--device", "cpu", *more]


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with command_server() as commands:
        yield commands


@pytest.mark.slow
def test_a_run_that_is_killed_ten_times_ends_as_one_that_was_not(
    commands: Commands, material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Every other kill is at a change of files, such as between the writing of a part and its rename."""
    rng, left = np.random.default_rng(0), 0
    for run in range(2):
        root = tmp_path / str(run)
        out, kills = root / OUTPUT / "scores", 0
        while kills < 5:
            given = arguments(material, out, "--workers", int(rng.integers(1, 4)))
            if kills % 2:
                killed = commands.wait(commands.start(given, root, int(rng.integers(1, 60)))) == -signal.SIGKILL
            else:
                killed = commands.kill_after(commands.start(given, root), float(rng.uniform(0, 0.5)))
            left, kills = left + len(unfinished(root)), kills + killed
            for name, content in contents(out).items() if out.exists() else ():
                assert content == expected[name]  # every file is whole
            if not killed:
                assert contents(out) == expected
                shutil.rmtree(out)
        commands.run(arguments(material, out), root)
        assert contents(out) == expected
        assert unfinished(root / OUTPUT) == []
        assert int((root / CHANGES).read_text()) > 0
    assert left > 0


@pytest.mark.slow
def test_no_part_is_scored_twice_by_five_processes_on_one_folder(
    commands: Commands, material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    started = [
        commands.start(arguments(material, tmp_path / "scores", "--workers", 1 + number % 2), tmp_path / str(number))
        for number in range(5)
    ]
    assert [commands.wait(pid) for pid in started] == [0] * 5
    assert contents(tmp_path / "scores") == expected
    printed = "".join((tmp_path / str(number) / PRINTED).read_text() for number in range(5))
    assert printed.count("7 of 7 parts") == 5
    assert sum(map(int, re.findall(r"scored now: (\d+) part", printed))) == 7
    assert not list((tmp_path / "scores" / "_claims").iterdir())


@pytest.mark.slow
def test_a_signal_drops_the_part_in_work_and_keeps_the_others(
    material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    command = [sys.executable, "-m", "discopatch", *map(str, arguments(material, out))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out.exists() and part_files(out)) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate()
    assert "Traceback" not in printed
    assert process.returncode in (0, 143)  # 0: the signal came too late
    assert contents(out).items() <= expected.items()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert contents(out) == expected
    assert unfinished(tmp_path) == []


def test_a_full_disk_is_one_error_and_the_run_continues_with_more_space(
    tiny: Detector, material: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    size = sum(map(len, expected.values()))
    with mounted(tmp_path / "disk", f"size={120 + size // 1024}k") as disk:
        out = disk / "scores"

        def fill(run: Run) -> None:
            if run.parts == 2:
                with suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))

        with pytest.raises(OutputError):
            score_to(tiny, material / "in", out, workers=1, progress=fill)
        assert len(part_files(out)) == 2
        assert contents(out).items() <= expected.items()
        assert unfinished(disk) == []
        (disk / "filler").unlink()
        score_to(tiny, material / "in", out)
        assert contents(out) == expected
