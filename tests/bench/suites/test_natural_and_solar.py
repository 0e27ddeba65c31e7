"""Photos in shards and solar cells become suites; what is missing is named with the layout."""

import shutil
from pathlib import Path

import pytest

from discopatch.bench.preprocessing import Storage
from discopatch.bench.suites.folders import natural_suite, solar_suite
from discopatch.errors import NoImagesError, ParameterError, TooFewImagesError
from tests.bench.bench_samples import make_folders


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
