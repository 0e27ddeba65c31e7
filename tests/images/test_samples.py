"""Sample photos come with scikit-image, are large enough for the transform, and need no network."""

import socket
import sys
from typing import NoReturn

import numpy as np
import pytest

from discopatch.errors import MissingExtraError
from discopatch.images.samples import HELD_OUT, TRAINING, crops, sample_photos


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the samples went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_every_photo_is_rgb_and_large_enough() -> None:
    photos = sample_photos((*TRAINING, *HELD_OUT))
    assert list(photos) == [*TRAINING, *HELD_OUT]
    for name, photo in photos.items():
        assert photo.dtype == np.uint8, name
        assert photo.shape[2:] == (3,), name
        assert min(photo.shape[:2]) >= 256, name
        assert photo.std() > 10, name


def test_nothing_held_out_is_trained_on() -> None:
    assert not set(TRAINING) & set(HELD_OUT)


def test_crops_are_squares_of_their_photos() -> None:
    photos = sample_photos(["cat", "coffee"])
    images = crops(photos, 3, size=256, seed=0)
    assert [image.name for image in images] == ["cat-0", "cat-1", "cat-2", "coffee-0", "coffee-1", "coffee-2"]
    for image in images:
        assert image.pixels.shape == (256, 256, 3)
        photo = photos[image.name.split("-")[0]]
        height, width = photo.shape[:2]
        places = [
            (top, left)
            for top in range(height - 255)
            for left in range(width - 255)
            if (photo[top, left] == image.pixels[0, 0]).all()
        ]
        assert any(np.array_equal(photo[y : y + 256, x : x + 256], image.pixels) for y, x in places)


def test_without_scikit_image_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(MissingExtraError, match=r"discopatch\[demo\]"):
        sample_photos(["cat"])
