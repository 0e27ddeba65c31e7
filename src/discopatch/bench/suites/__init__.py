"""The suites of images that a benchmark runs on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from discopatch.bench.suites.base import CorruptionLevel, Group, OtherSet, Suite
from discopatch.bench.suites.check import CheckedSet, check_data
from discopatch.bench.suites.folders import folder_suite, natural_suite, solar_suite
from discopatch.bench.suites.imagenet import imagenet_suite
from discopatch.errors import ParameterError

__all__ = ["CheckedSet", "CorruptionLevel", "Group", "OtherSet", "Suite", "check_data", "get_suite"]


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
