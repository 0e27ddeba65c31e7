"""Folders and shards of small images, and what a folder of scores holds."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from discopatch.images import NamedImage
from tests.samples import one_camera, save_images


def image_folder(folder: Path, count: int, *, seed: int = 1, first: str = "") -> Path:
    """So many images of one camera, whose names begin with `first`."""
    named = [
        NamedImage(f"{first}{number:03d}", each.pixels) for number, each in enumerate(one_camera(count, seed=seed))
    ]
    save_images(folder, named)
    return folder


def tar_shard(path: Path, images: Sequence[NamedImage]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for image in images:
            content = io.BytesIO()
            Image.fromarray(image.pixels).save(content, "PNG")
            member = tarfile.TarInfo(f"{image.name}.png")
            member.size = len(content.getvalue())
            archive.addfile(member, io.BytesIO(content.getvalue()))
    return path


def shard_folder(folder: Path, sizes: Sequence[int]) -> Path:
    """One tar shard of each size."""
    for number, size in enumerate(sizes):
        tar_shard(folder / f"{number:02d}.tar", one_camera(size, seed=10 + number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files by name; a leftover of a killed process has none."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def part_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))
