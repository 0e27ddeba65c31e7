"""Every set is there, made in just the way that is written down."""

from pathlib import Path

import numpy as np
import pytest

from discopatch.benchmark.studies import gallery as module
from discopatch.benchmark.studies.gallery import CONTROL, FAR, FIT, NEAR, TEST, Gallery, chosen_files, prepare
from discopatch.benchmark.suites.natural import STORED
from discopatch.images import Limits, Transform
from discopatch.images.corrupt import corrupt
from discopatch.images.decode import decode
from tests.benchmark.studies.samples import SMALL

WANTED = SMALL.wanted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def gallery(tree: Path, folder: Path) -> Gallery:
    return prepare(chosen_files(tree, WANTED), folder, WANTED, workers=1)


def test_all_sets_are_there_one_after_the_other(gallery: Gallery) -> None:
    names = [FIT, TEST, *NEAR, *FAR, *CONTROL, "gaussian_noise 3", "brightness 3"]
    assert list(gallery.sets) == names
    assert [gallery.size(name) for name in names] == [12] + [6] * (len(names) - 1)
    assert np.cumsum([0] + [gallery.size(name) for name in names])[:-1].tolist() == [gallery.sets[n][0] for n in names]
    pixels, places = gallery.after(FIT)
    assert np.array_equal(pixels[places["steel"]], gallery.of("steel"))


def test_corrupted_photos_are_corrupted_first_and_stored_last(tree: Path, gallery: Gallery) -> None:
    first = chosen_files(tree, WANTED)[TEST][1]
    bare = Transform(size=64)(decode(first.read(), Limits()))
    assert np.array_equal(gallery.of(TEST)[1], STORED.store(bare))
    assert np.array_equal(gallery.of("brightness 3")[1], STORED.store(corrupt(bare, "brightness", 3, seed=1)))


def test_photos_to_fit_on_are_not_stored_again(tree: Path, gallery: Gallery) -> None:
    first = chosen_files(tree, WANTED)[FIT][0]
    assert np.array_equal(gallery.of(FIT)[0], decode(first.read(), Limits()))


def test_what_is_there_is_not_made_again(
    tree: Path, folder: Path, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module, "Pool")
    again = prepare(chosen_files(tree, WANTED), folder, WANTED, workers=1)
    assert again.key == gallery.key
    assert np.array_equal(again.pixels, gallery.pixels)


def test_a_folder_without_photos_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="natural/ and ood/"):
        chosen_files(tmp_path, WANTED)
