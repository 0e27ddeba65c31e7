"""Scoring by Ray: the same files as one process writes, although nodes and workers die."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from discopatch import Detector
from discopatch.batch import Run, open_scores, read_scores, score_to
from discopatch.batch.plan import Part
from discopatch.batch.ray_engine import ATTEMPTS, KILLED, check_visible, connected_ray, find_room, score_on_ray
from discopatch.errors import ParameterError, RunError
from discopatch.images import NamedImage
from tests.images.s3 import s3_bucket
from tests.samples import one_camera, some_images

from .samples import contents, local_ray, poisoned_workers, shard_folder, stored, tar_shard, three_nodes, working_actors

REFUSED = NamedImage("bad", np.zeros((3, 3, 3), np.uint8))


def test_images_that_a_node_does_not_see_are_not_missing(paths: list[Path], tmp_path: Path) -> None:
    check_visible(Part.of(0, (str(tmp_path / "gone.png"), str(paths[0]))))
    with pytest.raises(RunError, match="nodes"):
        check_visible(Part.of(0, (str(tmp_path / "gone.png"),)))


def cluster_of(*resources: dict[str, float]) -> SimpleNamespace:
    """A cluster with nodes of these resources, as Ray lists them, and a dead one."""
    nodes = [{"Alive": True, "Resources": each} for each in resources] + [{"Alive": False, "Resources": {}}]
    return SimpleNamespace(nodes=lambda: nodes)


def test_actors_fill_the_cluster_unless_a_number_is_given() -> None:
    cores, mixed = cluster_of({"CPU": 5}, {"CPU": 2}), cluster_of({"CPU": 32, "GPU": 4}, {"CPU": 64})
    assert find_room(cores, None, "auto") == (7, 1, 0)
    assert find_room(cores, 9, "auto") == (9, 1, 0)
    assert find_room(mixed, None, "auto") == (4, 8, 1)
    assert find_room(mixed, None, "cpu") == (96, 1, 0)


def test_wrong_settings_are_refused_before_ray_starts(tiny_file: Path, tiny: Detector, tmp_path: Path) -> None:
    source, out = shard_folder(tmp_path / "in", [1, 1]), tmp_path / "scores"
    score_to(tiny.with_rate(0.2), source, out)
    with pytest.raises(RunError, match="false_alarm_rate"):
        score_on_ray(tiny_file, source, out, address="nowhere:1", device="cpu")
    with pytest.raises(ParameterError, match="actors"):
        score_on_ray(tiny_file, source, out, actors=0)


@pytest.mark.nightly
def test_ray_writes_the_files_of_one_process(tiny: Detector, tiny_file: Path, tmp_path: Path) -> None:
    source, out, left = shard_folder(tmp_path / "in", [6, 2, 3]), tmp_path / "scores", list[int]()
    tar_shard(source / "bad.tar", [*one_camera(3), REFUSED])
    score_to(tiny, source, tmp_path / "expected")
    with local_ray(cores=2):
        run = score_on_ray(tiny_file, source, out, device="cpu", progress=lambda run: left.append(run.left))
        assert contents(out) == contents(tmp_path / "expected")
        assert (left, run.images, run.failed) == ([4, 3, 2, 1, 0], 15, {})
        for part in open_scores(out).parts[::2]:
            (out / part.file).unlink()
        run = score_on_ray(tiny_file, source, out, device="cpu", actors=1)
        assert (run.before, run.parts, run.left) == (2, 2, 0)
        assert contents(out) == contents(tmp_path / "expected")

        def hide(run: Run) -> None:
            loose.rename(tmp_path / "hidden")

        loose = tmp_path / "loose"
        loose.mkdir()
        (loose / "image.png").write_bytes(b"")
        with pytest.raises(RunError, match="nodes"):  # the driver sees the images, its workers do not
            score_on_ray(tiny_file, loose, tmp_path / "other", device="cpu", progress=hide)


@pytest.mark.nightly
def test_a_plain_process_beside_ray_does_other_parts(tiny: Detector, tiny_file: Path, tmp_path: Path) -> None:
    source, out, beside = shard_folder(tmp_path / "in", [40] * 12), tmp_path / "scores", list[Future[Run]]()
    score_to(tiny, source, tmp_path / "expected")
    with local_ray(cores=1), ThreadPoolExecutor(1) as pool:

        def start(run: Run) -> None:
            if not beside and run.parts == 1:
                beside.append(pool.submit(score_to, tiny, source, out, workers=1))

        run = score_on_ray(tiny_file, source, out, device="cpu", progress=start)
        other = beside[0].result()
    assert run.parts + other.parts == 12
    assert min(run.parts, other.parts) > 0
    assert contents(out) == contents(tmp_path / "expected")


class Stop(BaseException):
    pass


def test_a_signal_in_a_call_of_ray_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cython raises a SystemError if a handler of signals raises in its midst."""
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(Stop), connected_ray():
        raise SystemError("returned a result with an exception set") from Stop()


@pytest.mark.nightly
def test_interruptions_are_no_attempts_and_a_termination_is_one_line(tiny_file: Path, tmp_path: Path) -> None:
    """The only actor is terminated three times at its part, and then the command itself."""
    source, out = tmp_path / "in", tmp_path / "scores"
    tar_shard(source / "0.tar", one_camera(10) * 200)
    command = [sys.executable, "-m", "discopatch", "score", source, "--detector", tiny_file, "--out", out]
    options = ["--device", "cpu", "--ray", "auto", "--actors", "1"]
    process = subprocess.Popen([*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen = set[int]()
    while len(seen) <= ATTEMPTS and process.poll() is None:
        for pid in set(working_actors(process.pid)) - seen:
            seen.add(pid)
            if len(seen) <= ATTEMPTS:
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.02)
    assert len(seen) == ATTEMPTS + 1
    process.terminate()
    printed = process.communicate()[0].decode()
    assert process.returncode == 143, printed
    assert "***" not in printed
    assert printed.splitlines()[-1].startswith("stopped: ")
    assert len(open_scores(out).parts) == 1


@pytest.mark.slow
def test_a_cluster_in_an_object_store_loses_a_node_and_meets_a_poison_shard(
    tiny: Detector, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    shard_folder(tmp_path / "source", [6] * 9)
    tar_shard(tmp_path / "source" / "02-poison.tar", some_images(2))

    with s3_bucket() as bucket:
        source, out, other = bucket.put_folder(tmp_path / "source", "in"), bucket.uri("out"), bucket.uri("expected")
        score_to(tiny, source, other)
        expected = stored(other)

        with poisoned_workers(tmp_path / "poison", monkeypatch), three_nodes() as cluster:

            def kill_halfway(run: Run) -> None:
                if run.parts + run.elsewhere >= 4 and not killed:
                    killed.append(max(cluster.worker_nodes, key=id))
                    cluster.remove_node(killed[0], allow_graceful=False)

            with pytest.raises(RunError, match=r"02-poison\.tar") as raised:
                score_on_ray(tiny_file, source, out, address=cluster.address, device="cpu", progress=kill_halfway)
        assert killed
        assert KILLED in str(raised.value)
        (failed,) = (part for part in open_scores(out).parts if "poison" in part.names[0])
        assert stored(out) == {name: content for name, content in expected.items() if name != failed.file}

        assert score_to(tiny, source, out).parts == 1  # by one process, without the poison
        assert stored(out) == expected
        assert read_scores(out).to_table().equals(read_scores(other).to_table())
