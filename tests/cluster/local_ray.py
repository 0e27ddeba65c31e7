"""A small Ray on this machine, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from discopatch.cluster.ray_engine import connected_ray

OBJECT_STORE = 100_000_000  # bytes


@contextmanager
def local_ray(*, cores: int) -> Iterator[Any]:
    """Ray with its data, started and ended here."""
    with connected_ray("local", cores=cores, object_store=OBJECT_STORE) as ray:
        yield ray
