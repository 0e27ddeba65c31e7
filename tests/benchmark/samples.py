"""Small folders and shards in the layout of the real ones."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from discopatch.benchmark.plan import Folders, Plan
from discopatch.benchmark.reading import OOD_SETS, PHOTOS_AT_227
from discopatch.images import Picture
from discopatch.images.samples import crops, sample_photos

SMALL = Plan(
    corruptions=("gaussian_noise", "brightness"),
    severities=(1, 3),
    paper_severities=(3,),
    solar_test=6,
    solar_fit=120,
    solar_rest=40,
    split_fit=40,
    split_calibration=99,
    natural_fit=40,
    natural_calibration=99,
    splits=3,
    rates=(0.01, 0.2),
    halvings=5,
    fit_sizes=(30, 60, 1000),
    fit_size_test=4,
    resamples=50,
)


def make_folders(folder: Path) -> Folders:
    """Crops of sample photos stand for everything; those of one photo for the other kinds of images."""
    photos, others = sample_photos(["coffee", "temple"]), sample_photos(["coins"])
    folders = Folders(folder / "solar", folder / "natural", folder / "ood")
    solar(folders.solar, crops(photos, 90, size=70, seed=0))
    shard(folders.natural / "train-0000.tar", crops(photos, 40, size=64, seed=1), "JPEG")
    shard(folders.natural / "train-0001.tar", crops(photos, 40, size=64, seed=2), "JPEG")
    shard(folders.natural / "test.tar", crops(photos, 4, size=90, seed=3), "JPEG")
    for number, name in enumerate((*OOD_SETS, PHOTOS_AT_227)):
        shard(folders.ood / f"{name}.tar", crops(others, 5, size=80, seed=number), "PNG" if number % 2 else "JPEG")
    return folders


def solar(folder: Path, pictures: Iterable[Picture]) -> None:
    """Every ninth cell has a defect, and is no use here."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number, picture in enumerate(pictures):
        name = f"images/cell{number:04d}.png"
        Image.fromarray(picture.pixels).save(folder / name)
        lines.append(f"{name}  {0.6666 if number % 9 == 4 else 0.0}   mono")
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
