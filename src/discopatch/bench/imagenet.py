"""ImageNet-1K with the sets of OpenOOD v1.5 and ImageNet-C, as they lie in OpenOOD's data folder.

Layout and list names are those of OpenOOD's configs/datasets/imagenet and scripts/download. https://arxiv.org/abs/2306.09301
"""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from discopatch.bench.dataset import (
    CorruptionLevel,
    Files,
    ImageFile,
    OtherSet,
    Suite,
    class_folders,
    list_files,
    named_files,
    shuffled,
)
from discopatch.corruptions import CORRUPTIONS, EXTRA, FAMILIES, SEVERITIES
from discopatch.errors import NoImagesError, ParameterError

LISTS = "benchmark_imglist/imagenet"
IMAGES = "images_largescale"  # all but the textures, which OpenOOD shares with its small benchmarks
LAYOUT = "benchmark_imglist/imagenet/*.txt, images_largescale/SET and images_classic/texture"
FETCH = (
    "https://github.com/Jingkang50/OpenOOD: "
    "scripts/download/download.py --contents datasets --dataset_mode dataset --save_dir ROOT --datasets SET"
)
IMAGENET = (
    "https://image-net.org/challenges/LSVRC/2012 after registration, ILSVRC2012_img_train.tar: a folder per class"
)
CANDIDATES = 20_000


@dataclass(frozen=True)
class PublishedSet:
    """A set, the list that names its images, and the folder in which OpenOOD puts it."""

    name: str
    role: Literal["fit", "test", "near", "far"]
    image_list: str
    folder: str

    def files(self, root: Path, *, seed: int = 0, count: int | None = None) -> Files:
        """The files that the list names, or `count` of them, drawn by the seed; missing files are an error."""
        source = IMAGENET if self.role == "fit" else FETCH.replace("SET", self.folder.split("/")[1])
        path, base = root / LISTS / self.image_list, root / self.folder.partition("/")[0]
        if not path.is_file():
            raise NoImagesError(f"{self.name}: no {path}; it comes with every set of {FETCH}")
        names = sorted(read_list(path))
        names = names if count is None else shuffled(names, seed=seed, count=count)
        return named_files(base, names, f"images of {self.name} that {path} names", f"get them from {source}")


# The 5,000 validation images and 1,763 of OpenImage-O that lists leave out are there for choosing parameters.
SETS = (
    PublishedSet("train", "fit", "train_imagenet.txt", f"{IMAGES}/imagenet_1k/train"),
    PublishedSet("validation", "test", "test_imagenet.txt", f"{IMAGES}/imagenet_1k/val"),
    PublishedSet("ssb_hard", "near", "test_ssb_hard.txt", f"{IMAGES}/ssb_hard"),
    PublishedSet("ninco", "near", "test_ninco.txt", f"{IMAGES}/ninco"),
    PublishedSet("inaturalist", "far", "test_inaturalist.txt", f"{IMAGES}/inaturalist"),
    PublishedSet("textures", "far", "test_textures.txt", "images_classic/texture"),
    PublishedSet("openimage_o", "far", "test_openimage_o.txt", f"{IMAGES}/openimage_o"),
)

CORRUPTED = f"{IMAGES}/imagenet_c"
ARCHIVES = {  # of ImageNet-C (https://zenodo.org/records/2235448), each of which holds the folders of its corruptions
    name: "extra" if name in EXTRA else family for family, names in FAMILIES.items() for name in names
}


def imagenet_suite(root: Path, *, seed: int, candidates: int = CANDIDATES, per_level: int | None = None) -> Suite:
    """`candidates` training images to fit on, drawn by the seed; all test images; five other sets; ImageNet-C.

    `root` is OpenOOD's data folder, whose lists say which images belong to a set. Of each corruption and severity of
    ImageNet-C at most `per_level` images are taken, the same ones of those that are complete; None means all.
    """
    files = {each.name: each.files(root, seed=seed, count=candidates if each.role == "fit" else None) for each in SETS}
    others = [OtherSet(each.name, each.role, files[each.name]) for each in SETS if each.role in ("near", "far")]
    corrupted = {  # a level may have 50,000 files, which are listed only where it is used
        level: cache(partial(list_level, root / IMAGES, folder, seed=seed, count=per_level))
        for level, folder in corrupted_folders(root).items()
    }
    classes = class_folders([file.name for file in files["train"]])
    return Suite("imagenet", files["train"], files["validation"], tuple(others), corrupted, fit_classes=classes)


def list_level(base: Path, folder: Path, *, seed: int, count: int | None) -> Files:
    """The files of one corruption at one severity, named relative to `base`."""
    files = sorted(shuffled(list_files(folder), seed=seed, count=count))
    return tuple(ImageFile(file.path.relative_to(base).as_posix(), file.path) for file in files)


def corrupted_folders(root: Path) -> dict[CorruptionLevel, Path]:
    """The folder of each level that exists: CORRUPTION/SEVERITY or ARCHIVE/CORRUPTION/SEVERITY in imagenet_c."""
    found: dict[CorruptionLevel, Path] = {}
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            for parent in (root / CORRUPTED / name, root / CORRUPTED / ARCHIVES[name] / name):
                if (parent / str(severity)).is_dir():
                    found.setdefault((name, severity), parent / str(severity))
    return found


def read_list(path: Path) -> list[str]:
    """The images that one of OpenOOD's lists names; its lines are 'path label'."""
    names = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.removeprefix("-").isdecimal() or name.startswith("/") or ".." in name.split("/"):
            raise ParameterError(f"line {number} of {path} is {line!r}, not 'path label': copy the list again")
        names.append(name)
    if not names:
        raise ParameterError(f"{path} names no images: copy the list again")
    return names
