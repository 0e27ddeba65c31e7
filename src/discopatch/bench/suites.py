"""The suites of images that a benchmark runs on: a user's folders, photos in tar shards, solar cells, ImageNet."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from discopatch.bench.dataset import (
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
from discopatch.bench.imagenet import IMAGES, LAYOUT, SETS, imagenet_suite
from discopatch.bench.preprocessing import Storage
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
    match name:
        case "solar":
            return solar_suite(data, others or {}, test=test or 300, seed=0)
        case "natural":
            return natural_suite(_required(data, "--data ROOT with natural/ and ood/"))
        case "imagenet":
            root = _required(data, "--data ROOT, OpenOOD's data folder with images_largescale/")
            suite = imagenet_suite(root, seed=0, per_level=test)
            return replace(suite, corrupted={}) if generate else suite
        case "folder":
            return folder_suite(_required(normal, "--normal FOLDER"), others or {}, test=test, seed=0)
        case _:
            raise ParameterError(f"unknown suite {name!r}: choose solar, natural, imagenet or folder")


def _required(path: Path | None, option: str) -> Path:
    if path is None:
        raise ParameterError(f"this suite needs the folder of its images: give {option}")
    return path


def check_data(root: Path) -> dict[str, str]:
    """The problem of each set of the benchmark in `root` that is incomplete, with its remedy; nothing is decoded."""
    checks: dict[str, Callable[[], object]]
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
    sets = [OtherSet(name, "far", list_files(path)) for name, path in others.items()]
    check_names([each.name for each in sets])
    files = list_files(normal)
    unique: dict[str, ImageFile] = {}
    for file in files:  # a copy could be fitted while the same image is tested
        unique.setdefault(image_digest(file), file)
    test = min(len(unique) // 3, MAX_TEST) if test is None else test
    tested, fitted = split_normal(tuple(unique.values()), normal, test=test, seed=seed)
    classes = class_folders([file.name for file in fitted])
    return Suite("folder", fitted, tested, tuple(sets), fit_classes=classes, copies=len(files) - len(unique))


def split_normal(files: Sequence[ImageFile], folder: Path, *, test: int, seed: int) -> tuple[Files, Files]:
    """The files to test with, and those to fit on."""
    if test < 1:
        raise ParameterError(f"{test} test images: give at least 1")
    if len(files) < test + MIN_FIT:
        raise TooFewImagesError(
            f"{len(files):,} normal images in {folder}; {test:,} to test with and at least {MIN_FIT} to fit on "
            f"are needed: add images, or test with fewer"
        )
    order = shuffled(files, seed=seed)
    return tuple(order[:test]), tuple(order[test:])


def check_names(names: Sequence[str]) -> None:
    """Raises ParameterError where two sets have the same name, or one the name of a set of every run."""
    known: dict[str, str] = {}
    for name in names:
        if RESERVED.fullmatch(name):
            raise ParameterError(
                f"a set cannot be called {name!r}: choose a name without /, other than test, fit or control"
            )
        if name.casefold() in known:
            raise ParameterError(f"two sets are called {known[name.casefold()]!r} and {name!r}: rename one of them")
        known[name.casefold()] = name


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
    sets = [OtherSet("defective", "near", cells[DEFECTIVE_CELL])]
    sets += [OtherSet(name, "far", list_files(path), SIZES.get(name, ())) for name, path in others.items()]
    check_names([each.name for each in sets])
    return Suite("solar", fitted, tested, tuple(sets))


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
