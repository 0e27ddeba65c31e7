"""Sample photos come with scikit-image, are large enough for the transform, and need no network."""

import numpy as np
import pytest

from discopatch.images.samples import crops, sample_photos


@pytest.mark.slow
def test_crops_are_squares_of_their_photos() -> None:
    photos = sample_photos(["cat", "coffee"])
    images = crops(photos, 3, size=256, seed=0)
    assert [image.name for image in images] == ["cat-0", "cat-1", "cat-2", "coffee-0", "coffee-1", "coffee-2"]
    for image in images:
        assert image.pixels.shape == (256, 256, 3)
        windows = np.lib.stride_tricks.sliding_window_view(photos[image.name.split("-")[0]], (256, 256), (0, 1))
        alike = np.argwhere((windows[..., 0, 0] == image.pixels[0, 0]).all(2))
        assert any(np.array_equal(windows[row, column].transpose(1, 2, 0), image.pixels) for row, column in alike)
