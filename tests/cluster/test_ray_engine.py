"""Many images by Ray: the same files as one process writes, whatever happens to nodes and workers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from discopatch import Detector, ParameterError, ScoresError
from discopatch.cluster import open_scores, open_store, score_to
from discopatch.cluster.packed import LoadSettings
from discopatch.cluster.plan import Part
from discopatch.cluster.ray_engine import RayOptions, check_seen, find_room, score_on_ray
from discopatch.cluster.run import Run
from discopatch.cluster.tries import KILLED, Tries
from tests.cluster.clusters import files_below, local_ray, write_shard
from tests.samples import one_camera, some_images

SHARDS = 8
ON_CPU = LoadSettings(device="cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, one of which is poison for some, and loose images."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(SHARDS):
        write_shard(folder / f"shard-{number}.tar", one_camera(6, seed=number), bad="bad" if number == 1 else None)
    write_shard(folder / "shard-poison.tar", some_images(2))
    return folder


@pytest.fixture(scope="module")
def expected(detector: Detector, source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes."""
    out = tmp_path_factory.mktemp("expected") / "scores"
    assert score_to(detector, source, out).left == 0
    found = files_below(out)
    assert len(found) == SHARDS + 3  # a manifest and a plan, too
    return found


def test_a_part_is_set_aside_after_three_tries(tmp_path: Path) -> None:
    part, other = Part(0, ("a.png",)), Part(1, ("b.png",))
    tries = Tries(open_store(tmp_path / "scores"))
    names = [tries.begin(part) for _ in range(3)]
    assert len({*names, None}) == 4
    assert tries.begin(part) is None
    assert tries.reason(part) == KILLED
    tries.note(names[2] or "", "RuntimeError: worse")
    assert tries.reason(part) == "RuntimeError: worse"
    assert tries.begin(other) is not None
    tries.end(part)
    assert tries.begin(part) is not None
    tries.forget_all()
    assert not files_below(tmp_path)


def test_images_that_a_node_does_not_see_are_not_called_missing(paths: list[Path], tmp_path: Path) -> None:
    check_seen(Part(0, (str(tmp_path / "gone.png"), str(paths[0]))))
    with pytest.raises(ScoresError, match="all nodes"):
        check_seen(Part(0, (str(tmp_path / "gone.png"),)))


class Nodes:
    """What Ray tells of a cluster."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self.resources = resources

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": each} for each in self.resources] + [{"Alive": False, "Resources": {}}]


def test_actors_fill_the_cluster_unless_told_otherwise() -> None:
    cores, mixed = Nodes({"CPU": 5}, {"CPU": 2}), Nodes({"CPU": 32, "GPU": 4}, {"CPU": 64})
    assert find_room(cores, RayOptions(), "auto") == (7, 1, 0)
    assert find_room(cores, RayOptions(cpus=2), "auto") == (3, 2, 0)
    assert find_room(cores, RayOptions(actors=9, cpus=8), "auto") == (9, 8, 0)
    assert find_room(mixed, RayOptions(), "auto") == (4, 8, 1)
    assert find_room(mixed, RayOptions(gpus=0.5), "cuda") == (8, 4, 0.5)
    assert find_room(mixed, RayOptions(), "cpu") == (96, 1, 0)
    with pytest.raises(ParameterError, match="room"):
        find_room(cores, RayOptions(cpus=6), "auto")
    with pytest.raises(ParameterError, match="actors"):
        RayOptions(actors=0)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with local_ray(cores=2) as started:
        yield started


@pytest.mark.slow
def test_ray_writes_the_files_of_one_process(
    ray: Any, detector_path: Path, source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    left: list[int] = []
    run = score_on_ray(
        detector_path, source, tmp_path / "scores", load=ON_CPU, progress=lambda run: left.append(run.left)
    )
    assert files_below(tmp_path / "scores") == expected
    assert left == list(range(SHARDS + 1, -1, -1))
    assert run.counts.refusals.count == 1
    assert run.set_aside == {}


@pytest.mark.slow
def test_one_engine_ends_what_the_other_began(
    ray: Any, detector: Detector, detector_path: Path, source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    score_to(detector, source, out, rank=0, world=2)
    run = score_on_ray(detector_path, source, out, load=ON_CPU, options=RayOptions(actors=1))
    assert (run.before, run.parts, run.left) == (5, 4, 0)
    assert files_below(out) == expected
    for part in open_scores(open_store(out)).parts[::2]:
        (out / f"{part.id}.parquet").unlink()
    assert score_to(detector, source, out).parts == 5
    assert files_below(out) == expected


@pytest.mark.slow
def test_a_wrong_detector_is_refused_before_ray_is_asked(
    detector_path: Path, source: Path, detector: Detector, tmp_path: Path
) -> None:
    score_to(detector.at(false_alarm_rate=0.2), source, tmp_path / "scores", rank=0, world=8)
    with pytest.raises(ScoresError, match="false-alarm rate"):
        score_on_ray(detector_path, source, tmp_path / "scores", options=RayOptions("nowhere:1"))


@pytest.mark.slow
def test_an_error_of_a_worker_comes_back_as_it_was(
    ray: Any, detector_path: Path, paths: list[Path], tmp_path: Path
) -> None:
    """Images that the driver sees, and its workers do not."""
    source = tmp_path / "source"
    source.mkdir()
    for path in paths:
        (source / path.name).write_bytes(path.read_bytes())

    def hide(run: Run) -> None:
        source.rename(tmp_path / "hidden")

    with pytest.raises(ScoresError, match="all nodes"):
        score_on_ray(detector_path, source, tmp_path / "scores", load=ON_CPU, progress=hide)
