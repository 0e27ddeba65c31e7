"""Every set of a benchmark is counted and compared with what was published, without downloading anything."""

import shutil
from pathlib import Path

import pytest

from discopatch.bench.suites.check import COMPLETE, CheckedSet, check_data, compare_counts
from discopatch.bench.suites.imagenet import SETS
from tests.bench.bench_samples import make_folders
from tests.bench.suites.imagenet_samples import make_imagenet

LARGE = "images_largescale"


def check(root: Path) -> dict[str, CheckedSet]:
    return {each.name: each for each in check_data(root)}


def unusable(sets: dict[str, CheckedSet]) -> list[str]:
    return [name for name, each in sets.items() if not each.usable]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_imagenet(tmp_path / "data", fit=30, levels=[("fog", 1), ("fog", 2), ("spatter", 5)])


def test_sets_are_compared_with_what_was_published(root: Path) -> None:
    sets = check(root)
    assert {each.name: sets[each.name].expected for each in SETS} == {
        "train": 1_281_167,
        "validation": 45_000,
        "ssb_hard": 49_000,
        "ninco": 5_879,
        "inaturalist": 10_000,
        "textures": 5_160,
        "openimage_o": 15_869,
    }
    assert sets["ninco"].found == 8
    assert "5,871 fewer" in sets["ninco"].status
    assert unusable(sets) == []
    assert compare_counts(5, 5) == COMPLETE
    assert "2 more" in compare_counts(7, 5)


def test_a_missing_set_has_its_path_and_its_source(root: Path) -> None:
    shutil.rmtree(root / LARGE / "imagenet_1k/train")
    shutil.rmtree(root / "images_classic")
    sets = check(root)
    assert unusable(sets) == ["train", "textures"]
    assert "images_largescale/imagenet_1k/train" in sets["train"].status
    assert "https://image-net.org" in sets["train"].source
    assert sets["textures"].source == "OpenOOD's download.py: texture"


def test_files_that_a_list_names_and_that_are_missing_are_counted(root: Path) -> None:
    images = sorted((root / LARGE / "openimage_o/images").iterdir())
    for path in images[2:5]:
        path.unlink()
    checked = check(root)["openimage_o"]
    assert (checked.found, checked.usable) == (5, False)
    assert f"openimage_o/images/{images[2].name}" in checked.status


def test_levels_of_imagenet_c_that_are_left_out_are_named_and_the_rest_is_usable(root: Path) -> None:
    sets = check(root)
    covariate = [each for each in sets.values() if each.role == "covariate"]
    assert len(covariate) == 19
    assert sets["fog"].found == 26
    assert "3, 4, 5" in sets["fog"].status
    assert sets["snow"].found == 0
    assert sets["spatter"].source == "https://zenodo.org/records/2235448: extra.tar"
    assert all(each.usable for each in covariate)


def test_shards_of_photos_are_recognised(tmp_path: Path) -> None:
    make_folders(tmp_path)
    sets = check(tmp_path)
    assert (sets["train"].found, sets["test"].found, sets["steel"].found) == (160, 8, 5)
    assert unusable(sets) == []
    (tmp_path / "ood/steel.tar").unlink()
    (tmp_path / "natural/test.tar").write_bytes(b"no archive" * 100)
    for path in (tmp_path / "natural").glob("train-*.tar"):
        path.unlink()
    sets = check(tmp_path)
    assert unusable(sets) == ["train", "test", "steel"]
    assert "ood/steel.tar" in sets["steel"].status


def test_solar_cells_are_recognised(tmp_path: Path) -> None:
    folder = make_folders(tmp_path) / "solar"
    sets = check(folder)
    assert (sets["normal"].found, sets["normal"].expected) == (160, 1508)
    assert (sets["defective"].found, sets["defective"].expected) == (10, 715)
    (folder / "images/cell0004.png").unlink()
    sets = check(folder)
    assert "images/cell0004.png" in sets["defective"].status
    assert unusable(sets) == ["normal", "defective"]
