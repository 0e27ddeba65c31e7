"""Photos in shards and solar cells become suites; what is missing is named with the layout."""

import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from discopatch.bench.suites.natural import natural_suite
from discopatch.bench.suites.solar import NORMAL_CELL, labelled_cells, solar_folder, solar_suite

from discopatch.bench.dataset import shuffled
from discopatch.bench.preprocessing import Storage
from discopatch.bench.suites import solar
from discopatch.errors import NoImagesError, ParameterError, TooFewImagesError
from tests.bench.bench_samples import make_folders, write_shard


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never changed."""
    return make_folders(tmp_path_factory.mktemp("data"))


def test_photos_and_all_other_sets_are_in_their_groups(root: Path) -> None:
    suite = natural_suite(root)
    assert (len(suite.fit), len(suite.test)) == (160, 8)
    assert list(suite.fit) == sorted(suite.fit)
    groups = {each.name: each.group for each in suite.others}
    assert {name for name, group in groups.items() if group == "near"} == {"textures", "cartoons"}
    assert {name for name, group in groups.items() if group == "control"} == {"photos-227px"}
    assert len(groups) == 8
    assert all(len(each.files) == 5 for each in suite.others)


def test_it_is_known_how_photos_were_stored_and_sets_were_resized(root: Path) -> None:
    suite = natural_suite(root)
    assert suite.stored == Storage(92)
    sizes = {each.name: each.sizes for each in suite.others}
    assert (sizes["sketches"], sizes["steel"], sizes["receipts"]) == ((227,), (200, 416), ())


def test_missing_shards_are_named_together_with_the_layout(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    (tmp_path / "ood/steel.tar").unlink()
    (tmp_path / "ood/receipts.tar").rename(tmp_path / "ood/documents.tar")
    expected = r"no ood/receipts.tar, ood/steel.tar .*documents\.tar.*natural/train-\*\.tar.*discopatch data check"
    with pytest.raises(NoImagesError, match=expected):
        natural_suite(tmp_path)
    with pytest.raises(NoImagesError, match=r"natural/train-\*.tar, natural/test.tar, ood/textures.tar, "):
        natural_suite(tmp_path / "ood")


def test_an_empty_and_a_damaged_shard_are_errors_with_their_name(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    write_shard(tmp_path / "natural/test.tar", [], "PNG")
    with pytest.raises(NoImagesError, match=r"natural/test\.tar"):
        natural_suite(tmp_path)
    (tmp_path / "natural/test.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(ParameterError, match=r"natural/test\.tar"):
        natural_suite(tmp_path)


def test_the_first_normal_cells_of_the_order_are_tested_the_rest_fitted(root: Path) -> None:
    suite = solar_suite(root / "solar", {}, seed=0, test=6)
    order = tuple(shuffled(labelled_cells(root / "solar")[NORMAL_CELL], seed=0))
    assert suite.test == order[:6]
    assert suite.fit == order[6:]
    assert solar_suite(root / "solar", {}, seed=1, test=6).test != order[:6]


def test_only_cells_without_a_defect_are_normal(root: Path) -> None:
    found = labelled_cells(root / "solar")[NORMAL_CELL]
    assert len(found) == 160
    assert list(found) == sorted(found)
    assert not {"images/cell0004.png", "images/cell0013.png"} & {file.name for file in found}


def test_the_installed_package_is_found_without_importing_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elpv_dataset"
    shutil.copytree(root / "solar", package / "data")
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert solar_folder() == package / "data"


def test_absent_cells_are_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(solar, "find_spec", none)
    with pytest.raises(NoImagesError, match=r"pip install 'discopatch\[solar\]'"):
        solar_folder()
    with pytest.raises(NoImagesError, match=r"labels\.csv.*pip install"):
        solar_folder(tmp_path)


def test_cells_that_are_surely_defective_are_near(root: Path) -> None:
    (defective,) = solar_suite(root / "solar", {}, seed=0, test=6).others
    assert (defective.name, defective.group) == ("defective", "near")
    assert [file.name for file in defective.files] == [f"images/cell{number:04d}.png" for number in range(4, 180, 18)]
    assert all(file.read().startswith(b"\x89PNG") for file in defective.files)


def test_shards_and_folders_are_far_from_solar_cells(root: Path) -> None:
    others = {"steel": root / "ood/steel.tar", "cells": root / "solar/images"}
    sets = {each.name: each for each in solar_suite(root / "solar", others, seed=0, test=6).others}
    assert {name: each.group for name, each in sets.items()} == {"defective": "near", "steel": "far", "cells": "far"}
    assert (len(sets["cells"].files), sets["steel"].sizes) == (180, (200, 416))


def test_a_set_that_is_called_like_another_or_is_not_there_is_an_error(root: Path) -> None:
    with pytest.raises(ParameterError, match="'defective' and 'Defective'"):
        solar_suite(root / "solar", {"Defective": root / "ood/steel.tar"}, seed=0, test=6)
    with pytest.raises(NoImagesError, match="absent"):
        solar_suite(root / "solar", {"steel": root / "absent"}, seed=0, test=6)


def test_too_few_cells_missing_cells_and_bad_labels_are_errors(root: Path, tmp_path: Path) -> None:
    with pytest.raises(TooFewImagesError, match=r"160 .*140 .*30"):
        solar_suite(root / "solar", {}, seed=0, test=140)
    shutil.copytree(root / "solar", tmp_path, dirs_exist_ok=True)
    (tmp_path / "images/cell0007.png").unlink()
    with pytest.raises(NoImagesError, match=r"1 of 160 .*images/cell0007\.png"):
        solar_suite(tmp_path, {}, seed=0, test=6)
    (tmp_path / "labels.csv").write_text("images/cell0001.png,0.0,mono\n")
    with pytest.raises(ParameterError, match=r"line 1 of labels\.csv"):
        solar_suite(tmp_path, {}, seed=0, test=6)
    (tmp_path / "labels.csv").write_text("images/cell0001.png 0.0 mono\n")
    with pytest.raises(ParameterError, match="probability 1"):
        solar_suite(tmp_path, {}, seed=0, test=6)
