"""Solar cells without a defect against defective ones, and against anything else."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from discopatch.bench.dataset import Files, ImageFile, describe_folder, list_files
from discopatch.bench.suites.base import OtherSet, Suite, missing_names, remedy
from discopatch.bench.suites.folder import check_names, split_normal
from discopatch.bench.suites.natural import SIZES
from discopatch.errors import NoImagesError, ParameterError

NORMAL_CELL, DEFECTIVE_CELL = 0.0, 1.0  # the labels of which the experts were sure


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
    """The folder of the solar cells: the one given, or that of the installed package, which is not imported."""
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
        if missing := missing_names(folder, names):
            raise NoImagesError(
                f"{len(missing):,} of {len(names):,} cells that labels.csv names are missing, the first {missing[0]}; "
                f"look in {describe_folder(folder)}; {remedy(folder)}"
            )
    return {label: tuple(ImageFile(name, folder / name) for name in sorted(names)) for label, names in found.items()}
