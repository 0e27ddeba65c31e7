"""Anybody's images are split by the seed, and no set is taken for another."""

from pathlib import Path

import pytest
from PIL import Image

from discopatch.benchmark.suites.folder import folder_suite
from discopatch.images import Picture
from discopatch.images.samples import crops, sample_photos

from ..samples import shard


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return crops(sample_photos(["coffee"]), 40, size=64, seed=0)


@pytest.fixture
def normal(tmp_path: Path, pictures: list[Picture]) -> Path:
    folder = tmp_path / "normal"
    (folder / "line 1").mkdir(parents=True)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture.pixels).save(folder / f"line 1/{number:02d}.png")
    return folder


@pytest.fixture
def scratches(tmp_path: Path) -> Path:
    shard(tmp_path / "scratches.tar", crops(sample_photos(["cat"]), 3, size=64, seed=0), "JPEG")
    return tmp_path / "scratches.tar"


def test_normal_images_are_split_at_random_by_the_seed(normal: Path, scratches: Path) -> None:
    suite = folder_suite(normal, {"scratches": scratches}, test=10, seed=3)
    assert (len(suite.test), len(suite.fit)) == (10, 30)
    assert not set(suite.test) & set(suite.fit)
    assert suite.test == folder_suite(normal, {}, test=10, seed=3).test
    assert suite.test != folder_suite(normal, {}, test=10, seed=4).test
    assert [(each.name, each.group, len(each.files)) for each in suite.others] == [("scratches", "far", 3)]


def test_normal_images_may_lie_in_a_shard(tmp_path: Path, pictures: list[Picture]) -> None:
    shard(tmp_path / "normal.tar", pictures, "PNG")
    suite = folder_suite(tmp_path / "normal.tar", {}, test=10, seed=0)
    assert all(file.read().startswith(b"\x89PNG") for file in (*suite.fit, *suite.test))


def test_too_few_images_are_an_error_that_says_how_many_are_needed(normal: Path) -> None:
    with pytest.raises(
        ValueError, match=r"40 normal images in .*; 11 to test with and at least 30 to fit on are needed"
    ):
        folder_suite(normal, {}, test=11, seed=0)
    with pytest.raises(ValueError, match="give at least 1"):
        folder_suite(normal, {}, test=0, seed=0)


@pytest.mark.parametrize("name", ["test", "Fit", "control scratches", "brightness/3", ""])
def test_names_that_a_run_uses_itself_are_refused(normal: Path, scratches: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a set cannot be called"):
        folder_suite(normal, {name: scratches}, test=10, seed=0)


def test_names_that_differ_in_case_only_are_refused(normal: Path, scratches: Path) -> None:
    with pytest.raises(ValueError, match="two sets are called 'bad' and 'Bad': rename one of them"):
        folder_suite(normal, {"bad": scratches, "Bad": scratches}, test=10, seed=0)


def test_other_images_among_the_normal_ones_are_refused(normal: Path) -> None:
    (normal / "bad").mkdir()
    for place in (normal / "bad", normal, normal.parent):
        with pytest.raises(ValueError, match="lie within each other: move one of them out"):
            folder_suite(normal, {"bad": place}, test=10, seed=0)


def test_a_wrong_path_is_an_error_that_shows_what_is_there(normal: Path, scratches: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"no folder or tar shard .*norma: .* which holds normal/, scratches.tar"
    ):
        folder_suite(normal.parent / "norma", {}, test=10, seed=0)
    (normal.parent / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images in the folder .*empty"):
        folder_suite(normal, {"empty": normal.parent / "empty"}, test=10, seed=0)


def test_a_copy_of_a_normal_image_is_left_out_whatever_its_name(normal: Path) -> None:
    for number in range(5):
        (normal / f"copy-{number}.png").write_bytes((normal / f"line 1/{number:02d}.png").read_bytes())
    suite = folder_suite(normal, {}, test=10, seed=0)
    assert suite.copies == 5
    assert len({file.digest for file in (*suite.test, *suite.fit)}) == len(suite.test) + len(suite.fit) == 40


def test_a_third_is_tested_when_nobody_says_how_many(tmp_path: Path) -> None:
    (tmp_path / "normal").mkdir()
    for number, picture in enumerate(crops(sample_photos(["cat"]), 48, size=64, seed=0)):
        Image.fromarray(picture.pixels).save(tmp_path / f"normal/{number:02d}.png")
    suite = folder_suite(tmp_path / "normal", {}, test=None, seed=0)
    assert (len(suite.test), len(suite.fit)) == (16, 32)
