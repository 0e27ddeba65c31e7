"""Our EfficientNets do what the originals do, with its own weights and its own padding."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.bench.networks.base import LOCAL, PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS, reduce_places
from discopatch.bench.networks.efficientnet import EfficientNetLite0, EfficientNetLite1
from discopatch.encoders import local_features
from tests.samples import reference_statistics

from .samples import by_full_svd, efficientnet_state, sample_pixels, small_efficientnet


class OriginalEfficientNet:
    """Nothing folded, TensorFlow's padding by its general rule."""

    def __init__(self, state: dict[str, Tensor], ends: tuple[int, ...]) -> None:
        """`ends`: how many blocks there are up to the last one of each kind."""
        self.state, self.blocks, self.strided = state, ends[-1], [ends[kind] for kind in (0, 1, 2, 4)]

    def convolution(self, x: Tensor, place: str, norm: str, *, stride: int = 1) -> Tensor:
        weight = self.state[f"{place}.weight"]
        groups = x.shape[1] // weight.shape[1]
        missing = [max((-(-side // stride) - 1) * stride + weight.shape[-1] - side, 0) for side in x.shape[:1:-1]]
        x = F.pad(x, [part for total in missing for part in (total // 2, total - total // 2)])
        mean, variance, scale, shift = (
            self.state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(F.conv2d(x, weight, None, stride, groups=groups), mean, variance, scale, shift, eps=1e-3)

    def block(self, x: Tensor, number: int) -> Tensor:
        place, y = f"_blocks.{number}.", x
        if number > 0:
            y = F.relu6(self.convolution(y, f"{place}_expand_conv", f"{place}_bn0"))
        stride = 2 if number in self.strided else 1
        y = F.relu6(self.convolution(y, f"{place}_depthwise_conv", f"{place}_bn1", stride=stride))
        y = self.convolution(y, f"{place}_project_conv", f"{place}_bn2")
        return x + y if x.shape == y.shape else y

    def top(self, x: Tensor) -> Tensor:
        return F.relu6(self.convolution(x, "_conv_head", "_bn1"))

    def maps(self, pixels: NDArray[np.uint8]) -> list[Tensor]:
        """The outputs of all blocks."""
        x = torch.from_numpy((pixels[:, 16:240, 16:240] - 127.0) / 128).float().permute(0, 3, 1, 2)
        x = F.relu6(self.convolution(x, "_conv_stem", "_bn0", stride=2))
        found = []
        for number in range(self.blocks):
            x = self.block(x, number)
            found.append(x)
        return found


@torch.inference_mode()
@pytest.mark.parametrize(
    ("kind", "ends"),
    [(EfficientNetLite0, (1, 3, 5, 8, 11, 15, 16)), (EfficientNetLite1, (1, 4, 7, 11, 15, 20, 21))],
)
def test_features_are_what_the_original_computes(kind: type[EfficientNetLite0], ends: tuple[int, ...]) -> None:
    state, network, pixels = efficientnet_state(kind.depths), small_efficientnet(kind), sample_pixels("cat", "coffee")
    original = OriginalEfficientNet(state, ends)
    found = network.extract(network.prepare(torch.from_numpy(pixels)), network.kinds)
    maps = original.maps(pixels)
    taken = maps[ends[0]], maps[ends[2] - 1], maps[ends[3]]
    last = original.top(maps[-1])
    assert last.mean((2, 3)).std(dim=0).max() > 0.01  # or equality would say little
    close = partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)
    close(found[PENULTIMATE], last.mean((2, 3)))
    close(found[RANK_LAST], by_full_svd(last).mean((2, 3)))
    x = by_full_svd(maps[ends[4] - 1])
    for number in range(ends[4], ends[6]):
        x = original.block(x, number)
    close(found[RANK_BEFORE], original.top(x).mean((2, 3)))
    close(found[STATISTICS].double(), torch.from_numpy(reference_statistics(taken)))
    assert found[LOCAL].shape == (2, 16, 16, 128)
    expected = reduce_places(local_features(taken))
    close(found[LOCAL].float(), expected.float(), atol=5e-3, rtol=5e-3)
