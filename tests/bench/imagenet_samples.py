"""A miniature of OpenOOD's data folder, with its real layout and names, of crops of real photos."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from discopatch.bench.dataset import CorruptionLevel
from discopatch.bench.suites import CORRUPTED, LISTS, SETS
from discopatch.corruptions import corrupt
from discopatch.demo import crops, sample_photos
from discopatch.images import Pixels

CLASSES = ("n01440764", "n01443537", "n02110958")
NORMAL = ("coffee", "temple", "rocket")
PATHS: dict[str, Callable[[int], str]] = {  # as OpenOOD's lists write them
    "train": lambda number: f"imagenet_1k/train/{(of := CLASSES[number % 3])}/{of}_{number}.JPEG",
    "validation": lambda number: f"imagenet_1k/val/ILSVRC2012_val_{number + 1:08d}.JPEG",
    "ssb_hard": lambda number: f"ssb_hard/n0157540{number % 2}/n0157540{number % 2}_{number}.JPEG",
    "ninco": lambda number: (
        f"ninco/{('mbira', 'caracal_caracal')[number % 2]}/{number:03d}_31.{('png', 'jpeg')[number % 2]}"
    ),
    "inaturalist": lambda number: f"inaturalist/images/{number:032x}.jpg",
    "textures": lambda number: f"texture/{('banded', 'zigzagged')[number % 2]}/{number:04d}.jpg",
    "openimage_o": lambda number: f"openimage_o/images/{number:016x}.jpg",
}
PHOTOS: dict[str, tuple[str, ...]] = {
    "ssb_hard": ("cat",),
    "ninco": ("astronaut",),
    "inaturalist": ("flower",),
    "textures": ("coins",),
    "openimage_o": ("motorcycle",),
}
HELD_BACK = {"validation": "val_imagenet.txt", "openimage_o": "val_openimage_o.txt"}  # not in the test list


def make_imagenet(root: Path, *, levels: Iterable[CorruptionLevel] = (), fit: int = 60) -> Path:
    """`root`, filled: some images of each set, and one more beside the test images, for OpenOOD's validation."""
    wanted = {"train": fit, "validation": 12}
    for seed, published in enumerate(SETS):
        count, held_back = wanted.get(published.name, 8), HELD_BACK.get(published.name)
        names = [PATHS[published.name](number) for number in range(count + bool(held_back))]
        photos = PHOTOS.get(published.name, NORMAL)
        images = crops(sample_photos(photos), -(-len(names) // len(photos)), size=80, seed=seed)
        for name, image in zip(names, images, strict=False):
            store(root / published.folder.partition("/")[0] / name, image.pixels)
        write_list(root / LISTS / published.image_list, names[:count])
        if held_back:
            write_list(root / LISTS / held_back, names[count:])
    for name, severity in levels:
        add_level(root, name, severity)
    return root


def add_level(root: Path, name: str, severity: int) -> None:
    """The validation images, corrupted, in folders of classes."""
    for number, path in enumerate(sorted((root / "images_largescale/imagenet_1k/val").iterdir())):
        with Image.open(path) as image:
            pixels = corrupt(np.asarray(image), name, severity, seed=number)
        store(root / CORRUPTED / name / str(severity) / CLASSES[number % 3] / path.name, pixels)


def store(path: Path, pixels: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_list(path: Path, names: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = ((name, number if "imagenet_1k" in name else -1) for number, name in enumerate(names))
    path.write_text("".join(f"{name} {label}\n" for name, label in labels))
