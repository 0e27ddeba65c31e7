"""Claims on parts: renewed while their process lives, left to it, and taken over when it has ended."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discopatch.batch import claims as module
from discopatch.batch.claims import Claims
from discopatch.batch.output import OutputFolder, carried, carrier, part_schema


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Claims]:
    """The claims of several processes on one folder, which expire in a second."""
    monkeypatch.setattr(module, "EXPIRED", 1.0)
    monkeypatch.setattr(module, "RENEWED", 0.05)
    return lambda: Claims(OutputFolder.open(tmp_path), part_schema())


def change(tmp_path: Path, **fields: Any) -> None:
    (path,) = (tmp_path / "_claims").iterdir()
    path.write_bytes(carrier(json.dumps(json.loads(carried(path.read_bytes())) | fields).encode(), part_schema()))


def test_one_process_at_a_time_has_a_claim(make: Callable[[], Claims]) -> None:
    one, other = make(), make()
    assert one.take("a.parquet")
    assert not other.take("a.parquet")
    assert other.take("b.parquet")
    one.release("a.parquet")
    assert other.take("a.parquet")


def test_a_claim_expires_unless_it_is_renewed(
    make: Callable[[], Claims], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on only once the thread has renewed the claim, however late that is."""
    one, other, now = make(), make(), [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    with one:
        assert one.take("a.parquet")
        (claim,) = (tmp_path / "_claims").iterdir()
        for _ in range(8):
            before = claim.read_bytes()
            assert not other.take("a.parquet")
            while claim.read_bytes() == before:
                time.sleep(0.01)
            now[0] += 0.9
        one._renewing.__exit__(None, None, None)
        one._held.clear()  # not renewed from here on
        assert not other.take("a.parquet")
        now[0] += 1.1
        assert other.take("a.parquet")
        assert not one.take("a.parquet")
    assert len(list((tmp_path / "_claims").iterdir())) == 1


def test_a_process_that_lost_its_claim_does_not_renew_it(make: Callable[[], Claims]) -> None:
    """As one that was suspended for long."""
    one, other, third = make(), make(), make()
    one.take("a.parquet")
    assert not other.take("a.parquet")
    time.sleep(1.1)
    assert other.take("a.parquet")
    one._renew()
    assert other._is_own("a.parquet")
    with other:
        pass
    assert third.take("a.parquet")


@pytest.mark.parametrize("difference", [{"time": time.time() - 10_000}, {"pid": None}])
def test_a_claim_of_a_process_that_has_ended_is_taken_at_once(
    make: Callable[[], Claims], tmp_path: Path, difference: dict[str, Any]
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    make().take("a.parquet")
    change(tmp_path, **{name: ended.pid if value is None else value for name, value in difference.items()})
    assert make().take("a.parquet")


def test_processes_of_other_machines_and_unreadable_claims_expire(make: Callable[[], Claims], tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    make().take("a.parquet")
    change(tmp_path, pid=ended.pid, machine="elsewhere", time=time.time() + 10_000)  # whose clock is fast
    (tmp_path / "_claims" / "b.parquet").write_bytes(os.urandom(100))
    other = make()
    for name in ("a.parquet", "b.parquet"):
        assert not other.take(name)
    time.sleep(1.1)
    for name in ("a.parquet", "b.parquet"):
        assert other.take(name)


def test_claims_on_finished_parts_are_removed(make: Callable[[], Claims], tmp_path: Path) -> None:
    make().take("a.parquet")
    make().take("b.parquet")
    make().clean({"a.parquet", "c.parquet"})
    assert [path.name for path in (tmp_path / "_claims").iterdir()] == ["b.parquet"]
