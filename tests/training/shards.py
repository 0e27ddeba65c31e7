"""Tar shards of small real images, whose names say which they are."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from tests.samples import one_camera


def write_shards(folder: Path, counts: Sequence[int], *, size: int = 64, broken: Sequence[int] = ()) -> Path:
    """One shard for each count; images are numbered over all shards, and the `broken` ones are cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    images = iter(enumerate(one_camera(sum(counts), size=min(size, 256))))
    for shard, count in enumerate(counts):
        with tarfile.open(folder / f"shard-{shard:03d}.tar", "w") as archive:
            for _ in range(count):
                number, image = next(images)
                file = io.BytesIO()
                Image.fromarray(image.pixels).resize((size, size)).save(file, "png")
                add(archive, f"{number:05d}.png", file.getvalue()[: 60 if number in broken else None])
    return folder


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
