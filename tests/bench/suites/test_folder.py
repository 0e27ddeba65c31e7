"""Anybody's images are split by the seed, and no set is taken for another."""

import re
from pathlib import Path

import pytest
from PIL import Image

from discopatch.bench.dataset import class_folders
from discopatch.bench.suites.folders import folder_suite
from discopatch.demo import crops, sample_photos
from discopatch.errors import ParameterError, TooFewImagesError
from discopatch.images import NamedImage
from tests.bench.bench_samples import write_shard


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


def test_too_few_images_are_an_error_that_says_how_many_are_needed(normal: Path) -> None:
    with pytest.raises(TooFewImagesError, match=r"40 .*11 .*30"):
        folder_suite(normal, {}, test=11, seed=0)
    with pytest.raises(ParameterError):
        folder_suite(normal, {}, test=0, seed=0)


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
    assert len({file.digest for file in (*suite.test, *suite.fit)}) == len(suite.test) + len(suite.fit) == 40


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
