"""The suites of images that a benchmark runs on: a user's folders, photos in tar shards, solar cells, ImageNet."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Literal

from discopatch.bench.dataset import (
    CorruptionLevel,
    Files,
    Group,
    ImageFile,
    OtherSet,
    Suite,
    class_folders,
    image_digest,
    list_files,
    named_files,
    shuffled,
)
from discopatch.bench.preprocessing import Storage
from discopatch.corruptions import CORRUPTIONS, SEVERITIES
from discopatch.errors import DiscopatchError, NoImagesError, ParameterError, TooFewImagesError

MIN_FIT = 30
MAX_TEST = 100
RESERVED = re.compile(r"test|fit|normal|(control|fit) .*|.*/.*|\s*", re.IGNORECASE | re.DOTALL)  # names of a run's sets

NATURAL_LAYOUT = "natural/train-*.tar, natural/test.tar and ood/NAME.tar"
NATURAL_TRAIN, NATURAL_TEST = "natural/train-*.tar", "natural/test.tar"
NATURAL_STORED = Storage(92)  # of the photos to fit on, at the size of the transform
NATURAL_GROUPS: dict[str, Group] = {
    "textures": "near",
    "cartoons": "near",
    "sketches": "far",
    "receipts": "far",
    "chest-xray": "far",
    "brain-mri": "far",
    "steel": "far",
    "photos-227px": "control",
}
# Square sizes that a set was resized to, one after the other, before it was stored as it is.
SIZES: dict[str, tuple[int, ...]] = {
    "sketches": (227,),
    "cartoons": (227,),
    "photos-227px": (227,),
    "steel": (200, 416),
}
NORMAL_CELL, DEFECTIVE_CELL = 0.0, 1.0  # the labels of which the experts were sure

# ImageNet-1K with the sets of OpenOOD v1.5 (https://arxiv.org/abs/2306.09301) and ImageNet-C, as they lie in OpenOOD's
# data folder. Layout and list names are those of OpenOOD's configs/datasets/imagenet and scripts/download.
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

ROOTS = {  # options of the suites that need a folder
    "natural": "--data ROOT with natural/ and ood/",
    "imagenet": "--data ROOT, OpenOOD's data folder with images_largescale/",
    "folder": "--normal FOLDER",
}


def get_suite(
    name: str,
    *,
    data: Path | None = None,
    normal: Path | None = None,
    others: Mapping[str, Path] | None = None,
    test: int | None = None,
    generate: bool = False,
) -> Suite:
    """The files of the suite of that name; nothing is decoded.

    data: the root of suites solar, natural and imagenet.
    normal: the normal images of suite folder.
    others: further sets of suites solar and folder.
    test: the number of images to test with.
    generate: whether to corrupt test images although there are files of ImageNet-C.
    """
    if name == "solar":
        return solar_suite(data, others or {}, test=test or 300, seed=0)
    if name not in ROOTS:
        raise ParameterError(f"unknown suite {name!r}: choose solar, {', '.join(ROOTS)}")
    root = normal if name == "folder" else data
    if root is None:
        raise ParameterError(f"suite {name} needs the folder of its images: give {ROOTS[name]}")
    if name == "folder":
        return folder_suite(root, others or {}, test=test, seed=0)
    if name == "natural":
        return natural_suite(root)
    suite = imagenet_suite(root, seed=0, per_level=test)
    return replace(suite, corrupted={}) if generate else suite


def check_data(root: Path) -> dict[str, str]:
    """The problem of each set of the benchmark in `root` that is incomplete, with its remedy; nothing is decoded."""
    checks: Mapping[str, Callable[[], object]]
    if any((root / mark).exists() for mark in (IMAGES, "benchmark_imglist")):
        checks = {each.name: partial(each.files, root) for each in SETS}
    elif any((root / mark).exists() for mark in ("natural", "ood")):
        checks = {"natural": partial(natural_suite, root)}
    elif (root / "labels.csv").exists():
        checks = {"solar": partial(labelled_cells, root)}
    else:
        raise NoImagesError(
            f"no benchmark's layout in {root}. For ImageNet give OpenOOD's data folder, with {LAYOUT}; "
            f"for photos a folder with {NATURAL_LAYOUT}; for solar cells one with labels.csv and images/"
        )
    problems = {}
    for name, check in checks.items():
        try:
            check()
        except DiscopatchError as error:
            problems[name] = str(error)
    return problems


def folder_suite(normal: Path, others: Mapping[str, Path], *, test: int | None, seed: int) -> Suite:
    """Normal images, split at random into `test` images to test with and the rest to fit on; folders or tar shards.

    Without `test` a third of them is tested, at most a hundred. Folders of normal images are their classes.
    """
    for name, path in others.items():
        inner, outer = path.resolve(), normal.resolve()
        if inner.is_relative_to(outer) or outer.is_relative_to(inner):  # subfolders are read, too
            raise ParameterError(
                f"{name}: {path} and the normal images in {normal} lie within each other: move one of them out"
            )
    sets = far_sets(others)
    files = list_files(normal)
    unique: dict[str, ImageFile] = {}
    for file in files:  # a copy could be fitted while the same image is tested
        unique.setdefault(image_digest(file), file)
    test = min(len(unique) // 3, MAX_TEST) if test is None else test
    tested, fitted = split_normal(tuple(unique.values()), normal, test=test, seed=seed)
    classes = class_folders([file.name for file in fitted])
    return Suite("folder", fitted, tested, sets, fit_classes=classes, copies=len(files) - len(unique))


def split_normal(files: Sequence[ImageFile], folder: Path, *, test: int, seed: int) -> tuple[Files, Files]:
    """The files to test with, and those to fit on."""
    if len(files) < test + MIN_FIT:
        raise TooFewImagesError(
            f"{len(files):,} normal images in {folder}; {test:,} to test with and at least {MIN_FIT} to fit on "
            f"are needed: add images, or test with fewer"
        )
    order = shuffled(files, seed=seed)
    return tuple(order[:test]), tuple(order[test:])


def far_sets(others: Mapping[str, Path], *, taken: str = "") -> tuple[OtherSet, ...]:
    """The user's sets; ParameterError where two have the same name but for case, or one that of a set of a run."""
    names = [taken, *(name.casefold() for name in others)]
    for name in others:
        if RESERVED.fullmatch(name) or names.count(name.casefold()) > 1:
            raise ParameterError(
                f"a set cannot be called {name!r}: choose a name that no other set has, without /, other than test, "
                "fit or control"
            )
    return tuple(OtherSet(name, "far", list_files(path)) for name, path in others.items())


def natural_suite(root: Path) -> Suite:
    """Photos of natural/train-*.tar to fit on, those of natural/test.tar to test with, a shard for each other set."""
    shards = sorted(root.glob(NATURAL_TRAIN))
    wanted = [NATURAL_TEST, *(f"ood/{name}.tar" for name in NATURAL_GROUPS)]
    missing = [*([] if shards else [NATURAL_TRAIN]), *(path for path in wanted if not (root / path).is_file())]
    if missing:
        raise NoImagesError(
            f"no {', '.join(missing)} in {root}: the layout is {NATURAL_LAYOUT}; make a shard by "
            "`tar cf NAME.tar *.jpg`"
        )
    fit = sorted(file for shard in shards for file in list_files(shard))
    others = [
        OtherSet(name, group, list_files(root / f"ood/{name}.tar"), SIZES.get(name, ()))
        for name, group in NATURAL_GROUPS.items()
    ]
    return Suite("natural", tuple(fit), list_files(root / NATURAL_TEST), tuple(others), stored=NATURAL_STORED)


def solar_suite(folder: Path | None, others: Mapping[str, Path], *, test: int, seed: int) -> Suite:
    """`test` normal cells to test with and the rest to fit on, split at random by the seed.

    Without a folder the cells of the installed elpv-dataset are taken; `others` are folders or tar shards.
    """
    folder = solar_folder(folder)
    cells = labelled_cells(folder)
    tested, fitted = split_normal(cells[NORMAL_CELL], folder, test=test, seed=seed)
    defective = OtherSet("defective", "near", cells[DEFECTIVE_CELL])
    sets = [replace(each, sizes=SIZES.get(each.name, ())) for each in far_sets(others, taken=defective.name)]
    return Suite("solar", fitted, tested, (defective, *sets))


def solar_folder(folder: Path | None = None) -> Path:
    """The folder of the solar cells: the given one, or that of the installed package."""
    if folder is None:
        package = find_spec("elpv_dataset")
        folder = Path(package.origin).parent / "data" if package and package.origin else None
    if folder is None or not (folder / "labels.csv").is_file():
        problem = "not installed" if folder is None else f"no labels.csv in {folder}"
        raise NoImagesError(
            f"solar cells: {problem}; pip install 'discopatch[solar]', or give a folder with labels.csv and images/"
        )
    return folder


def labelled_cells(folder: Path) -> dict[float, Files]:
    """The cells without and with a defect, by name; those of which the experts were not sure are left out."""
    found: dict[float, list[str]] = {NORMAL_CELL: [], DEFECTIVE_CELL: []}
    for number, line in enumerate((folder / "labels.csv").read_text().splitlines(), start=1):
        if line.strip():
            try:
                name, probability, _ = line.split()
                found.get(float(probability), []).append(name)
            except ValueError as error:
                raise ParameterError(
                    f"line {number} of labels.csv in {folder} is {line.strip()!r}, not 'image probability type': "
                    "copy it again"
                ) from error
    for label, names in found.items():
        if not names:
            raise ParameterError(f"labels.csv in {folder} names no cell of probability {label:g}: copy it again")
    remedy = "copy the folder again from https://github.com/zae-bayern/elpv-dataset"
    return {
        label: named_files(folder, sorted(names), "cells that labels.csv names", remedy)
        for label, names in found.items()
    }


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

CORRUPTED = f"{IMAGES}/imagenet_c"  # ImageNet-C, https://zenodo.org/records/2235448


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
    for name, severity in product(CORRUPTIONS, SEVERITIES):
        level = f"{name}/{severity}"
        for folder in [*(root / CORRUPTED).glob(level), *sorted((root / CORRUPTED).glob(f"*/{level}"))]:
            found.setdefault((name, severity), folder)
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
