"""The suites of images that a benchmark runs on."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from discopatch.bench.dataset import CorruptionLevel, Group, OtherSet, Suite
from discopatch.bench.suites.folders import NATURAL_LAYOUT, folder_suite, labelled_cells, natural_suite, solar_suite
from discopatch.bench.suites.imagenet import IMAGES, LAYOUT, SETS, imagenet_suite
from discopatch.errors import DiscopatchError, NoImagesError, ParameterError

__all__ = ["CorruptionLevel", "Group", "OtherSet", "Suite", "check_data", "get_suite"]


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
