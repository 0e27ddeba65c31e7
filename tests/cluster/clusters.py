"""Small clusters of Ray on this machine, an object store, and images that end whoever decodes them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from discopatch.cluster.ray_session import connected_ray
from discopatch.images.stores import resolve

OBJECT_STORE = 100_000_000  # bytes, of each node
BUCKET = "bucket"

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

            def poisoned(item, limits):
                if "poison" in item.name:
                    os._exit(1)
                return decode(item, limits)

            Item.decode = poisoned

sys.meta_path.insert(0, Poison())
"""

SERVER = """
import sys
import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
port = server.get_host_and_port()[1]
boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1").create_bucket(Bucket=sys.argv[1])
print(port, flush=True)
sys.stdin.read()
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


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The query of S3 addresses in a process of its own, which has the bucket; its keys are in the environment."""
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        command = [sys.executable, "-c", SERVER, BUCKET]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                yield f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
            finally:
                server.kill()


def upload(path: Path, query: str) -> None:
    """Copies a file to the folder `source` of the bucket."""
    filesystem, folder = resolve(f"s3://{BUCKET}/source{query}")
    with filesystem.open_output_stream(f"{folder}/{path.name}") as stream:
        stream.write(path.read_bytes())
