"""OpenOOD's data folder becomes a suite by its lists; what is wrong is an error with the remedy."""

import shutil
from pathlib import Path

import pytest

from discopatch.bench.dataset import Files, Suite
from discopatch.bench.suites import CORRUPTED, LISTS, imagenet_suite, read_list
from discopatch.errors import NoImagesError, ParameterError
from discopatch.images.decode import decode
from tests.bench.imagenet_samples import add_level, make_imagenet

LARGE = "images_largescale"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never changed."""
    return make_imagenet(tmp_path_factory.mktemp("openood"), levels=[("gaussian_noise", 1), ("spatter", 5)])


def copy_tree(root: Path, to: Path) -> None:
    shutil.copytree(root, to, dirs_exist_ok=True)
    shutil.rmtree(to / CORRUPTED)


def names(files: Files) -> list[str]:
    return [file.name for file in files]


def by_name(suite: Suite) -> dict[str, Files]:
    return {each.name: each.files for each in suite.others}


def test_every_set_has_its_part_and_every_file_can_be_read(root: Path) -> None:
    suite = imagenet_suite(root, seed=0)
    assert (len(suite.fit), len(suite.test)) == (60, 12)
    assert {each.name: each.group for each in suite.others} == {
        "ssb_hard": "near",
        "ninco": "near",
        "inaturalist": "far",
        "textures": "far",
        "openimage_o": "far",
    }
    assert list(suite.corrupted) == [("gaussian_noise", 1), ("spatter", 5)]
    assert not set(names(suite.test)) & set(read_list(root / LISTS / "val_imagenet.txt"))
    for files in (suite.fit, suite.test, *by_name(suite).values(), *(files() for files in suite.corrupted.values())):
        assert all(decode(file.read()).shape == (80, 80, 3) for file in files)


def test_only_the_drawn_training_images_need_to_be_there(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    drawn = set(names(imagenet_suite(tmp_path, seed=0, candidates=20).fit))
    for name in read_list(tmp_path / LISTS / "train_imagenet.txt"):
        if name not in drawn:
            (tmp_path / LARGE / name).unlink()
    assert set(names(imagenet_suite(tmp_path, seed=0, candidates=20).fit)) == drawn
    with pytest.raises(NoImagesError, match="40 of 60"):
        imagenet_suite(tmp_path, seed=0)


def test_levels_may_lie_in_the_folder_of_their_archive(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    add_level(tmp_path, "saturate", 4)
    base = tmp_path / LARGE / "imagenet_c"
    (base / "extra").mkdir()
    (base / "saturate").rename(base / "extra/saturate")
    assert len(imagenet_suite(tmp_path, seed=0).corrupted["saturate", 4]()) == 13


def test_a_few_images_of_each_level_are_the_same_images(root: Path) -> None:
    corrupted = imagenet_suite(root, seed=0, per_level=5).corrupted
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
