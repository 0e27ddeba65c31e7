"""The kernels of inverted residual networks compute their plain stages: on a GPU, or slowly in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/model/test_inverted_kernels.py
"""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from discopatch.model import Architecture
from discopatch.model.fast.inverted_blocks import FastMBConv, Pointwise, Stem
from discopatch.model.fast.inverted_network import FastInverted
from discopatch.model.fast.network import PatchLayout
from discopatch.model.fast.scoring import check_agreement
from discopatch.model.inverted import MBConv, SameConv2d
from tests.model.plain_stages import PlainStages
from tests.model.test_fast_pass import INVERTED, corners_of, network_of, random_walks
from tests.samples import TINY_INVERTED

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from discopatch.model.fast.launch import Kernels  # noqa: E402  # Triton decides at import whether it interprets

HALF = torch.float16


def features(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(HALF).to(DEVICE)


def assert_nearly(found: Tensor, expected: Tensor) -> None:
    """To some of the last digits of half precision: of sums and of what they are sums of."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    scale = float(expected.float().abs().max())
    torch.testing.assert_close(found.float(), expected.float(), rtol=2**-9, atol=scale * 2**-9)


@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("channels", "size"), [(32, 64), (12, 50), (20, 45)])
@torch.inference_mode()
def test_the_stem_kernel_computes_its_plain_stage(channels: int, size: int, patches: int | None) -> None:
    torch.manual_seed(0)
    layer = Stem.of(SameConv2d(3, channels, 3, 2).to(DEVICE))
    images = torch.from_numpy(random_walks(size, 2)).to(DEVICE)
    corners = corners_of(patches, size=size, patch=32)
    layout = PatchLayout.at(corners, patch=32, size=size, device=DEVICE)
    found = Kernels().stem(images, layout, layer, HALF)
    expected = PlainStages().stem(images, layout, layer, HALF)
    torch.testing.assert_close(found, expected, rtol=2**-10, atol=1e-5)  # the last digit


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 96), (24, 144), (7, 42), (80, 480), (192, 200)])
@torch.inference_mode()
def test_the_expanding_kernel_computes_its_plain_stage(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer, x = Pointwise.of(SameConv2d(inputs, outputs, 1).to(DEVICE), HALF), features(3, 9, 11, inputs)
    assert_nearly(Kernels().expand(x, layer), PlainStages().expand(x, layer))


@pytest.mark.parametrize("sides", [(8, 8), (6, 10), (7, 5)])
@pytest.mark.parametrize(
    ("kernel", "stride", "inputs", "outputs"),
    [(3, 1, 16, 16), (3, 2, 16, 24), (5, 1, 24, 24), (5, 2, 24, 40), (3, 1, 7, 5), (5, 1, 20, 80)],
)
@pytest.mark.parametrize("expansion", [1, 6])
@torch.inference_mode()
def test_the_filtering_kernels_compute_their_plain_stage(
    kernel: int, stride: int, inputs: int, outputs: int, expansion: int, sides: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    made = MBConv(inputs, outputs, kernel=kernel, stride=stride, expansion=expansion).to(DEVICE)
    block = FastMBConv.of(made, HALF)
    x = features(3, *sides, inputs if block.at_once is not None else block.inner)
    other = features(*block.out_shape(x)) if block.residual else None
    assert_nearly(Kernels().filter_project(x, block, other), PlainStages().filter_project(x, block, other))


@pytest.mark.slow
@pytest.mark.parametrize("patches", [None, 2])
@pytest.mark.parametrize(
    ("architecture", "size"), [*INVERTED, (replace(TINY_INVERTED, hidden=(8, 12, 20, 21, 25)), 96)]
)
def test_the_kernels_together_agree_with_the_plain_pass(
    architecture: Architecture, size: int, patches: int | None
) -> None:
    discriminator = network_of(architecture).to(DEVICE)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    layout = PatchLayout.at(corners, patch=architecture.patch_size, size=size, device=DEVICE)
    check_agreement(discriminator, FastInverted.of(discriminator, HALF), layout, Kernels())
