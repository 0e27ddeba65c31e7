"""A cluster of three nodes that loses one, with a shard that ends its workers."""

from pathlib import Path
from typing import Any

import pytest

from discopatch import Detector
from discopatch.cluster import score_to
from discopatch.cluster.packed import LoadSettings
from discopatch.cluster.ray_engine import RayOptions, score_on_ray
from discopatch.cluster.run import Run
from discopatch.cluster.tries import FOLDER, KILLED
from tests.cluster.clusters import files_below, poisoned_workers, three_nodes, write_shard
from tests.samples import one_camera, some_images

pytestmark = pytest.mark.slow

SHARDS = 9


def test_a_cluster_that_loses_a_node_and_meets_a_poison_shard(
    detector: Detector, detector_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(SHARDS):
        write_shard(tmp_path / "source" / f"{number}.tar", one_camera(6, seed=number))
    poison = write_shard(tmp_path / "source" / "2-poison.tar", some_images(2))
    score_to(detector, tmp_path / "source", tmp_path / "expected")
    expected, out = files_below(tmp_path / "expected"), tmp_path / "scores"
    killed: list[Any] = []

    with poisoned_workers(tmp_path / "poison", monkeypatch), three_nodes() as cluster:

        def kill_halfway(run: Run) -> None:
            if run.parts == SHARDS // 2 and not killed:
                killed.append(max(cluster.worker_nodes, key=id))
                cluster.remove_node(killed[0], allow_graceful=False)

        run = score_on_ray(
            detector_path,
            tmp_path / "source",
            out,
            load=LoadSettings(device="cpu"),
            options=RayOptions(cluster.address),
            progress=kill_halfway,
        )
    assert killed
    assert {part.names: reason for part, reason in run.set_aside.items()} == {(str(poison),): KILLED}
    assert (run.parts + run.elsewhere, run.left) == (SHARDS, 0)
    (aside,) = run.set_aside
    found = files_below(out)
    assert sorted(name for name in found if name.startswith(FOLDER)) == [f"{FOLDER}/{aside.id}-{n}" for n in (1, 2, 3)]
    assert {name: content for name, content in found.items() if not name.startswith(FOLDER)} == {
        name: content for name, content in expected.items() if not name.startswith(aside.id)
    }

    assert score_to(detector, tmp_path / "source", out).parts == 1  # without the poison, by the other engine
    assert {name: content for name, content in files_below(out).items() if not name.startswith(FOLDER)} == expected
