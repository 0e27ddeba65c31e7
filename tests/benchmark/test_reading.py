"""The right images, in the right order, or an error that says how to get them."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from discopatch.benchmark import reading
from discopatch.benchmark.reading import (
    Encoded,
    in_random_order,
    natural_train,
    normal_cells,
    read,
    shard_files,
    solar_folder,
)
from discopatch.images import Transform

from .samples import make_folders, shard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suites")
    make_folders(path)
    return path


def test_only_cells_without_a_defect_are_normal(folder: Path) -> None:
    found = normal_cells(folder / "solar")
    assert len(found) == 160
    assert found == sorted(found)
    assert all(path.is_file() for path in found)
    assert folder / "solar/images/cell0004.png" not in found


def test_the_order_of_the_cells_is_that_of_the_seed(folder: Path) -> None:
    files = normal_cells(folder / "solar")
    expected = [files[place] for place in np.random.default_rng(0).permutation(160)]
    assert in_random_order(files, seed=0) == expected


def test_the_installed_package_is_found_without_importing_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "elpv_dataset"
    package.mkdir()
    (folder / "solar").rename(package / "data")
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    monkeypatch.syspath_prepend(str(folder))
    try:
        assert solar_folder() == package / "data"
    finally:
        (package / "data").rename(folder / "solar")


def test_absent_cells_are_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(reading, "find_spec", none)
    with pytest.raises(FileNotFoundError, match=r"not installed; pip install 'discopatch\[solar\]', or --solar FOLDER"):
        solar_folder()
    with pytest.raises(FileNotFoundError, match=r"no labels.csv in .*--solar FOLDER"):
        solar_folder(tmp_path)


def test_shards_are_read_by_name_and_drawn_by_seed(folder: Path) -> None:
    files = natural_train(folder / "natural")
    assert len(files) == 160
    assert files == sorted(files)
    first = in_random_order(files, seed=0, count=9)
    assert first == in_random_order(files, seed=0)[:9]
    assert len({file.name for file in first}) == 9


def test_missing_shards_are_an_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"--natural FOLDER"):
        natural_train(tmp_path)
    shard(tmp_path / "empty.tar", [], "PNG")
    with pytest.raises(FileNotFoundError, match=r"no images in .*empty.tar"):
        shard_files(tmp_path / "empty.tar")


def test_pictures_come_through_the_transform_and_their_digest_stands_for_them(folder: Path) -> None:
    files = normal_cells(folder / "solar")[:5]
    found = read(files, Transform(64))
    assert found.pixels.shape == (5, 64, 64, 3)
    assert found.names == tuple(path.name for path in files)
    assert found.digest == read(files, Transform(64), workers=1).digest
    assert found.digest != read(files, Transform(32)).digest
    assert found.digest != read(files[:4], Transform(64)).digest
    assert found.of(slice(1, 3)).names == found.names[1:3]
    assert np.array_equal(found.pictures[2].pixels, found.pixels[2])


def test_a_bad_file_is_an_error_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"broken\.png cannot be read .*copy it again"):
        read([Encoded("broken.png", b"no image")], Transform(64))
