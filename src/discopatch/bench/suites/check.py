"""Which images of a benchmark exist, which are missing, and where to get them; nothing is downloaded or decoded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from discopatch.bench.dataset import image_names, list_files
from discopatch.bench.suites import folders, imagenet
from discopatch.bench.suites.base import CorruptionLevel, missing_names
from discopatch.bench.suites.folders import DEFECTIVE_CELL, NORMAL_CELL, labelled_cells
from discopatch.corruptions import CORRUPTIONS, SEVERITIES
from discopatch.errors import DiscopatchError, NoImagesError

COMPLETE = "complete"
SOLAR_SETS = {NORMAL_CELL: ("normal", "fit and test", 1508), DEFECTIVE_CELL: ("defective", "near", 715)}
SOLAR_SOURCE = "pip install 'discopatch[solar]', or https://github.com/zae-bayern/elpv-dataset"


@dataclass(frozen=True)
class CheckedSet:
    """A set of a benchmark: how many of its images exist, and whether a run can use it."""

    name: str
    role: str
    found: int
    expected: int | None  # None where no number was published
    status: str
    source: str
    usable: bool = True


def check_data(root: Path) -> list[CheckedSet]:
    """Every set of the benchmark whose layout `root` has."""
    for marks, check in LAYOUTS.items():
        if any((root / mark).exists() for mark in marks):
            return check(root)
    raise NoImagesError(
        f"no benchmark's layout in {root}. For ImageNet give OpenOOD's data folder, "
        f"with {imagenet.LAYOUT}; for photos a folder with {folders.NATURAL_LAYOUT}; "
        f"for solar cells one with labels.csv and images/"
    )


def check_imagenet(root: Path) -> list[CheckedSet]:
    """Lists, sets, then ImageNet-C, without which test images are corrupted during the run."""
    sets, lists = imagenet.SETS, imagenet.LISTS
    found = sum((root / lists / each.image_list).is_file() for each in sets)
    status = COMPLETE if found == len(sets) else "without a list all images of a folder are used"
    source = f"{imagenet.FETCH}; any set brings the lists along"
    return [
        CheckedSet(lists, "lists", found, len(sets), status, source),
        *(_check_published(root, each) for each in sets),
        *_check_corrupted(root),
    ]


def _check_published(root: Path, published: imagenet.PublishedSet) -> CheckedSet:
    def checked(found: int, expected: int, status: str, *, usable: bool = False) -> CheckedSet:
        return CheckedSet(published.name, published.role, found, expected, status, published.source, usable)

    located = imagenet.locate_set(root, published)
    if located is None:
        return checked(0, published.listed, f"missing: no {published.folder}")
    try:
        names = located.names()
    except DiscopatchError as error:
        return checked(0, located.expected, str(error))
    if not names:
        return checked(0, located.expected, f"no images in {located.image_list or located.folder}")
    if located.image_list and (missing := missing_names(located.base, names)):
        status = f"{len(missing):,} that the list names are missing, the first {missing[0]}"
        return checked(len(names) - len(missing), located.expected, status)
    return checked(len(names), located.expected, compare_counts(len(names), located.expected), usable=True)


def _check_corrupted(root: Path) -> list[CheckedSet]:
    folders = imagenet.corrupted_folders(root)
    counts = {level: sum(1 for _ in image_names(folder)) for level, folder in folders.items()}
    if not any(counts.values()):
        expected = imagenet.CORRUPTED_LEVEL * len(SEVERITIES) * len(CORRUPTIONS)
        status = f"no images in {imagenet.CORRUPTED}: the test images are corrupted during the run"
        return [CheckedSet("imagenet_c", "covariate", 0, expected, status, imagenet.CORRUPTED_SOURCE)]
    return [_check_corruption(name, counts) for name in CORRUPTIONS]


def _check_corruption(name: str, counts: Mapping[CorruptionLevel, int]) -> CheckedSet:
    """A run leaves out the severities that are missing."""
    by_severity = {severity: counts.get((name, severity), 0) for severity in SEVERITIES}
    found, expected = sum(by_severity.values()), imagenet.CORRUPTED_LEVEL * len(SEVERITIES)
    left_out = [str(severity) for severity, count in by_severity.items() if not count]
    if not found:
        status = "left out"
    elif left_out:
        status = f"severity {', '.join(left_out)} left out"
    else:
        status = compare_counts(found, expected) + "; OpenOOD's download is a sample" * (found < expected)
    source = f"{imagenet.CORRUPTED_SOURCE}: {imagenet.ARCHIVES[name]}.tar"
    return CheckedSet(name, "covariate", found, expected, status, source)


def check_natural(root: Path) -> list[CheckedSet]:
    shards = {"train": ("fit", folders.train_shards(root), "natural/train-0000.tar")}
    shards["test"] = ("test", [root / folders.NATURAL_TEST], folders.NATURAL_TEST)
    for name, group in folders.NATURAL_GROUPS.items():
        shards[name] = (group, [root / f"ood/{name}.tar"], f"ood/{name}.tar")
    return [_check_shards(name, *each) for name, each in shards.items()]


def _check_shards(name: str, role: str, shards: Sequence[Path], expected_path: str) -> CheckedSet:
    source = f"your own images: tar cf {expected_path} *.jpg"
    if not shards or not all(shard.exists() for shard in shards):
        return CheckedSet(name, role, 0, None, f"missing: no {expected_path}", source, usable=False)
    try:
        found = sum(len(list_files(shard)) for shard in shards)
    except DiscopatchError as error:
        return CheckedSet(name, role, 0, None, f"cannot be read: {error}", source, usable=False)
    return CheckedSet(name, role, found, None, "found", source)


def check_solar(root: Path) -> list[CheckedSet]:
    try:
        counts = {label: len(files) for label, files in labelled_cells(root).items()}
    except (DiscopatchError, OSError) as error:
        return [
            CheckedSet(name, role, 0, expected, str(error), SOLAR_SOURCE, usable=False)
            for name, role, expected in SOLAR_SETS.values()
        ]
    return [
        CheckedSet(name, role, counts[label], expected, compare_counts(counts[label], expected), SOLAR_SOURCE)
        for label, (name, role, expected) in SOLAR_SETS.items()
    ]


def compare_counts(found: int, published: int) -> str:
    if found == published:
        return COMPLETE
    return f"{abs(found - published):,} {'fewer' if found < published else 'more'} than published"


LAYOUTS: dict[tuple[str, ...], Callable[[Path], list[CheckedSet]]] = {  # by the paths that only this layout has
    (imagenet.IMAGES, "benchmark_imglist"): check_imagenet,
    ("natural", "ood"): check_natural,
    ("labels.csv",): check_solar,
}
