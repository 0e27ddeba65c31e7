"""The anomaly map: how unusual each pixel of an image is, from the z-scores of its places."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

AVERAGED = 3  # cells along a side over which z-scores are averaged


def enlarge(z: NDArray[np.floating], level: float, shape: tuple[int, int]) -> NDArray[np.float32]:
    """z-scores (rows, columns) as a map of that shape: 0 at least, above 1 what few normal places reach.

    Values are interpolated linearly between the middles of cells.
    """
    around = sliding_window_view(np.pad(np.asarray(z, np.float64), AVERAGED // 2), (AVERAGED, AVERAGED))
    average = around.mean((2, 3))
    rows, columns = (
        np.clip((np.arange(length) + 0.5) * cells / length - 0.5, 0, cells - 1)
        for length, cells in zip(shape, z.shape, strict=True)
    )
    above, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    below, right = np.minimum(above + 1, z.shape[0] - 1), np.minimum(left + 1, z.shape[1] - 1)
    down, across = (rows - above)[:, None], columns - left
    upper = average[above][:, left] * (1 - across) + average[above][:, right] * across
    lower = average[below][:, left] * (1 - across) + average[below][:, right] * across
    found: NDArray[np.float32] = np.maximum((upper * (1 - down) + lower * down) / level, 0).astype(np.float32)
    return found
