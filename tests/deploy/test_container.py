"""The steps of the Dockerfile in an empty environment, and the service that they install."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

from discopatch import Runtime
from tests.deploy.dockerfile import ROOT, environment, stages, the_one
from tests.samples import one_camera, save_images
from tests.watch.streams import free_port

pytestmark = pytest.mark.nightly
MB = 1_000_000
BASE_MB = 130  # of python:3.11-slim
GOAL_MB = 400
INSTALLED = "/opt/discopatch"


class Container(NamedTuple):
    """Where what would be the container's /opt/discopatch and /data lie, and an export that is mounted into it."""

    installed: Path
    data: Path
    export: Path

    @property
    def python(self) -> str:
        return str(self.installed / "bin" / "python")


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory, export_folder: Path) -> Container:
    root = tmp_path_factory.mktemp("container")
    subprocess.run([sys.executable, "-m", "venv", root / "base"], check=True)  # the base image's Python and pip
    build(root)
    (root / "data").mkdir()
    return Container(root / "opt" / "discopatch", root / "data", export_folder)


def build(root: Path) -> None:
    """The steps of the first stage, with folders of `root` in place of those of the container."""
    place = root / "build"
    place.mkdir()
    for name, text in stages()[0][1:]:
        if name == "COPY":
            *sources, target = text.split()
            for source in sources:
                copy(ROOT / source, place / target if target != "./" else place / source)
        elif name == "RUN":
            script = text.replace(INSTALLED, str(root / "opt" / "discopatch"))
            path = f"{root / 'base' / 'bin'}{os.pathsep}{os.environ['PATH']}"
            env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {"PATH": path}
            done = subprocess.run(
                ["sh", "-ec", script], cwd=place, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            assert (name, text) == ("WORKDIR", "/build")


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@contextmanager
def started(container: Container, *prefix: str) -> Iterator[tuple[str, int]]:
    """The address and process of the service, started as the container starts it, on a free port of this machine."""
    final = stages()[-1]
    command, *options = the_one(final, "ENTRYPOINT").words
    given = environment(final) | {
        "PATH": f"{container.installed / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "XDG_STATE_HOME": str(container.data),
        "TMPDIR": str(container.data),
    }
    arguments = [
        *options,
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port()),
        "--history",
        str(container.data / "history.sqlite"),
    ]
    process = subprocess.Popen(
        [*prefix, str(container.installed / "bin" / command), *arguments, f"camera-3={container.export}"],
        env=given,
        cwd=container.installed,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    address = process.stdout.readline().strip()
    try:
        assert address, process.stderr.read()
        yield address.rstrip("/"), process.pid
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log


def test_it_has_no_torch_and_is_small(container: Container) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'scipy', 'pip', 'setuptools') if u.find_spec(n)])"
    printed = subprocess.run([container.python, "-c", code], capture_output=True, text=True, check=True, env={})
    assert printed.stdout.strip() == "[]"
    assert 50 < sum(path.lstat().st_size for path in container.installed.rglob("*")) / MB < GOAL_MB - BASE_MB


def test_it_scores_as_the_export_does_on_a_read_only_file_system(container: Container, tmp_path: Path) -> None:
    data = container.data
    mounts = f"mount --bind '{data}' '{data}' && mount -o remount,ro,bind /"
    tried = ["unshare", "--mount", "sh", "-c", f"{mounts} && ! touch '{tmp_path}/there'"]
    if subprocess.run(tried, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    (image,) = save_images(data / "images", one_camera(1, seed=7))
    expected = Runtime.load(container.export).predict([str(image)])[0]
    with started(container, "unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$0" "$@"') as (address, pid):
        request = Request(f"{address}/v1/detectors/camera-3/score", image.read_bytes(), {"Content-Type": "image/png"})
        with urlopen(request) as answer:
            (scored,) = json.load(answer)["predictions"]
        _, *check = the_one(stages()[-1], "HEALTHCHECK").words
        check[-1] = check[-1].replace("/proc/1/", f"/proc/{pid}/")
        assert subprocess.run([container.python, *check], check=False).returncode == 0
    assert (scored["score"], scored["is_ood"]) == (expected.score, expected.is_ood)
    assert subprocess.run([container.python, *check], check=False, capture_output=True).returncode != 0
    assert (data / "history.sqlite").is_file()
