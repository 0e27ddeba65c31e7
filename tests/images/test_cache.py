"""The cache: decoded once, whole or not there at all, and checked before it is used."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from discopatch.errors import ParameterError
from discopatch.images import (
    Limits,
    PixelCache,
    RefusalReason,
    RefusalReport,
    Transform,
    accepted,
    open_cache,
    read_images,
)

from .samples import encoded, noise, photo

SMALL = Transform(32)
RECORD = 32 * 32 * 3

CHILD = """
import resource, sys, time
from pathlib import Path
from discopatch.images import Transform, open_cache

folder, root, pause, limit = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))

def progress(done, total):
    print("built", done, flush=True)
    time.sleep(pause)

print("digest", open_cache(folder, Transform(32), Path(root), progress=progress).digest, flush=True)
"""


def child(folder: Path, root: Path, *, pause: float = 0, limit: int = 0) -> "subprocess.Popen[str]":
    arguments = [str(folder), str(root), str(pause), str(limit)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """300 images, two of them broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:03}.png").write_bytes(encoded(noise(32, 40, seed=number), "PNG", compress_level=1))
    (folder / "100.png").write_bytes(b"text")
    (folder / "200.png").write_bytes(b"")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def assert_holds(cache: PixelCache, source: object) -> None:
    images = list(accepted(read_images(source, transform=SMALL), RefusalReport()))
    assert cache.names == [image.name for image in images]
    assert np.array_equal(cache.pixels, np.stack([image.pixels for image in images]))


def only_finished(root: Path) -> Path:
    """The folder of the one finished cache; nothing but its lock lies beside it."""
    (finished,) = (path for path in root.iterdir() if path.suffix != ".lock")
    assert sorted(path.name for path in finished.iterdir()) == ["index.json", "pixels.bin"]
    return finished


def test_a_cache_holds_names_pixels_refusals_and_transform(folder: Path, root: Path) -> None:
    cache = open_cache(folder, SMALL, root)
    assert_holds(cache, folder)
    assert cache.transform == SMALL
    assert cache.report.refused == {RefusalReason.NOT_AN_IMAGE: 1, RefusalReason.EMPTY: 1}
    assert not cache.pixels.flags.writeable
    only_finished(root)


def test_a_finished_cache_is_reused_without_decoding(folder: Path, root: Path) -> None:
    first = open_cache(folder, SMALL, root)
    path = folder / "000.png"
    before = path.stat()
    path.write_bytes(b"\0" * before.st_size)  # undecodable, but by size and time the same file
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    calls: list[int] = []
    again = open_cache(folder, SMALL, root, progress=lambda done, total: calls.append(done))
    assert calls == []
    assert (again.names, again.digest, again.report) == (first.names, first.digest, first.report)


def test_a_damaged_cache_is_noticed_and_built_again(folder: Path, root: Path) -> None:
    before = open_cache(folder, SMALL, root)
    for damaged in ("pixels.bin", "index.json"):
        os.truncate(only_finished(root) / damaged, 100)
        assert open_cache(folder, SMALL, root).digest == before.digest
    assert_holds(open_cache(folder, SMALL, root), folder)


def test_another_file_list_transform_or_limit_is_another_cache(folder: Path, root: Path) -> None:
    open_cache(folder, SMALL, root)
    open_cache(folder, Transform(32, fit="squash"), root)
    open_cache(folder, SMALL, root, limits=Limits(min_side=8))
    (folder / "000.png").write_bytes(encoded(photo(50, 50), "PNG"))
    changed = open_cache(folder, SMALL, root)
    assert_holds(changed, folder)
    (folder / "001.png").unlink()
    assert len(open_cache(folder, SMALL, root).names) == 297
    assert len([path for path in root.iterdir() if path.suffix != ".lock"]) == 5


def test_images_whose_short_side_is_below_the_least_are_left_out(root: Path) -> None:
    images = [noise(height, width) for height, width in ((32, 40), (48, 40), (40, 90), (39, 90))]
    whole, large = open_cache(images, SMALL, root), open_cache(images, SMALL, root, least=40)
    assert large.names == whole.names[1:3]
    assert np.array_equal(large.pixels, whole.pixels[1:3])
    with pytest.raises(ParameterError, match="41 pixels"):
        open_cache(images, SMALL, root, least=41)
    assert open_cache(images, SMALL, root).names == whole.names


@pytest.mark.slow
def test_two_processes_at_once_build_one_cache(folder: Path, root: Path) -> None:
    processes = [child(folder, root, pause=0.3) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("built" in output for output in outputs) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert_holds(open_cache(folder, SMALL, root), folder)


def test_a_full_disk_is_an_error_and_leaves_nothing(folder: Path, root: Path) -> None:
    with child(folder, root, limit=100 * RECORD) as process:
        _, errors = process.communicate(timeout=60)
    assert "OutputError" in errors
    assert_holds(open_cache(folder, SMALL, root), folder)
    only_finished(root)
