"""Decode once, train many times: transformed pictures as raw bytes in a file that is mapped into memory.

root/<key>/pixels.bin, index.json       a finished cache; the key names the files and the transform
root/<key>.partial/pixels.bin, journal  one in the making; a build that was killed goes on from here
root/<key>.lock                         held while building
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from discopatch.images.cachebuild import Build, Progress
from discopatch.images.item import Item
from discopatch.images.open import open as open_images
from discopatch.images.picture import ImageRefused, Limits
from discopatch.images.pixelcache import FORMAT, PixelCache, load
from discopatch.images.shard import Shard
from discopatch.images.sources import entries
from discopatch.images.transform import Transform
from discopatch.images.workers import DEFAULT_WORKERS, Workers


def default_root() -> Path:
    """The user's own cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "discopatch"


def open_cache(
    source: object,
    transform: Transform,
    root: Path,
    *,
    workers: Workers = DEFAULT_WORKERS,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    progress: Progress | None = None,
) -> PixelCache:
    """The pictures of `source` through `transform`, decoded on the first call and reused on every later one.

    Files count as unchanged while path, size and time of change are the same; images in memory go by content.
    An iterator is held in memory, because it is read twice. NoImagesError when every image was refused.
    """
    again = list(source) if isinstance(source, Iterator) else source
    key, total = _identify(again, transform, limits)
    finished = Path(root) / key
    cache = load(finished)
    if cache is not None:
        return cache
    with _locked(finished.with_name(f"{key}.lock")):
        cache = load(finished)  # another process may have built it while this one waited
        if cache is not None:
            return cache
        shutil.rmtree(finished, ignore_errors=True)
        build = Build.resume(finished.with_name(f"{key}.partial"), transform)
        build.check_space(total)
        rest = open_images(again, transform=transform, workers=workers, skip=build.done, limits=limits)
        with closing(rest):
            build.extend(rest, progress=progress or _silent, total=total)
        return build.finish(finished)


def _silent(done: int, total: int | None) -> None:
    pass


def _identify(source: object, transform: Transform, limits: Limits) -> tuple[str, int | None]:
    """The key of the cache, and the number of images unless shards hide it."""
    digest = hashlib.sha256(json.dumps([FORMAT, transform.digest, asdict(limits)]).encode())
    number, shards = 0, 0
    for entry in entries(source):
        digest.update(json.dumps(_identity(entry, limits)).encode())
        number += 1
        shards += isinstance(entry, Shard)
    return digest.hexdigest()[:32], None if shards else number


def _identity(entry: Item | Shard, limits: Limits) -> list[str | int]:
    if isinstance(entry, Shard):
        return ["shard", str(entry.path.absolute()), *_stamp(entry.path)]
    if isinstance(entry.content, Path):
        return ["file", str(entry.content.absolute()), *_stamp(entry.content)]
    try:
        pixels = np.array(entry.decode(limits))
    except ImageRefused as refused:
        return ["refused", entry.name, refused.reason]
    return ["memory", entry.name, *pixels.shape, hashlib.sha256(pixels.data).hexdigest()]


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
