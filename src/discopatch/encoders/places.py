"""Places of an image: features of a network's maps in every cell of a grid over it."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

N_LOCAL = 3  # maps of local features: the last of those whose statistics are taken
AVERAGED = 3  # cells along a side over which a map is averaged

Compare = Callable[[Tensor], Tensor]  # places (B, rows, columns, dimensions) -> one value of each, (B, rows, columns)


def local_features(maps: Sequence[Tensor]) -> Tensor:
    """Maps (B, C, H, W) of several layers to places (B, rows, columns, dimensions) in float32.

    The grid is that of the finest map. Each map is averaged over neighbouring cells; coarser ones are interpolated.
    """
    rows, columns = max((one.shape[2:] for one in maps), key=lambda shape: shape[0] * shape[1])
    found = []
    for one in maps:
        average = F.avg_pool2d(one.float(), AVERAGED, 1, AVERAGED // 2, count_include_pad=False)
        if one.shape[2:] != (rows, columns):
            average = F.interpolate(average, (rows, columns), mode="bilinear", align_corners=False)
        found.append(average)
    return torch.cat(found, 1).permute(0, 2, 3, 1)
