"""`discopatch watch` as a process: signals, kills, a second one, and what is printed and kept."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import discopatch
from discopatch import Prediction
from discopatch.history import Counts, History
from discopatch.monitor import Monitor
from discopatch.watch import default_database
from tests.samples import new_detector, one_camera, save_images

from .conftest import Run, assert_error, assert_usage_error

PATIENCE = 600.0  # seconds for something to happen
QUICK = ("--device", "cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watch") / "camera-3"
    new_detector().fit(one_camera(40), workers=1).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def fill(folder: Path, count: int, *, seed: int = 1, old: bool = True) -> list[Path]:
    paths = save_images(folder, one_camera(count, seed=seed))
    for number, path in enumerate(paths) if old else ():
        os.utime(path, (1e9 + number, 1e9 + number))
    return paths


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "discopatch", "watch", *map(str, arguments), *QUICK]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for long"
        time.sleep(0.02)


def images(database: Path) -> int:
    """How many predictions another process has kept."""
    if not database.exists():
        return 0
    try:
        with sqlite3.connect(database) as connection:
            (count,) = connection.execute("SELECT count(*) FROM predictions").fetchone()
        connection.close()
    except sqlite3.OperationalError:  # not made yet
        return 0
    return int(count)


def kept(database: Path, name: str = "camera-3") -> list[Prediction]:
    with History(database) as history:
        return [entry.prediction for entry in reversed(history.recent(name, limit=10**6))]


def test_what_is_there_is_scored_as_predict_scores_it(run: Run, saved: Path, folder: Path, database: Path) -> None:
    paths = fill(folder, 6)
    (folder / "broken.png").write_bytes(paths[0].read_bytes()[:200])
    os.utime(folder / "broken.png", (1e9 + 100, 1e9 + 100))
    finished = run("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
    assert finished.status == 0
    first, last = finished.out.splitlines()
    assert str(database) in first
    assert "7 images, " in last
    assert ", 1 refused" in last
    expected = discopatch.load(saved, device="cpu").predict([str(path) for path in paths])
    found = kept(database)
    assert [(each.name, each.score, each.p_value, each.is_ood) for each in found[:-1]] == [
        (Path(each.name).name, each.score, each.p_value, each.is_ood) for each in expected
    ]
    assert found[-1].name == "broken.png"
    assert found[-1].error is not None
    again = run("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
    assert "0 images, " in again.out.splitlines()[-1]
    assert len(kept(database)) == 7


def test_lines_for_machines_are_json(run: Run, saved: Path, folder: Path, database: Path) -> None:
    fill(folder, 2)
    finished = run("watch", folder, "--detector", saved, "--database", database, "--once", "--json", *QUICK)
    lines = [json.loads(line) for line in finished.out.splitlines()]
    assert [line["event"] for line in lines] == ["start", "status"]
    assert lines[0]["database"] == str(database)
    assert (lines[1]["images"], lines[1]["refused"], lines[1]["alarm"]) == (2, 0, False)
    assert isinstance(lines[1]["log10_evidence"], float)


def test_without_a_database_it_is_in_the_folder_for_states(
    run: Run, saved: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    fill(folder, 1)
    assert run("watch", folder, "--detector", saved, "--once", *QUICK).status == 0
    database = default_database(saved, folder)
    assert database.is_relative_to(tmp_path / "state" / "discopatch")
    assert len(kept(database)) == 1
    assert default_database(saved, tmp_path) != database


@pytest.mark.slow
def test_an_export_is_watched_without_torch(export_folder: Path, folder: Path, database: Path) -> None:
    fill(folder, 3)
    code = (
        "import sys\n"
        "from discopatch.cli import main\n"
        "sys.argv = ['discopatch', 'watch', *sys.argv[1:]]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    print('status', end.code, 'torch', 'torch' in sys.modules)\n"
    )
    arguments = [folder, "--detector", export_folder, "--database", database, "--once"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "status 0 torch False"
    assert len(kept(database, export_folder.name)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_signal_ends_it_with_status_0_and_all_is_kept(
    saved: Path, folder: Path, database: Path, number: signal.Signals
) -> None:
    fill(folder, 4)
    process = start(folder, "--detector", saved, "--database", database)
    until(lambda: images(database) == 4)
    fill(folder, 3, seed=2, old=False)
    until(lambda: images(database) == 4 + 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert "7 images" in out.splitlines()[-1]
    assert len(kept(database)) == 7


@pytest.mark.slow
def test_a_second_watcher_is_refused(run: Run, saved: Path, folder: Path, database: Path) -> None:
    fill(folder, 1)
    process = start(folder, "--detector", saved, "--database", database)
    try:
        until(lambda: images(database) == 1)
        arguments = ("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
        assert_error(run(*arguments), "another process")
    finally:
        process.kill()
        process.communicate()
    assert run(*arguments).status == 0


@pytest.mark.nightly
def test_killed_at_random_moments_it_keeps_every_image_once(saved: Path, folder: Path, database: Path) -> None:
    """With a dead webhook and messages about every flagged image, and files that go on arriving."""
    dead = ("--webhook", "http://127.0.0.1:1/", "--on", "flagged")
    arguments = (folder, "--detector", saved, "--database", database, "--rate", "0.05", *dead)
    rng, expected, kills = random.Random(0), set(), 0
    for number in range(6):
        for path in fill(folder, 30, seed=100 + number, old=number % 2 == 0):
            new = path.rename(path.with_name(f"{number}-{path.name}"))
            expected.add(new.name)
        process = start(*arguments)
        before = images(database)
        target = before + rng.randrange(0, 30)
        until(lambda target=target: images(database) >= target)  # type: ignore[misc]
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        found = [each.name for each in kept(database)]
        assert len(found) == len(set(found))
    assert kills == 6
    process = start(*arguments, "--once")
    assert process.communicate(timeout=PATIENCE)[1] == ""
    found = [each.name for each in kept(database)]
    assert len(found) == len(set(found))
    assert set(found) == expected
    reference = discopatch.load(saved, device="cpu").predict([str(folder / name) for name in found])
    assert [each.score for each in reference] == [each.score for each in kept(database)]
    with History(database) as history:
        flagged = int(reference.is_ood.sum())
        assert history.counts("camera-3") == Counts(len(expected), flagged, 0)
        ((queued,),) = history.rows("SELECT count(*) FROM notifications WHERE alarm IS NULL")
        assert queued == flagged
        state = history.state("camera-3")
    assert state is not None
    monitor = Monitor(discopatch.load(saved, device="cpu"), 0.05)
    for prediction in kept(database):
        monitor.update(prediction)
    assert monitor.to_bytes() == state


def test_another_rate_or_detector_asks_for_a_new_stream(
    run: Run, saved: Path, folder: Path, database: Path, tmp_path: Path
) -> None:
    fill(folder, 1)
    arguments = ("watch", folder, "--detector", saved, "--database", database, "--once", *QUICK)
    assert run(*arguments, "--rate", "0.02").status == 0
    assert run(*arguments).status == 0
    assert_error(run(*arguments, "--rate", "0.1"), "0.02", "--restart")
    assert run(*arguments, "--rate", "0.1", "--restart").status == 0
    assert run(*arguments, "--rate", "0.1").status == 0
    (tmp_path / "other").mkdir()
    new_detector().fit(one_camera(40, seed=9), workers=1).save(tmp_path / "other" / "camera-3")
    other = [tmp_path / "other" / "camera-3" if each == saved else each for each in arguments]
    assert_error(run(*other), "--restart")
    assert run(*other, "--restart").status == 0


@pytest.mark.parametrize(
    ("more", "mentioned"),
    [
        (("--webhook", "ftp://host"), "webhook"),
        (("--exec", "'open"), "--exec"),
        (("--rate", "1.5"), "rate"),
    ],
)
def test_wrong_options_are_one_line(
    run: Run, saved: Path, folder: Path, database: Path, more: tuple[str, ...], mentioned: str
) -> None:
    assert_error(run("watch", folder, "--detector", saved, "--database", database, "--once", *more), mentioned)


def test_wrong_places_are_one_line(run: Run, saved: Path, folder: Path, tmp_path: Path) -> None:
    arguments = ("--detector", saved, "--once")
    assert_error(run("watch", tmp_path / "nowhere", *arguments), "nowhere")
    assert_error(run("watch", folder, *arguments, "--database", folder / "h.sqlite"), "--database")
    (tmp_path / "notes.txt").write_text("important notes, and no database\n" * 9)
    assert_error(run("watch", folder, *arguments, "--database", tmp_path / "notes.txt"), "notes.txt")
    assert_error(run("watch", folder, *arguments, "--parquet", folder / "parts"), "--parquet")
    assert_usage_error(run("watch", folder, *arguments, "--poll", "0"), "--poll")


@pytest.mark.slow
def test_output_that_nobody_reads_does_not_stop_it(saved: Path, folder: Path, database: Path) -> None:
    process = start(folder, "--detector", saved, "--database", database)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    (folder / "closed").mkdir()
    fill(folder, 3)
    folder.rename(folder.with_name("elsewhere"))  # of which it tells
    time.sleep(0.5)
    folder.with_name("elsewhere").rename(folder)
    until(lambda: images(database) == 3)
    process.terminate()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(PATIENCE) in (0, 1)
