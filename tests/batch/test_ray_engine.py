"""Many images by Ray: the same files as one process writes, whatever happens to nodes and workers."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from discopatch import Detector, ParameterError, ScoresError
from discopatch.batch import open_scores, open_store, score_to
from discopatch.batch.packed import LoadSettings
from discopatch.batch.plan import Part
from discopatch.batch.ray_engine import RayOptions, check_seen, find_room, score_on_ray
from discopatch.batch.run import Run
from discopatch.batch.tries import KILLED, Tries
from discopatch.images import NamedImage
from tests.batch.clusters import local_ray
from tests.batch.samples import contents, tar_shard
from tests.samples import one_camera, some_images

SHARDS = 8
ON_CPU = LoadSettings(device="cpu")
REFUSED = NamedImage("bad", np.zeros((3, 3, 3), np.uint8))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, one of them with an image that is refused."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(SHARDS):
        tar_shard(folder / f"shard-{number}.tar", [*one_camera(6, seed=number), *([REFUSED] if number == 1 else [])])
    tar_shard(folder / "shard-last.tar", some_images(2))
    return folder


@pytest.fixture(scope="module")
def expected(detector: Detector, source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes."""
    out = tmp_path_factory.mktemp("expected") / "scores"
    assert score_to(detector, source, out).left == 0
    found = contents(out)
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
    assert not contents(tmp_path / "scores")


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
    assert contents(tmp_path / "scores") == expected
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
    assert contents(out) == expected
    for part in open_scores(open_store(out)).parts[::2]:
        (out / f"{part.id}.parquet").unlink()
    assert score_to(detector, source, out).parts == 5
    assert contents(out) == expected


@pytest.mark.slow
def test_a_wrong_detector_is_refused_before_ray_is_asked(
    detector_path: Path, source: Path, detector: Detector, tmp_path: Path
) -> None:
    score_to(detector.with_rate(0.2), source, tmp_path / "scores", rank=0, world=8)
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_an_actor_takes_no_more_memory_for_more_images(ray: Any, detector_path: Path, tmp_path: Path) -> None:
    """126 MB of pixels, more than Ray's object store may hold, of which each part is some."""
    pixels = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), np.uint8)
    for number in range(6):
        folder = tmp_path / "source" / f"{number}"
        folder.mkdir(parents=True)
        for image in range(7):
            Image.fromarray(pixels).save(folder / f"{image}.bmp")
    peaks: list[int] = []

    def look(run: Run) -> None:
        if run.parts:
            peaks.append(max(map(peak_memory, actors_of(os.getpid())), default=0))

    options = RayOptions(actors=1)
    run = score_on_ray(
        detector_path, tmp_path / "source", tmp_path / "scores", load=ON_CPU, per_part=7, options=options, progress=look
    )
    assert (run.parts, run.counts.images) == (6, 42)
    known = [peak for peak in peaks if peak]  # when the last one is told, the actor may be gone
    assert len(known) >= 3
    assert known[-1] - known[0] < 30_000_000


def actors_of(driver: int) -> list[int]:
    """The processes of actors on the Ray that the driver has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            if b"MapWorker" in (folder / "cmdline").read_bytes() and parent(parent(int(folder.name))) == driver:
                found.append(int(folder.name))
    return found


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def peak_memory(process: int) -> int:
    """Bytes, 0 of a process that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    return 0
