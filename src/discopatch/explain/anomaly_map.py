"""The anomaly map: how unusual each pixel of an image is, from the z-scores of its places."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

AVERAGED = 3  # cells along a side over which z-scores are averaged


def enlarge(z: NDArray[np.floating], level: float, shape: tuple[int, int]) -> NDArray[np.float32]:
    """z-scores (rows, columns) as a map of that shape: 0 at least, above 1 what few normal places reach.

    Values are interpolated linearly between the middles of cells.
    """
    around = sliding_window_view(np.pad(np.asarray(z, np.float64), AVERAGED // 2), (AVERAGED, AVERAGED))
    average = around.mean((2, 3))
    large = Image.fromarray(average.astype(np.float32)).resize(shape[::-1], Image.Resampling.BILINEAR)
    return np.maximum(np.asarray(large) / np.float32(level), 0)
