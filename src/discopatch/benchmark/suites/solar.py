"""Solar cells without a defect against defective ones, and against anything else."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from discopatch.benchmark.imagefile import File
from discopatch.benchmark.suites.folder import check_names, split
from discopatch.benchmark.suites.natural import SIZES
from discopatch.benchmark.suites.places import absent, images_at, inside, remedy
from discopatch.benchmark.suites.suite import Files, OtherSet, Suite

DEFECTIVE = "defective"
NORMAL_CELL, DEFECTIVE_CELL = 0.0, 1.0  # of which the experts were sure


def solar_suite(folder: Path | None, others: Mapping[str, Path], *, test: int, seed: int) -> Suite:
    """The first `test` normal cells of the seed's order to test with, the rest to fit on.

    Without a folder the cells of the installed elpv-dataset are taken; `others` are folders or tar shards.
    """
    place = solar_folder(folder)
    cells = labelled_cells(place)
    tested, fitted = split(cells[NORMAL_CELL], place, test=test, seed=seed)
    sets = [OtherSet(DEFECTIVE, "near", cells[DEFECTIVE_CELL]), *further_sets(others)]
    check_names([each.name for each in sets])
    return Suite("solar", fitted, tested, tuple(sets))


def solar_folder(given: Path | None = None) -> Path:
    """Where the solar cells lie: the folder given, or that of the installed package, which is not imported."""
    if given is None:
        package = find_spec("elpv_dataset")
        given = Path(package.origin).parent / "data" if package and package.origin else None
    if given is None or not (given / "labels.csv").is_file():
        place = "not installed" if given is None else f"no labels.csv in {given}"
        raise FileNotFoundError(
            f"solar cells: {place}; pip install 'discopatch[solar]', or give a folder with labels.csv and images/"
        )
    return given


def labelled_cells(folder: Path) -> dict[float, Files]:
    """The cells without and with a defect, by name; what the experts were not sure of is left out."""
    found: dict[float, list[str]] = {NORMAL_CELL: [], DEFECTIVE_CELL: []}
    for number, line in enumerate((folder / "labels.csv").read_text().splitlines(), start=1):
        if line.strip():
            name, probability = _label(line, number, folder)
            found.get(probability, []).append(name)
    for probability, names in found.items():
        if not names:
            raise ValueError(f"labels.csv in {folder} names no cell of probability {probability:g}: copy it again")
        if missing := absent(folder, names):
            raise FileNotFoundError(
                f"{len(missing):,} of {len(names):,} cells that labels.csv in {folder} names are missing, "
                f"the first {missing[0]}; look in {folder}, {inside(folder)}; {remedy(folder)}"
            )
    return {key: tuple(File(name, folder / name) for name in sorted(names)) for key, names in found.items()}


def further_sets(places: Mapping[str, Path]) -> list[OtherSet]:
    """A far set for each folder or shard."""
    return [OtherSet(name, "far", images_at(place), SIZES.get(name, ())) for name, place in places.items()]


def _label(line: str, number: int, folder: Path) -> tuple[str, float]:
    try:
        name, probability, _ = line.split()
        return name, float(probability)
    except ValueError as error:
        raise ValueError(
            f"line {number} of labels.csv in {folder} is {line.strip()!r}, not 'image probability type': copy it again"
        ) from error
