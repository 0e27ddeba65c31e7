"""Multiplications are counted as the layers do them."""

import pytest
import torch
from torch import nn

from discopatch.benchmark.work import multiplications
from discopatch.model import PRESETS, Discriminator


@pytest.mark.parametrize("preset", ["paper", "small", "tiny"])
@pytest.mark.parametrize("patches", [None, 3])
def test_the_count_is_that_of_every_output_of_every_convolution(preset: str, patches: int | None) -> None:
    architecture = PRESETS[preset].architecture
    counted = 0

    def count(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal counted
        assert isinstance(layer, nn.Conv2d)
        counted += output.numel() * layer.in_channels * 9

    with torch.device("meta"):
        discriminator = Discriminator(architecture)
        for layer in discriminator.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(count)
        side = 256 if patches is None else architecture.patch_size
        discriminator.features(torch.empty(patches or 1, 3, side, side), 1)
    assert multiplications(architecture, size=256, patches=patches) == counted


def test_the_papers_64_patches_are_14_7_billion_and_one_dense_pass_a_quarter_of_it() -> None:
    paper = PRESETS["paper"].architecture
    assert multiplications(paper, size=256, patches=64) == 14_722_007_040 == 4 * multiplications(paper, size=256)
