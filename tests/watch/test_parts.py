"""Every prediction is in exactly one part, whatever is killed or full in between."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from discopatch import ComponentScore, OutputError, ParameterError, Prediction
from discopatch.history import History
from discopatch.watch import PartWriter
from discopatch.watch.parts import release
from tests.cli.test_outputs import mounted

parquet = pytest.importorskip("pyarrow.parquet")


def add(history: History, count: int, *, start: int = 0, detector: str = "camera") -> None:
    with history.transaction() as change:
        for number in range(start, start + count):
            change.add(detector, Prediction(f"{number}.png", number / 7, 0.5, number % 2 == 0), time=1.7e9)


def names(folder: Path) -> list[str]:
    found = [str(row["name"]) for path in folder.glob("*.parquet") for row in read(path)]
    return sorted(found, key=lambda name: (len(name), name))


def read(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = parquet.read_table(path).to_pylist()
    return rows


def test_full_parts_are_written_at_once_and_the_rest_after_a_minute(tmp_path: Path) -> None:
    now = 0.0
    with History(tmp_path / "history.sqlite") as history:
        writer = PartWriter(history, "camera", tmp_path / "parts", rows=10, clock=lambda: now)
        add(history, 25)
        writer.step()
        assert sorted(len(read(path)) for path in (tmp_path / "parts").iterdir()) == [10, 10]
        now = 61.0
        writer.step()
        writer.step(all_of_them=True)
        assert names(tmp_path / "parts") == [f"{number}.png" for number in range(25)]
        add(history, 1, start=25)
        writer.step(all_of_them=True)
        assert len(list((tmp_path / "parts").iterdir())) == 4


def test_rows_hold_all_of_a_prediction_to_the_bit(tmp_path: Path) -> None:
    significant = Prediction(
        os.fsdecode(b"caf\xe9.png"), 0.1 + 0.2, 1 / 3, True, components=(ComponentScore("place", 4.5, True),)
    )
    with History(tmp_path / "history.sqlite") as history:
        with history.transaction() as change:
            change.add("camera", significant, time=1.7e9 + 0.25, source="/in/a.png")
            change.add("camera", Prediction("b.png", None, None, None, "empty: 0 bytes"), time=1.7e9)
        PartWriter(history, "camera", tmp_path / "parts").step(all_of_them=True)
    (path,) = (tmp_path / "parts").iterdir()
    one, other = read(path)
    assert (one["name"], one["score"], one["p_value"], one["is_ood"]) == ("caf\\xe9.png", 0.1 + 0.2, 1 / 3, True)
    assert (one["place"], one["acquisition"], one["significant"], one["source"]) == (4.5, None, ["place"], "/in/a.png")
    assert one["time"].timestamp() == 1.7e9 + 0.25  # type: ignore[attr-defined]
    assert (other["score"], other["error"], other["is_ood"]) == (None, "empty: 0 bytes", None)


def test_what_is_in_no_part_outlives_the_limit_of_the_history(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite", keep=5) as history:
        writer = PartWriter(history, "camera", tmp_path / "parts")
        add(history, 40)
        add(history, 40, start=40)
        writer.step(all_of_them=True)
        assert names(tmp_path / "parts") == [f"{number}.png" for number in range(80)]
        for start in range(80, 90):
            add(history, 1, start=start)
        assert len(history.recent("camera", limit=1000)) == 10
        release(history, "camera")
        add(history, 1, start=90)
        assert len(history.recent("camera", limit=1000)) == 5


def test_several_histories_and_detectors_share_a_folder(tmp_path: Path) -> None:
    for number, detector in enumerate(("one", "two", "one")):
        with History(tmp_path / f"{number}.sqlite") as history:
            add(history, 3, start=3 * number, detector=detector)
            PartWriter(history, detector, tmp_path / "parts").step(all_of_them=True)
    assert names(tmp_path / "parts") == [f"{number}.png" for number in range(9)]


KILLED = """
import os, signal, sys
from pathlib import Path
from discopatch.history import History
from discopatch.watch import PartWriter
from discopatch.watch import parts

remaining = int(sys.argv[2])
def step(event, arguments):
    global remaining
    if event in ("os.rename", "sqlite3.connect", "open", "os.mkdir", "os.remove", "os.rmdir") and armed:
        remaining -= 1
        if remaining < 0:
            os.kill(os.getpid(), signal.SIGKILL)
armed = False
import pyarrow.parquet
sys.addaudithook(step)
history = History(Path(sys.argv[1]) / "history.sqlite")
armed = True
PartWriter(history, "camera", Path(sys.argv[1]) / "parts", rows=4).step(all_of_them=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_each_prediction_in_one_part(tmp_path: Path) -> None:
    killed = 0
    with History(tmp_path / "history.sqlite") as history:
        for moment in range(0, 40, 3):
            add(history, 6, start=6 * moment // 3)
            done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(moment)])
            assert done.returncode in (0, -signal.SIGKILL)
            killed += done.returncode != 0
            found = names(tmp_path / "parts") if (tmp_path / "parts").exists() else []
            assert len(found) == len(set(found))
        PartWriter(history, "camera", tmp_path / "parts", rows=4).step(all_of_them=True)
        assert killed > 3
        assert names(tmp_path / "parts") == [f"{number}.png" for number in range(6 * 14)]


def test_a_full_disk_is_an_error_and_the_part_comes_later(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history, mounted(tmp_path / "disk", "size=8k") as disk:
        writer = PartWriter(history, "camera", disk / "parts")
        add(history, 2000)
        with pytest.raises(OutputError):
            writer.step(all_of_them=True)
        assert list((disk / "parts").iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=8M", str(disk)], check=True)
        add(history, 1, start=2000)
        writer.step(all_of_them=True)
        assert names(disk / "parts") == [f"{number}.png" for number in range(2001)]


def test_parts_of_no_rows_are_refused(tmp_path: Path) -> None:
    with History(tmp_path / "history.sqlite") as history, pytest.raises(ParameterError):
        PartWriter(history, "camera", tmp_path, rows=0)
