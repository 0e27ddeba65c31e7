"""Every set is there, preprocessed as the protocol says."""

from pathlib import Path

import numpy as np
import pytest

import paper.dataset
from discopatch.bench.suites.natural import STORED
from discopatch.corruptions import corrupt
from discopatch.errors import NoImagesError
from discopatch.images import Transform
from discopatch.images.decode import decode
from paper.dataset import CONTROL, FAR, FIT, NEAR, TEST, Dataset, list_sets, prepare_dataset
from tests.studies.samples import SMALL


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def dataset(folders: Path, work: Path) -> Dataset:
    return prepare_dataset(list_sets(folders, SMALL), work, workers=1)


def test_all_sets_are_there_one_after_the_other(dataset: Dataset) -> None:
    names = [FIT, TEST, *NEAR, *FAR, *CONTROL, "gaussian_noise 3", "brightness 3"]
    assert list(dataset.sets) == names
    assert [dataset.size(name) for name in names] == [12] + [5] * (len(names) - 1)
    assert [place.start for place in dataset.sets.values()] == np.cumsum([0, 12] + [5] * (len(names) - 2)).tolist()
    pixels, places = dataset.without_fit()
    assert np.array_equal(pixels[places["steel"]], dataset.images("steel"))
    assert FIT not in places
    assert dataset.summary[TEST]["images"] == 5


def test_corrupted_photos_are_corrupted_first_and_stored_last(folders: Path, dataset: Dataset) -> None:
    file = list_sets(folders, SMALL)[1].files[1]
    bare = Transform(size=64)(decode(file.read()))
    assert np.array_equal(dataset.images(TEST)[1], STORED.store(bare))
    assert np.array_equal(dataset.images("brightness 3")[1], STORED.store(corrupt(bare, "brightness", 3, seed=1)))


def test_photos_to_fit_on_are_not_stored_again(folders: Path, dataset: Dataset) -> None:
    file = list_sets(folders, SMALL)[0].files[0]
    assert np.array_equal(dataset.images(FIT)[0], decode(file.read()))


def test_what_is_there_is_not_prepared_again(
    folders: Path, work: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(paper.dataset, "CorruptionPool")
    again = prepare_dataset(list_sets(folders, SMALL), work, workers=1)
    assert again.key == dataset.key
    assert np.array_equal(again.pixels, dataset.pixels)


def test_a_folder_without_photos_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoImagesError, match="natural"):
        list_sets(tmp_path, SMALL)
