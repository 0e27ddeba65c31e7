"""Small folders and shards in the layout of the real ones."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from discopatch.benchmark.suites.natural import GROUPS
from discopatch.images import Picture
from discopatch.images.samples import crops, sample_photos


def make_folders(root: Path) -> Path:
    """`root`, filled: crops of sample photos stand for everything; those of one photo for the other kinds of images."""
    photos, others = sample_photos(["coffee", "temple"]), sample_photos(["coins"])
    solar(root / "solar", crops(photos, 90, size=70, seed=0))
    shard(root / "natural/train-0000.tar", crops(photos, 40, size=64, seed=1), "JPEG")
    shard(root / "natural/train-0001.tar", crops(photos, 40, size=64, seed=2), "JPEG")
    shard(root / "natural/test.tar", crops(photos, 4, size=90, seed=3), "JPEG")
    for number, name in enumerate(GROUPS):
        shard(root / f"ood/{name}.tar", crops(others, 5, size=80, seed=number), "PNG" if number % 2 else "JPEG")
    return root


def solar(folder: Path, pictures: Iterable[Picture]) -> None:
    """Every ninth cell may have a defect; every eighteenth has one."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number, picture in enumerate(pictures):
        name = f"images/cell{number:04d}.png"
        Image.fromarray(picture.pixels).save(folder / name)
        probability = {4: 1.0, 13: 0.6666}.get(number % 18, 0.0)
        lines.append(f"{name}  {probability}   mono")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def shard(path: Path, pictures: Iterable[Picture], kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, picture in enumerate(pictures):
            file = io.BytesIO()
            Image.fromarray(picture.pixels).save(file, kind)
            member = tarfile.TarInfo(f"{path.stem}-{number:03d}.{'jpg' if kind == 'JPEG' else 'png'}")
            member.size = len(file.getvalue())
            file.seek(0)
            archive.addfile(member, file)
