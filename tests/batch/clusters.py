"""Small clusters of Ray on this machine, and images that end whoever decodes them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from discopatch.batch.ray_session import connected_ray

OBJECT_STORE = 100_000_000  # bytes, of each node

# Python runs a module of the name sitecustomize before anything else, wherever it finds it first.
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


@contextmanager
def local_ray(*, cores: int) -> Iterator[Any]:
    """Ray with its data, started and ended here."""
    with connected_ray("local", cores=cores, object_store=OBJECT_STORE) as ray:
        yield ray


@contextmanager
def three_nodes() -> Iterator[Any]:
    """A cluster of three nodes with a core each; to the first one drivers connect."""
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


@contextmanager
def poisoned_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that are started meanwhile end when they decode an image with poison in its name."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(POISON)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.pathsep.join(filter(None, sys.path))}")
        yield
