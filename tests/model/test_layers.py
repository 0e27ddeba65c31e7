"""PatchNorm2d is torch's BatchNorm2d in training mode, one image's patches at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model import PatchNorm2d
from discopatch.model.layers import standardise
from tests.model.samples import normal


def a_layer(channels: int, *, seed: int = 1) -> PatchNorm2d:
    """A layer whose scale and shift are not 1 and 0."""
    layer = PatchNorm2d(channels)
    with torch.no_grad():
        layer.weight.copy_(normal(channels, seed=seed) + 1)
        layer.bias.copy_(normal(channels, seed=seed + 1))
    return layer


def batchnorm_of_each_group(layer: PatchNorm2d, x: Tensor, group: int) -> Tensor:
    """Torch's own BatchNorm, on each group alone."""
    groups = [
        F.batch_norm(part, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
        for part in x.split(group)
    ]
    return torch.cat(groups)


def test_a_large_mean_leaves_the_variance_its_digits() -> None:
    mean = 1000.0
    layer, x = a_layer(5), normal(12, 5, 6, 4) + mean
    exact = F.batch_norm(x.double(), None, None, layer.weight.double(), layer.bias.double(), training=True)
    one_rounding_of_the_mean = mean * torch.finfo(torch.float32).eps * 4  # weights reach 4
    torch.testing.assert_close(layer(x).double(), exact, rtol=0, atol=one_rounding_of_the_mean + 1e-6)


@pytest.mark.parametrize("group", [1, 3, 4, 12])
def test_each_group_is_batchnorm_of_that_group_alone(group: int) -> None:
    layer, x = a_layer(5), normal(12, 5, 6, 4).requires_grad_()
    ours = layer(x, group)
    theirs = batchnorm_of_each_group(layer, x, group)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    inputs, upstream = (x, layer.weight, layer.bias), normal(12, 5, 6, 4, seed=7)
    for our, their in zip(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_keeps_statistics_in_float32_and_the_type_of_the_input(dtype: torch.dtype) -> None:
    layer, x = a_layer(5), (normal(12, 5, 6, 4) + 20).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, mean, variance = standardise(x, 4)
        result = layer(x, 4)
    assert mean.dtype == variance.dtype == torch.float32
    assert result.dtype == dtype
    exact = batchnorm_of_each_group(layer.double(), x.double(), 4)
    torch.testing.assert_close(
        mean.double().flatten(1), x.double().view(3, 4, 5, 24).mean((1, 3)), rtol=1e-6, atol=1e-6
    )  # bfloat16 would be off by 0.1
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)
