"""ImageNet-1K with the sets of OpenOOD v1.5 and ImageNet-C, as they lie in OpenOOD's data folder."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from discopatch.benchmark.imagefile import File
from discopatch.benchmark.suites.openood import ARCHIVES, CORRUPTED, IMAGES, LAYOUT, LISTS, SETS, Published
from discopatch.benchmark.suites.order import in_random_order
from discopatch.benchmark.suites.places import absent, inside, names_below, remedy
from discopatch.benchmark.suites.suite import Cell, Files, OtherSet, Suite
from discopatch.images.corrupt import CORRUPTIONS, SEVERITIES

CANDIDATES = 20_000


def imagenet_suite(root: Path, *, seed: int, candidates: int = CANDIDATES, per_cell: int | None = None) -> Suite:
    """Of the training images so many candidates to fit on, drawn by the seed; all test images; five other sets.

    `root` is OpenOOD's data folder. Where one of its image lists is there, it says which images belong to a set; where
    it is not, all images of the folder do. Of each cell of ImageNet-C at most `per_cell` images are taken, of complete
    cells the same ones; none means all.
    """
    located = locate_all(root)
    files = {
        each.published.name: each.files(seed=seed, count=candidates if each.published.role == "fit" else None)
        for each in located
    }
    others = [
        OtherSet(each.name, each.role, files[each.name]) for each in SETS if each.role == "near" or each.role == "far"
    ]
    corrupted = CorruptedFolders(root, seed=seed, per_cell=per_cell)
    return Suite("imagenet", files["train"], files["validation"], tuple(others), corrupted)


@dataclass(frozen=True)
class Located:
    """A published set as it lies here; images are called as the lists call them, relative to `base`."""

    published: Published
    base: Path
    folder: Path
    image_list: Path | None

    @property
    def expected(self) -> int:
        """How many images it should have."""
        return self.published.listed if self.image_list else self.published.whole

    def names(self) -> list[str]:
        """Of all its images, in order."""
        if self.image_list:
            return sorted(read_list(self.image_list))
        above = self.folder.relative_to(self.base).as_posix()
        return sorted(f"{above}/{name}" for name in names_below(self.folder))

    def files(self, *, seed: int, count: int | None) -> Files:
        """All of them, or so many drawn by the seed; those that a list names are there."""
        names = self.names()
        if not names:
            raise ValueError(f"{self._no_images()}; {remedy(self.base.parent)}")
        if count is not None:
            names = in_random_order(names, seed=seed, count=count)
        if self.image_list and (missing := absent(self.base, names)):
            raise FileNotFoundError(
                f"{self.published.name}: {len(missing):,} of {len(names):,} images that {self.image_list} names are "
                f"missing, the first {missing[0]}; look in {self.folder}, {inside(self.folder)}. Complete it, or take "
                f"the list away to use all that is there; {remedy(self.base.parent)}"
            )
        return tuple(File(name, self.base / name) for name in names)

    def _no_images(self) -> str:
        if self.image_list:
            return f"{self.published.name}: the list {self.image_list} names no images"
        return f"{self.published.name}: no images in {self.folder}, {inside(self.folder)}"


class CorruptedFolders(Mapping[Cell, Files]):
    """ImageNet-C: a cell is listed when it is asked for, and remembered; what is missing or empty is left out."""

    def __init__(self, root: Path, *, seed: int, per_cell: int | None) -> None:
        self._folders = {cell: folder for cell, folder in corrupted_folders(root).items() if any(names_below(folder))}
        self._base, self._seed, self._count = root / IMAGES, seed, per_cell
        self._listed: dict[Cell, Files] = {}

    def __getitem__(self, cell: Cell) -> Files:
        if cell not in self._listed:
            folder = self._folders[cell]
            names = in_random_order(sorted(names_below(folder)), seed=self._seed, count=self._count)
            above = folder.relative_to(self._base).as_posix()
            self._listed[cell] = tuple(File(f"{above}/{name}", folder / name) for name in sorted(names))
        return self._listed[cell]

    def __contains__(self, cell: object) -> bool:
        return cell in self._folders

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


def locate_all(root: Path) -> list[Located]:
    """Every published set; those that are missing are named together."""
    if not (root / IMAGES).is_dir():
        raise FileNotFoundError(
            f"no {IMAGES} in {root}, {inside(root)}: give OpenOOD's data folder, with {LAYOUT}; {remedy(root)}"
        )
    found = {published: locate(root, published) for published in SETS}
    missing = [f"{each.name} ({each.folder})" for each, place in found.items() if place is None]
    if missing:
        raise FileNotFoundError(
            f"no {', '.join(missing)} in {root}; its {IMAGES}, {inside(root / IMAGES)}; {remedy(root)}"
        )
    return [place for place in found.values() if place is not None]


def locate(root: Path, published: Published) -> Located | None:
    """Where a set lies, if it does."""
    image_list = root / LISTS / published.image_list
    for folder in (*published.rather, published.folder):
        if (root / folder).is_dir():
            base = root / folder.partition("/")[0]
            return Located(published, base, root / folder, image_list if image_list.is_file() else None)
    return None


def corrupted_folders(root: Path) -> dict[Cell, Path]:
    """Of each corruption and severity that is there: imagenet_c/CORRUPTION/SEVERITY, or one folder an archive above."""
    found = {}
    for name in CORRUPTIONS:
        for folder in (root / CORRUPTED / name, root / CORRUPTED / ARCHIVES[name] / name):
            cells = {(name, severity): folder / str(severity) for severity in SEVERITIES}
            found.update({cell: place for cell, place in cells.items() if place.is_dir() and cell not in found})
    return found


def read_list(path: Path) -> list[str]:
    """The images that one of OpenOOD's lists names; its lines are 'path label'."""
    names = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.removeprefix("-").isdecimal() or name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"line {number} of {path} is {line!r}, not 'path label': copy the list again")
        names.append(name)
    return names
