"""Multiplications are counted as the layers do them, and latencies are measured."""

import time

import pytest
import torch
from torch import nn

from discopatch.bench.cost import median_milliseconds, multiplications, peak_mib
from discopatch.model import Architecture, Discriminator
from discopatch.training import get_preset

PAPER = get_preset("paper").architecture
TINY = Architecture(patch_size=32, hidden=(8, 16), latent=8)


@pytest.mark.parametrize("architecture", [PAPER, TINY])
@pytest.mark.parametrize("patches", [None, 3])
def test_the_count_is_that_of_every_output_of_every_convolution(
    architecture: Architecture, patches: int | None
) -> None:
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
        discriminator(torch.empty(patches or 1, 3, side, side), 1)
    assert multiplications(architecture, size=256, patches=patches) == counted


def test_the_papers_64_patches_are_14_7_billion_and_one_dense_pass_a_quarter_of_it() -> None:
    assert multiplications(PAPER, size=256, patches=64) == 14_722_007_040 == 4 * multiplications(PAPER, size=256)


def test_the_median_duration_is_in_milliseconds() -> None:
    assert 5 <= median_milliseconds(lambda: time.sleep(0.005), seconds=0.02) < 500


def test_a_process_that_imported_torch_has_held_some_memory() -> None:
    assert 20 < peak_mib() < 1e6
