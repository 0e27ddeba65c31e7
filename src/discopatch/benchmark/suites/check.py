"""What of a benchmark's images is there, what is missing, and where it is had; nothing is downloaded or decoded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from discopatch.benchmark.suites import natural, openood
from discopatch.benchmark.suites.imagenet import corrupted_folders, locate
from discopatch.benchmark.suites.openood import ARCHIVES, CORRUPTED, CORRUPTED_CELL, CORRUPTED_WHERE, LISTS, SETS
from discopatch.benchmark.suites.places import absent, images_at, inside, names_below
from discopatch.benchmark.suites.solar import DEFECTIVE_CELL, NORMAL_CELL, labelled_cells
from discopatch.benchmark.suites.suite import Cell
from discopatch.images.corrupt import CORRUPTIONS, SEVERITIES

COMPLETE = "complete"
SOLAR_CELLS = {NORMAL_CELL: 1508, DEFECTIVE_CELL: 715}
SOLAR_WHERE = "pip install 'discopatch[solar]', or https://github.com/zae-bayern/elpv-dataset"
NATURAL_WHERE = "your own images: tar cf {} *.jpg"


@dataclass(frozen=True)
class Finding:
    """One set: how many of its images are there, and whether a run can use it."""

    name: str
    role: str
    found: int
    expected: int | None  # none: nobody published how many
    status: str
    where: str
    usable: bool = True


def check_data(root: Path) -> list[Finding]:
    """Every set of the benchmark whose layout `root` has."""
    for marks, check in LAYOUTS.items():
        if any((root / mark).exists() for mark in marks):
            return check(root)
    raise ValueError(
        f"no benchmark's layout in {root}, {inside(root)}. For ImageNet give OpenOOD's data folder, "
        f"with {openood.LAYOUT}; for photos a folder with {natural.LAYOUT}; "
        f"for solar cells one with labels.csv and images/"
    )


def check_imagenet(root: Path) -> list[Finding]:
    """Lists, sets, then ImageNet-C, without which corrupted images are made during the run."""
    return [check_lists(root), *(check_published(root, each) for each in SETS), *check_corrupted(root)]


def check_lists(root: Path) -> Finding:
    """Without them whole folders are taken, which hold more than the published sets do."""
    found = sum((root / LISTS / each.image_list).is_file() for each in SETS)
    status = COMPLETE if found == len(SETS) else "without a list all images of a folder are used"
    return Finding(LISTS, "lists", found, len(SETS), status, f"{openood.FETCH}; any set brings the lists along")


def check_published(root: Path, published: openood.Published) -> Finding:
    """One set of OpenOOD's."""

    def finding(found: int, expected: int, status: str, *, usable: bool) -> Finding:
        return Finding(published.name, published.role, found, expected, status, published.where, usable)

    located = locate(root, published)
    if located is None:
        return finding(0, published.listed, f"missing: no {published.folder}", usable=False)
    try:
        names = located.names()
    except ValueError as error:
        return finding(0, located.expected, str(error), usable=False)
    if not names:
        return finding(0, located.expected, f"no images in {located.image_list or located.folder}", usable=False)
    missing = absent(located.base, names) if located.image_list else []
    if missing:
        status = f"{len(missing):,} that the list names are missing, the first {missing[0]}"
        return finding(len(names) - len(missing), located.expected, status, usable=False)
    return finding(len(names), located.expected, compared(len(names), located.expected), usable=True)


def check_corrupted(root: Path) -> list[Finding]:
    """A line for each corruption."""
    folders = corrupted_folders(root)
    whole = CORRUPTED_CELL * len(SEVERITIES)
    if not any(any(names_below(folder)) for folder in folders.values()):
        status = f"no images in {CORRUPTED}: the test images are corrupted during the run"
        return [Finding("imagenet_c", "covariate", 0, whole * len(CORRUPTIONS), status, CORRUPTED_WHERE)]
    return [check_corruption(name, folders) for name in CORRUPTIONS]


def check_corruption(name: str, folders: Mapping[Cell, Path]) -> Finding:
    """What is missing of it is left out of a run."""
    counts = dict.fromkeys(SEVERITIES, 0)
    for severity in SEVERITIES:
        if (name, severity) in folders:
            counts[severity] = sum(1 for _ in names_below(folders[name, severity]))
    found, whole = sum(counts.values()), CORRUPTED_CELL * len(SEVERITIES)
    left_out = [str(severity) for severity, count in counts.items() if not count]
    if not found:
        status = "left out"
    elif left_out:
        status = f"severity {', '.join(left_out)} left out"
    else:
        status = compared(found, whole) + "; OpenOOD hands out a sample" * (found < whole)
    return Finding(name, "covariate", found, whole, status, f"{CORRUPTED_WHERE}: {ARCHIVES[name]}.tar")


def check_natural(root: Path) -> list[Finding]:
    """Shard by shard."""
    findings = [check_shards("train", "fit", natural.train_shards(root), "natural/train-0000.tar")]
    findings.append(check_shards("test", "test", [natural.held_out_shard(root)], "natural/test.tar"))
    for name, group in natural.GROUPS.items():
        findings.append(check_shards(name, group, [natural.ood_shard(root, name)], f"ood/{name}.tar"))
    return findings


def check_shards(name: str, role: str, shards: list[Path], called: str) -> Finding:
    """They are there, can be read, and hold images."""
    where = NATURAL_WHERE.format(called)
    try:
        found = sum(len(images_at(shard)) for shard in shards)
    except FileNotFoundError:
        return Finding(name, role, 0, None, f"missing: no {called}", where, usable=False)
    except ValueError as error:
        return Finding(name, role, 0, None, f"cannot be read: {error}", where, usable=False)
    return Finding(name, role, found, None, "there" if found else f"missing: no {called}", where, usable=found > 0)


def check_solar(root: Path) -> list[Finding]:
    """Both kinds of cells, or why they cannot be used."""
    sets = {NORMAL_CELL: ("normal", "fit and test"), DEFECTIVE_CELL: ("defective", "near")}
    try:
        cells = labelled_cells(root)
    except (ValueError, OSError) as error:
        return [
            Finding(name, role, 0, SOLAR_CELLS[key], str(error), SOLAR_WHERE, usable=False)
            for key, (name, role) in sets.items()
        ]
    return [
        Finding(name, role, len(cells[key]), SOLAR_CELLS[key], compared(len(cells[key]), SOLAR_CELLS[key]), SOLAR_WHERE)
        for key, (name, role) in sets.items()
    ]


def compared(found: int, expected: int) -> str:
    """With what was published."""
    if found == expected:
        return COMPLETE
    return f"{abs(found - expected):,} {'fewer' if found < expected else 'more'} than published"


LAYOUTS: dict[tuple[str, ...], Callable[[Path], list[Finding]]] = {  # what tells each from the others
    (openood.IMAGES, "benchmark_imglist"): check_imagenet,
    ("natural", "ood"): check_natural,
    ("labels.csv",): check_solar,
}
