"""A cluster of three nodes that loses one, with a shard that ends its workers, and all files in an object store."""

from pathlib import Path
from typing import Any

import pytest

from discopatch import ClusterError, Detector
from discopatch.batch import open_store, read_scores, score_to
from discopatch.batch.packed import LoadSettings
from discopatch.batch.ray_engine import RayOptions, score_on_ray
from discopatch.batch.run import Run
from discopatch.batch.tries import KILLED, PREFIX
from tests.batch.clusters import poisoned_workers, three_nodes
from tests.batch.samples import tar_shard
from tests.images.s3 import s3_bucket
from tests.samples import one_camera, some_images

pytestmark = pytest.mark.slow

SHARDS = 9


def stored(address: str) -> dict[str, bytes]:
    """The files of a folder but for the tries, by name."""
    store = open_store(address)
    return {name: store.read(name) for name in store.names() if not name.startswith(PREFIX)}


def test_a_cluster_that_loses_a_node_and_meets_a_poison_shard(
    detector: Detector, detector_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    for number in range(SHARDS):
        tar_shard(tmp_path / "source" / f"{number}.tar", one_camera(6, seed=number))
    tar_shard(tmp_path / "source" / "2-poison.tar", some_images(2))
    with s3_bucket() as bucket:
        source, out, other = (
            bucket.put_folder(tmp_path / "source", "source"),
            bucket.uri("scores"),
            bucket.uri("expected"),
        )
        score_to(detector, source, other)
        expected = stored(other)

        with poisoned_workers(tmp_path / "poison", monkeypatch), three_nodes() as cluster:

            def kill_halfway(run: Run) -> None:
                if run.parts + run.elsewhere >= SHARDS // 2 and not killed:
                    killed.append(max(cluster.worker_nodes, key=id))
                    cluster.remove_node(killed[0], allow_graceful=False)

            run = score_on_ray(
                detector_path,
                source,
                out,
                load=LoadSettings(device="cpu"),
                options=RayOptions(cluster.address),
                progress=kill_halfway,
            )
        assert killed
        reasons = {part.names: reason for part, reason in run.set_aside.items()}
        assert reasons == {(bucket.shown("source/2-poison.tar"),): KILLED}
        with pytest.raises(ClusterError, match=r"2-poison\.tar"):
            run.check()
        assert (run.parts + run.elsewhere, run.left) == (SHARDS, 0)
        (aside,) = run.set_aside
        tries = sorted(name for name in open_store(out).names() if name.startswith(PREFIX))
        assert tries == [f"{PREFIX}{aside.id}-{number}" for number in (1, 2, 3)]
        assert stored(out) == {name: content for name, content in expected.items() if not name.startswith(aside.id)}

        assert score_to(detector, source, out).parts == 1  # without the poison, by the other engine
        assert stored(out) == expected
        assert read_scores(out).to_table().equals(read_scores(other).to_table())
