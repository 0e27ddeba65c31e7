"""Folders, photos in shards and solar cells become suites; what is missing is named with its layout and its source."""

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from discopatch.bench.dataset import Files, class_folders, image_digest
from discopatch.bench.preprocessing import Storage
from discopatch.bench.suites import (
    CORRUPTED,
    LISTS,
    check_data,
    folder_suite,
    imagenet_suite,
    natural_suite,
    read_list,
    solar_suite,
)
from discopatch.demo import crops, sample_photos
from discopatch.errors import NoImagesError, ParameterError, TooFewImagesError
from discopatch.images import NamedImage
from discopatch.images.decode import decode
from tests.bench.bench_samples import make_folders, write_shard
from tests.bench.imagenet_samples import add_level, make_imagenet

LARGE = "images_largescale"


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
    assert suite.stored == Storage(92)
    assert next(each.sizes for each in suite.others if each.name == "steel") == (200, 416)


def test_cells_that_are_surely_defective_are_near(root: Path) -> None:
    (defective,) = solar_suite(root / "solar", {}, seed=0, test=6).others
    assert (defective.name, defective.group) == ("defective", "near")
    assert [file.name for file in defective.files] == [f"images/cell{number:04d}.png" for number in range(4, 180, 18)]
    assert all(file.read().startswith(b"\x89PNG") for file in defective.files)


def test_shards_and_folders_are_far_from_solar_cells(root: Path) -> None:
    with pytest.raises(ParameterError, match="'Defective'"):
        solar_suite(root / "solar", {"Defective": root / "ood/steel.tar"}, seed=0, test=6)
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
    assert "probability 1" in check_data(tmp_path)["solar"]


def test_shards_of_photos_and_solar_cells_are_recognised(tmp_path: Path) -> None:
    make_folders(tmp_path)
    assert check_data(tmp_path) == check_data(tmp_path / "solar") == {}
    (tmp_path / "ood/steel.tar").unlink()
    assert "ood/steel.tar" in check_data(tmp_path)["natural"]
    (tmp_path / "solar/images/cell0004.png").unlink()
    assert "images/cell0004.png" in check_data(tmp_path / "solar")["solar"]
    with pytest.raises(NoImagesError):
        check_data(tmp_path / "solar/images")


@pytest.fixture(scope="module")
def images() -> list[NamedImage]:
    return crops(sample_photos(["coffee"]), 40, size=64, seed=0)


@pytest.fixture
def normal(tmp_path: Path, images: list[NamedImage]) -> Path:
    folder = tmp_path / "normal"
    (folder / "line 1").mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image.pixels).save(folder / f"line 1/{number:02d}.png")
    return folder


@pytest.fixture
def scratches(tmp_path: Path) -> Path:
    write_shard(tmp_path / "scratches.tar", crops(sample_photos(["cat"]), 3, size=64, seed=0), "JPEG")
    return tmp_path / "scratches.tar"


def test_normal_images_are_split_at_random_by_the_seed(normal: Path, scratches: Path) -> None:
    suite = folder_suite(normal, {"scratches": scratches}, test=10, seed=3)
    assert (len(suite.test), len(suite.fit)) == (10, 30)
    assert not set(suite.test) & set(suite.fit)
    assert suite.test == folder_suite(normal, {}, test=10, seed=3).test
    assert suite.test != folder_suite(normal, {}, test=10, seed=4).test
    assert [(each.name, each.group, len(each.files)) for each in suite.others] == [("scratches", "far", 3)]
    (published,) = folder_suite(normal, {"steel": scratches}, test=10, seed=3).others
    assert published.sizes == ()  # a user's set of that name was not resized by the publisher of ours


def test_too_few_images_are_an_error_that_says_how_many_are_needed(normal: Path) -> None:
    with pytest.raises(TooFewImagesError, match=r"40 .*11 .*30"):
        folder_suite(normal, {}, test=11, seed=0)


@pytest.mark.parametrize("name", ["test", "Fit", "control scratches", "brightness/3", ""])
def test_names_that_a_run_uses_itself_are_refused(normal: Path, scratches: Path, name: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(repr(name))):
        folder_suite(normal, {name: scratches}, test=10, seed=0)


def test_other_images_among_the_normal_ones_are_refused(normal: Path) -> None:
    (normal / "bad").mkdir()
    for path in (normal / "bad", normal, normal.parent):
        with pytest.raises(ParameterError, match="bad"):
            folder_suite(normal, {"bad": path}, test=10, seed=0)


def test_a_copy_of_a_normal_image_is_left_out_whatever_its_name(normal: Path) -> None:
    for number in range(5):
        (normal / f"copy-{number}.png").write_bytes((normal / f"line 1/{number:02d}.png").read_bytes())
    suite = folder_suite(normal, {}, test=10, seed=0)
    assert suite.copies == 5
    assert len({image_digest(file) for file in (*suite.test, *suite.fit)}) == len(suite.test) + len(suite.fit) == 40


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["cat/1.png", "dog/1.png"], ("cat", "dog")),
        (["train/cat/1.png", "train/dog/x/1.png"], ("cat", "dog")),
        (["cat/1.png", "cat/2.png"], ()),
        (["cat/1.png", "2.png"], ()),
        (["1.png", "2.png"], ()),
        ([], ()),
    ],
)
def test_a_class_is_the_first_folder_that_images_do_not_share(names: list[str], classes: tuple[str, ...]) -> None:
    assert class_folders(names) == classes


# OpenOOD's data folder


@pytest.fixture(scope="module")
def openood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never changed."""
    return make_imagenet(tmp_path_factory.mktemp("openood"), levels=[("gaussian_noise", 1), ("spatter", 5)])


def copy_tree(openood: Path, to: Path) -> None:
    shutil.copytree(openood, to, dirs_exist_ok=True)
    shutil.rmtree(to / CORRUPTED)


def names(files: Files) -> list[str]:
    return [file.name for file in files]


def test_every_set_has_its_part_and_every_file_can_be_read(openood: Path) -> None:
    suite = imagenet_suite(openood, seed=0)
    assert (len(suite.fit), len(suite.test)) == (60, 12)
    assert {each.name: each.group for each in suite.others} == {
        "ssb_hard": "near",
        "ninco": "near",
        "inaturalist": "far",
        "textures": "far",
        "openimage_o": "far",
    }
    assert list(suite.corrupted) == [("gaussian_noise", 1), ("spatter", 5)]
    assert not set(names(suite.test)) & set(read_list(openood / LISTS / "val_imagenet.txt"))
    for files in (
        suite.fit,
        suite.test,
        *(each.files for each in suite.others),
        *(each() for each in suite.corrupted.values()),
    ):
        assert all(decode(file.read()).shape == (80, 80, 3) for file in files)


def test_only_the_drawn_training_images_need_to_be_there(openood: Path, tmp_path: Path) -> None:
    copy_tree(openood, tmp_path)
    drawn = set(names(imagenet_suite(tmp_path, seed=0, candidates=20).fit))
    for name in read_list(tmp_path / LISTS / "train_imagenet.txt"):
        if name not in drawn:
            (tmp_path / LARGE / name).unlink()
    assert set(names(imagenet_suite(tmp_path, seed=0, candidates=20).fit)) == drawn
    with pytest.raises(NoImagesError, match="40 of 60"):
        imagenet_suite(tmp_path, seed=0)


def test_levels_may_lie_in_the_folder_of_their_archive(openood: Path, tmp_path: Path) -> None:
    copy_tree(openood, tmp_path)
    add_level(tmp_path, "saturate", 4)
    base = tmp_path / LARGE / "imagenet_c"
    (base / "extra").mkdir()
    (base / "saturate").rename(base / "extra/saturate")
    assert len(imagenet_suite(tmp_path, seed=0).corrupted["saturate", 4]()) == 13


def test_a_few_images_of_each_level_are_the_same_images(openood: Path) -> None:
    corrupted = imagenet_suite(openood, seed=0, per_level=5).corrupted
    file_names = [{Path(name).name for name in names(files())} for files in corrupted.values()]
    assert len(file_names[0]) == 5
    assert file_names[0] == file_names[1]


@pytest.mark.parametrize(
    "line", ["ninco/mbira/1.png", "ninco/mbira/1.png label", "/etc/1.png -1", "a/../../1.png -1", "-1"]
)
def test_a_line_that_is_no_path_and_label_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"ninco/mbira/0.png -1\n{line}\n")
    with pytest.raises(ParameterError, match=r"line 2 of .*list.txt"):
        read_list(path)


def test_missing_files_and_lists_of_imagenet_have_their_path_and_their_source(tmp_path: Path) -> None:
    root = make_imagenet(tmp_path / "data", fit=30)
    assert check_data(root) == {}
    shutil.rmtree(root / LARGE / "imagenet_1k/train")
    images = sorted((root / LARGE / "openimage_o/images").iterdir())
    for path in images[2:5]:
        path.unlink()
    (root / "benchmark_imglist/imagenet/test_ninco.txt").unlink()
    (root / "benchmark_imglist/imagenet/test_textures.txt").write_text("\n")
    problems = check_data(root)
    assert list(problems) == ["train", "ninco", "textures", "openimage_o"]
    assert "test_textures.txt names no images" in problems["textures"]
    assert "30 of 30" in problems["train"]
    assert "https://image-net.org" in problems["train"]
    assert "test_ninco.txt" in problems["ninco"]
    assert "3 of 8" in problems["openimage_o"]
    assert f"openimage_o/images/{images[2].name}" in problems["openimage_o"]
    assert "--datasets openimage_o" in problems["openimage_o"]
