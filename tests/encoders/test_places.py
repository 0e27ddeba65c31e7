"""Places of an image: maps of several layers, averaged over neighbouring cells and brought to one grid."""

import numpy as np
import torch

from discopatch.encoders import local_features
from tests.samples import on_grid


def test_maps_are_averaged_over_neighbours_and_brought_to_the_finest_grid() -> None:
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(2, channels, *shape)) for channels, shape in ((3, (4, 6)), (5, (8, 12)))]
    found = local_features([torch.from_numpy(each).half() for each in maps])
    assert (found.dtype, found.shape) == (torch.float32, (2, 8, 12, 8))
    for image in range(2):
        coarse, fine = (
            np.stack([averaged(one) for one in each[image].astype(np.float16).astype(np.float64)]) for each in maps
        )
        expected = np.stack([*(on_grid(one, (8, 12)) for one in coarse), *fine], -1)
        np.testing.assert_allclose(found[image], expected, atol=1e-5)


def averaged(values: np.ndarray) -> np.ndarray:
    """The mean over the cell and those around it that are inside."""
    result = np.empty_like(values)
    for row, column in np.ndindex(*values.shape):
        result[row, column] = values[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].mean()
    return result
