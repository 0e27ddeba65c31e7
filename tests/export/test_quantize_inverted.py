"""An inverted residual network in 8 bits is nearly the same, and on average quite the same."""

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from discopatch.export.onnx import TRANSLATIONS
from discopatch.export.quantize_residual import mean_outputs
from scipy.signal import correlate
from torch import Tensor, nn

from discopatch import Detector
from discopatch.export.graph import DetectorGraph, quiet_torch
from discopatch.export.metadata import SCORE
from discopatch.export.quantize import IntegerConv2d, round_kernel
from discopatch.export.quantize_inverted import IntegerMBConv, StepsConv2d, keep_mean, quantize_inverted, round_layer
from discopatch.model.layers import MBConv, SameConv2d
from tests.export.samples import camera_pixels
from tests.samples import inverted_weights, new_detector, one_camera


@cache
def fitted() -> Detector:
    return new_detector(inverted_weights()).fit(one_camera(60), workers=1)


def inverted_graph() -> DetectorGraph:
    return DetectorGraph(fitted())


def pixels_of(seed: int) -> Tensor:
    return torch.from_numpy(camera_pixels(8, seed=seed))


@pytest.fixture(scope="module")
def quantized() -> DetectorGraph:
    graph = inverted_graph()
    quantize_inverted(graph.image, graph.regions, pixels_of(1))
    return graph


def some_conv(kernel: int, stride: int, *, groups: int) -> SameConv2d:
    torch.manual_seed(1)
    return SameConv2d(6, 6, kernel, stride, groups=groups)


def some_steps() -> Tensor:
    return torch.randint(256, (2, 6, 12, 10), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_all_convolutions_but_the_stem_are_in_8_bits(quantized: DetectorGraph) -> None:
    network = quantized.image.discriminator
    assert [name for name, each in network.named_modules() if isinstance(each, nn.Conv2d)] == ["blocks.0.stem", "head"]
    blocks = [each for each in network.modules() if isinstance(each, IntegerMBConv)]
    assert len(blocks) == sum(isinstance(each, MBConv) for each in inverted_graph().image.discriminator.modules())
    assert quantized.regions.discriminator is network


@pytest.mark.parametrize(("kernel", "stride", "groups"), [(1, 1, 1), (3, 1, 6), (3, 2, 6), (5, 2, 6), (5, 1, 6)])
def test_steps_are_those_of_integers(kernel: int, stride: int, groups: int) -> None:
    zero = 37
    conv = StepsConv2d(
        some_conv(kernel, stride, groups=groups), step=0.01, zero=torch.tensor(zero, dtype=torch.uint8), limit=64
    )
    steps, found = some_steps(), conv(some_steps())
    assert found.dtype == torch.uint8
    missing = kernel - stride
    sides = (missing // 2, missing - missing // 2)
    given = np.pad(steps.numpy().astype(np.int64) - zero, [(0, 0), (0, 0), sides, sides])
    weights = conv.kernel.numpy().astype(np.int64)
    assert np.abs(weights).max() == 64
    for image, own in zip(given, found.numpy(), strict=True):
        for channel, one in enumerate(weights):
            read = image if groups == 1 else image[channel : channel + 1]
            sums = correlate(read, one, "valid")[0, ::stride, ::stride] + int(conv.bias[channel])
            expected = np.clip(np.rint(sums * conv.scale[channel].numpy()), 0, 255)
            np.testing.assert_array_equal(own[channel], expected)


@torch.no_grad()
def test_8_bits_are_close_to_the_convolution_and_its_relu6() -> None:
    conv, steps = some_conv(5, 2, groups=6), some_steps()
    assert conv.bias is not None
    conv.weight.mul_(5)
    conv.bias.add_(3)
    zero = torch.tensor(128, dtype=torch.uint8)
    expected = conv((steps.float() - 128) * 0.02).clamp(0, 6)
    found = StepsConv2d(conv, step=0.02, zero=zero, limit=127)(steps).float() * (6 / 255)
    assert (found - expected).abs().max() < 0.1
    assert ((expected > 0) & (expected < 6)).float().mean() > 0.3, "or the comparison would prove little"


@torch.no_grad()
@pytest.mark.parametrize("groups", [1, 6])
def test_a_rounded_kernel_gives_the_same_on_average(groups: int) -> None:
    conv, x = some_conv(3, 1, groups=groups), torch.rand(2, 6, 40, 40, generator=torch.Generator().manual_seed(0))
    expected = conv(x).mean((0, 2, 3))
    keep_mean(conv, x.mean((0, 2, 3)), 5)
    kernel, scale = round_layer(conv, 5)
    shifts = []
    for bias in (conv.bias, some_conv(3, 1, groups=groups).bias):
        found = nn.functional.conv2d(x, kernel * scale, bias, padding=1, groups=groups).mean((0, 2, 3))
        shifts.append(float((found - expected).abs().mean()))
    assert shifts[0] < 0.1 * shifts[1]


@torch.no_grad()
def test_a_filter_is_rounded_as_a_whole() -> None:
    """On a smooth input a filter errs less than if each of its numbers had been rounded by itself."""
    torch.manual_seed(3)
    conv, x = SameConv2d(64, 64, 5, groups=64), torch.from_numpy(camera_pixels(2))[..., 1].float()
    x = x[:, None].expand(-1, 64, -1, -1) / 255
    errors = []
    for kernel, scale in (round_layer(conv, 15), round_kernel(conv.weight, 15)):
        assert kernel.abs().max() == 15
        assert torch.equal(kernel, kernel.round())
        found = nn.functional.conv2d(x, kernel * scale, conv.bias, padding=2, groups=64)
        errors.append(float((found - conv(x)).square().mean().sqrt()))
    assert errors[0] < 0.5 * errors[1]


@torch.no_grad()
def test_onnxruntime_gives_the_same_block(tmp_path: Path) -> None:
    torch.manual_seed(2)
    exact = MBConv(6, 8, kernel=5, stride=2, expansion=6)
    means = {each: torch.ones(each.in_channels) for each in exact.children() if isinstance(each, SameConv2d)}
    block = IntegerMBConv(exact, (torch.full((6,), -2.0), torch.full((6,), 3.0)), means)
    x = torch.randn(2, 6, 12, 10)
    with quiet_torch():
        program = torch.onnx.export(block, (x,), dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False)
    assert program is not None
    program.save(tmp_path / "block.onnx")
    kinds = [node.op_type for node in program.model_proto.graph.node]
    assert (kinds.count("QLinearConv"), kinds.count("ConvInteger")) == (2, 1)
    assert not {"Conv", "Pad"} & set(kinds)
    session = onnxruntime.InferenceSession(tmp_path / "block.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, block(x).numpy(), rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("part", "seed", "tolerance"), [("image", 1, 1e-4), ("regions", 1, 1e-4), ("image", 2, 0.2), ("regions", 2, 0.2)]
)
def test_mean_statistics_stay(quantized: DetectorGraph, part: str, seed: int, tolerance: float) -> None:
    """On the images that it was tuned with, and nearly so on others: the last maps have four cells."""
    exact, rounded, pixels = getattr(inverted_graph(), part), getattr(quantized, part), pixels_of(seed)
    found = torch.cat([rounded(image)["statistics"] for image in pixels.split(1)]).mean(0)
    torch.testing.assert_close(found, mean_outputs(exact, pixels)[1], rtol=0, atol=tolerance)


@torch.no_grad()
def test_scores_of_single_images_are_close(quantized: DetectorGraph) -> None:
    exact, pixels = inverted_graph(), pixels_of(3)
    one, other = exact(pixels)[SCORE], quantized(pixels)[SCORE]
    assert (one - other).abs().max() < 0.5 * exact.calibration_scores.std()
    assert not torch.equal(one, other)


def test_the_kernels_of_what_is_not_rounded_again_have_all_8_bits(quantized: DetectorGraph) -> None:
    layers = [each for each in quantized.image.discriminator.modules() if isinstance(each, IntegerConv2d)]
    assert {int((each.kernel.int() - 128).abs().max()) for each in layers} == {127}
