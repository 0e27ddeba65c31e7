"""OpenOOD's data folder becomes a suite, with its lists or without; what is wrong is an error with the remedy."""

import os
import pickle
import shutil
from pathlib import Path

import pytest

from discopatch.bench.dataset import Files
from discopatch.bench.suites import Suite
from discopatch.bench.suites.imagenet import ARCHIVES, CORRUPTED, LISTS, SETS, imagenet_suite, read_list
from discopatch.corruptions import CORE15, CORRUPTIONS
from discopatch.errors import NoImagesError, ParameterError
from discopatch.images.decode import decode
from tests.bench.suites.imagenet_samples import add_level, make_imagenet

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
    for files in (suite.fit, suite.test, *by_name(suite).values(), *suite.corrupted.values()):
        assert all(decode(file.read()).shape == (80, 80, 3) for file in files)


def test_lists_say_which_images_belong_to_a_set(root: Path) -> None:
    suite = imagenet_suite(root, seed=0)
    assert names(suite.test) == sorted(read_list(root / LISTS / "test_imagenet.txt"))
    assert names(by_name(suite)["openimage_o"]) == sorted(read_list(root / LISTS / "test_openimage_o.txt"))
    assert not set(names(suite.test)) & set(read_list(root / LISTS / "val_imagenet.txt"))


@pytest.mark.parametrize("lists", [True, False])
def test_images_to_fit_on_have_the_classes_of_their_folders(lists: bool, tmp_path: Path) -> None:
    suite = imagenet_suite(make_imagenet(tmp_path, lists=lists), seed=0)
    assert suite.fit_classes == tuple(file.path.name.partition("_")[0] for file in suite.fit)
    assert set(suite.fit_classes) == {"n01440764", "n01443537", "n02110958"}


def test_without_lists_all_images_of_the_folders_belong(root: Path, tmp_path: Path) -> None:
    make_imagenet(tmp_path, lists=False)
    listed, whole = imagenet_suite(root, seed=0), imagenet_suite(tmp_path, seed=0)
    assert names(whole.fit) == names(listed.fit)  # the same draw
    assert names(by_name(whole)["textures"]) == names(by_name(listed)["textures"])
    assert (len(whole.test), len(by_name(whole)["openimage_o"])) == (13, 9)


def test_a_single_list_serves_its_own_set_only(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    (tmp_path / LISTS / "test_openimage_o.txt").unlink()
    suite = imagenet_suite(tmp_path, seed=0)
    assert (len(suite.test), len(by_name(suite)["openimage_o"])) == (12, 9)


def test_candidates_are_drawn_by_the_seed(root: Path) -> None:
    few = imagenet_suite(root, seed=0, candidates=20).fit
    assert len(set(few)) == 20
    assert few == imagenet_suite(root, seed=0, candidates=20).fit
    assert set(few) != set(imagenet_suite(root, seed=1, candidates=20).fit)
    assert set(few) <= set(imagenet_suite(root, seed=0).fit)


def test_only_the_drawn_training_images_need_to_be_there(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    drawn = set(names(imagenet_suite(tmp_path, seed=0, candidates=20).fit))
    for name in read_list(tmp_path / LISTS / "train_imagenet.txt"):
        if name not in drawn:
            (tmp_path / LARGE / name).unlink()
    assert set(names(imagenet_suite(tmp_path, seed=0, candidates=20).fit)) == drawn
    with pytest.raises(NoImagesError, match="40 of 60"):
        imagenet_suite(tmp_path, seed=0)


def test_training_images_may_lie_behind_a_link_even_one_that_leads_back(tmp_path: Path) -> None:
    root = make_imagenet(tmp_path / "data", lists=False)
    elsewhere = tmp_path / "ILSVRC2012"
    (root / LARGE / "imagenet_1k/train").rename(elsewhere)
    (root / LARGE / "imagenet_1k/train").symlink_to(elsewhere)
    (elsewhere / "n01440764/back").symlink_to(elsewhere)
    assert len(imagenet_suite(root, seed=0).fit) == 60


def test_all_19_corruptions_of_imagenet_c_are_known_by_its_folders() -> None:
    assert list(ARCHIVES) == [name for name in ARCHIVES if name in CORRUPTIONS]
    assert set(ARCHIVES) == set(CORRUPTIONS)
    assert {name for name, archive in ARCHIVES.items() if archive != "extra"} == set(CORE15)
    assert (ARCHIVES["brightness"], ARCHIVES["contrast"], ARCHIVES["speckle_noise"]) == ("weather", "digital", "extra")


def test_missing_corruptions_and_severities_are_left_out(root: Path) -> None:
    corrupted = imagenet_suite(root, seed=0).corrupted
    assert list(corrupted) == [("gaussian_noise", 1), ("spatter", 5)]
    assert ("gaussian_noise", 2) not in corrupted
    assert ("fog", 1) not in corrupted
    assert len(corrupted["spatter", 5]) == 13


def test_without_imagenet_c_there_is_nothing_corrupted(tmp_path: Path) -> None:
    assert not imagenet_suite(make_imagenet(tmp_path), seed=0).corrupted


def test_an_empty_level_is_left_out(tmp_path: Path) -> None:
    make_imagenet(tmp_path, levels=[("fog", 2)])
    (tmp_path / LARGE / "imagenet_c/fog/3/n01440764").mkdir(parents=True)
    assert list(imagenet_suite(tmp_path, seed=0).corrupted) == [("fog", 2)]


@pytest.mark.parametrize("class_folders", [True, False], ids=["as published", "OpenOOD's sample"])
def test_levels_lie_in_folders_of_classes_or_not(tmp_path: Path, class_folders: bool) -> None:
    make_imagenet(tmp_path, levels=[("snow", 1)], class_folders=class_folders)
    files = imagenet_suite(tmp_path, seed=0).corrupted["snow", 1]
    assert names(files)[0].startswith("imagenet_c/snow/1/n01440764/" if class_folders else "imagenet_c/snow/1/ILSVRC")
    assert len(files) == 13


def test_levels_may_lie_in_the_folder_of_their_archive(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    add_level(tmp_path, "saturate", 4)
    base = tmp_path / LARGE / "imagenet_c"
    (base / "extra").mkdir()
    (base / "saturate").rename(base / "extra/saturate")
    assert len(imagenet_suite(tmp_path, seed=0).corrupted["saturate", 4]) == 13


def test_a_few_images_of_each_level_are_the_same_images(root: Path) -> None:
    corrupted = imagenet_suite(root, seed=0, per_level=5).corrupted
    file_names = [{Path(name).name for name in names(files)} for files in corrupted.values()]
    assert len(file_names[0]) == 5
    assert file_names[0] == file_names[1]


def test_a_suite_can_go_to_another_process(root: Path) -> None:
    suite = imagenet_suite(root, seed=0)
    copy = pickle.loads(pickle.dumps(suite))
    assert (copy.fit, dict(copy.corrupted)) == (suite.fit, dict(suite.corrupted))


def test_textures_also_count_among_the_large_images(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    (tmp_path / "images_classic/texture").rename(tmp_path / LARGE / "texture")
    assert len(by_name(imagenet_suite(tmp_path, seed=0))["textures"]) == 8


def test_of_nincos_own_archive_only_the_classes_count(tmp_path: Path) -> None:
    make_imagenet(tmp_path, lists=False)
    ninco = tmp_path / LARGE / "ninco"
    ninco.rename(tmp_path / LARGE / "NINCO_OOD_classes")
    ninco.mkdir()
    (tmp_path / LARGE / "NINCO_OOD_classes").rename(ninco / "NINCO_OOD_classes")
    (ninco / "NINCO_OOD_unit_tests").mkdir()
    os.link(next((tmp_path / LARGE / "ssb_hard").rglob("*.JPEG")), ninco / "NINCO_OOD_unit_tests/noise.jpg")
    assert len(by_name(imagenet_suite(tmp_path, seed=0))["ninco"]) == 8


def test_another_layout_is_an_error_that_names_both(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(NoImagesError, match=r"images_largescale.*notes\.txt, photos/.*discopatch data check"):
        imagenet_suite(tmp_path, seed=0)
    with pytest.raises(NoImagesError, match="absent"):
        imagenet_suite(tmp_path / "absent", seed=0)


def test_missing_sets_are_named_together(root: Path, tmp_path: Path) -> None:
    copy_tree(root, tmp_path)
    (tmp_path / LARGE / "ninco").rename(tmp_path / LARGE / "NINCO_all")
    (tmp_path / "images_classic/texture").rename(tmp_path / "images_classic/dtd")
    expected = r"images_largescale/ninco.*images_classic/texture.*NINCO_all/.*discopatch data check"
    with pytest.raises(NoImagesError, match=expected):
        imagenet_suite(tmp_path, seed=0)


def test_a_list_that_names_missing_files_is_an_error_with_their_number_and_the_first(
    root: Path, tmp_path: Path
) -> None:
    copy_tree(root, tmp_path)
    first, second, *_ = read_list(tmp_path / LISTS / "test_inaturalist.txt")
    for name in (first, second):
        (tmp_path / LARGE / name).unlink()
    with pytest.raises(NoImagesError, match=rf"inaturalist: 2 of 8 .*{first}.*images/.*discopatch data check"):
        imagenet_suite(tmp_path, seed=0)


@pytest.mark.parametrize("lists", [True, False])
def test_an_empty_set_is_an_error(tmp_path: Path, lists: bool) -> None:
    make_imagenet(tmp_path, lists=lists)
    if lists:
        (tmp_path / LISTS / "test_ssb_hard.txt").write_text("\n")
    else:
        for path in (tmp_path / LARGE / "ssb_hard").rglob("*.JPEG"):
            path.unlink()
    with pytest.raises(NoImagesError, match=r"ssb_hard.*test_ssb_hard.txt" if lists else r"ssb_hard.*n015"):
        imagenet_suite(tmp_path, seed=0)


@pytest.mark.parametrize(
    "line", ["ninco/mbira/1.png", "ninco/mbira/1.png label", "/etc/1.png -1", "a/../../1.png -1", "-1"]
)
def test_a_line_that_is_no_path_and_label_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"ninco/mbira/0.png -1\n{line}\n")
    with pytest.raises(ParameterError, match=r"line 2 of .*list.txt"):
        read_list(path)


def test_names_in_a_list_may_hold_spaces(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("sun/desert sand/a.jpg -1\r\n\r\n")
    assert read_list(tmp_path / "list.txt") == ["sun/desert sand/a.jpg"]


def test_lists_are_called_as_openood_calls_them() -> None:
    assert [each.image_list for each in SETS] == [
        "train_imagenet.txt",
        "test_imagenet.txt",
        "test_ssb_hard.txt",
        "test_ninco.txt",
        "test_inaturalist.txt",
        "test_textures.txt",
        "test_openimage_o.txt",
    ]
