"""Folders and shards of small images, small Ray clusters, and the files of a folder of scores."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from discopatch import Detector
from discopatch.batch import Run, score_to
from discopatch.batch.output import OutputFolder
from discopatch.batch.ray_engine import connected_ray
from discopatch.images import NamedImage
from tests.images.samples import encoded
from tests.images.test_tar import write_shard
from tests.samples import one_camera, save_images

OBJECT_STORE = 100_000_000  # bytes of each Ray node

# Python runs the module sitecustomize before anything else.
POISON = """
import os
import sys

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name == "discopatch.images.workers":
            sys.meta_path.remove(self)
            from discopatch.images.items import Item

            decode = Item.decode

            def poisoned(item, limits, **options):
                if "poison" in item.name:
                    os._exit(1)
                return decode(item, limits, **options)

            Item.decode = poisoned

sys.meta_path.insert(0, Poison())
"""


def image_folder(folder: Path, count: int, *, seed: int = 1, first: str = "") -> Path:
    """So many images of one camera, whose names begin with `first`."""
    images = enumerate(one_camera(count, seed=seed))
    save_images(folder, [NamedImage(f"{first}{number:03d}", each.pixels) for number, each in images])
    return folder


def tar_shard(path: Path, images: Sequence[NamedImage]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_shard(path, {f"{image.name}.png": encoded(image.pixels, "PNG") for image in images})


def shard_folder(folder: Path, sizes: Sequence[int]) -> Path:
    """One tar shard of each size."""
    for number, size in enumerate(sizes):
        tar_shard(folder / f"{number:02d}.tar", one_camera(size, seed=10 + number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def stored(out: str) -> dict[str, bytes]:
    """All files of a folder in an object store, by name."""
    folder = OutputFolder.open(out)
    return {name: folder.read(name) for name in sorted(folder.names())}


def score_first(parts: int, detector: Detector, source: object, out: Path | str, **options: Any) -> None:
    """Scores until so many parts are written, and is interrupted then."""

    def stop(run: Run) -> None:
        if run.parts == parts:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        score_to(detector, source, out, workers=1, progress=stop, **options)


def part_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


@contextmanager
def local_ray(*, cores: int) -> Iterator[Any]:
    """Ray, started and ended here."""
    with connected_ray("local", num_cpus=cores, object_store_memory=OBJECT_STORE) as ray:
        yield ray


@contextmanager
def three_nodes() -> Iterator[Any]:
    """A cluster of three nodes with a core each; drivers connect to the first one."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    from ray.cluster_utils import Cluster

    first = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
        yield cluster
    finally:
        cluster.shutdown()


def working_actors(top: int) -> list[int]:
    """The processes below `top` that score a part with Ray at this moment."""
    parents, titles = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            pid = int(status.parent.name)
            parents[pid] = int(status.read_text().partition("PPid:")[2].split()[0])
            titles[pid] = (status.parent / "cmdline").read_bytes()

    def is_below(pid: int) -> bool:
        return pid == top or (pid in parents and is_below(parents[pid]))

    return [pid for pid, title in titles.items() if title.startswith(b"ray::PartActor.score") and is_below(pid)]


@contextmanager
def poisoned_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that are started in the meantime die when they decode an image with poison in its name."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(POISON)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.pathsep.join(filter(None, sys.path))}")
        yield
