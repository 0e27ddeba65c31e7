"""In 8 bits the network is nearly the same, and its statistics of normal images are, on average, quite the same."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from discopatch.export.onnx import TRANSLATIONS
from scipy.signal import correlate
from torch import Tensor, nn

from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.export.graph import DetectorGraph, quiet_torch
from discopatch.export.quantize import (
    IntegerConv2d,
    balance,
    blocks_of,
    channel_range,
    mean_statistics,
    quantize_plain,
)
from discopatch.model import Architecture, Networks
from tests.export.samples import camera_pixels, tiny_detector


def activations(seed: int = 0) -> Tensor:
    """As a LeakyReLU leaves them: mostly far above zero, or little below."""
    values = torch.randn(2, 5, 12, 10, generator=torch.Generator().manual_seed(seed))
    return torch.where(values > 0, values, 0.01 * values)


def some_conv() -> nn.Conv2d:
    torch.manual_seed(1)
    return nn.Conv2d(5, 7, 3, stride=2, padding=1)


@pytest.fixture(scope="module")
def quantized() -> DetectorGraph:
    graph = DetectorGraph(tiny_detector())
    quantize_plain(graph.image, graph.regions, torch.from_numpy(camera_pixels(8)))
    return graph


def test_the_sums_are_those_of_integers() -> None:
    conv, x = some_conv(), activations()
    in_integers = IntegerConv2d(conv, lowest=-0.05, highest=4.0)
    zero, step = int(in_integers.zero), float(in_integers.step)
    steps = np.clip(np.rint(x.numpy() / np.float32(step)) + zero, 0, 255).astype(np.int64) - zero
    padded = np.pad(steps, [(0, 0), (0, 0), (1, 1), (1, 1)])
    kernel = in_integers.kernel.numpy().astype(np.int64) - 128
    sums = np.stack([[correlate(image, one, "valid")[0, ::2, ::2] for one in kernel] for image in padded])
    expected = sums * in_integers.scale.numpy() + in_integers.bias.numpy()
    np.testing.assert_allclose(in_integers(x).numpy(), expected, rtol=1e-6, atol=1e-6)
    assert np.abs(kernel).max() == 127


def test_8_bits_are_close_to_the_convolution_and_clip_what_is_beyond() -> None:
    conv, x = some_conv(), activations()
    with torch.no_grad():
        exact = conv(x.clamp(-0.05, 2.0))
        found = IntegerConv2d(conv, lowest=-0.05, highest=2.0)(x)
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()


def test_onnxruntime_gives_the_same_sums(tmp_path: Path) -> None:
    in_integers, x = IntegerConv2d(some_conv(), lowest=-0.05, highest=3.0), activations()
    with quiet_torch():
        program = torch.onnx.export(
            in_integers, (x,), dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False
        )
    assert program is not None
    program.save(tmp_path / "conv.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "conv.onnx")
    kinds = {node.op_type for node in program.model_proto.graph.node}
    assert "ConvInteger" in kinds
    assert "Conv" not in kinds
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, in_integers(x).numpy(), rtol=1e-6, atol=1e-6)


def test_all_convolutions_but_the_first_are_in_8_bits(quantized: DetectorGraph) -> None:
    assert [type(block.conv) for block in blocks_of(quantized.image)] == [nn.Conv2d, IntegerConv2d]
    assert quantized.regions.discriminator is quantized.image.discriminator


def test_the_detector_stays_as_it_is(quantized: DetectorGraph) -> None:
    other = DetectorGraph(tiny_detector())
    assert [type(block.conv) for block in blocks_of(other.image)] == [nn.Conv2d, nn.Conv2d]
    one_bias, other_bias = (each.image.discriminator.get_parameter("head.bias") for each in (other, quantized))
    assert not torch.equal(one_bias, other_bias), "or the comparison would prove nothing"
    for name, value in tiny_detector().weights_.discriminator.state_dict().items():
        assert torch.equal(other.image.discriminator.state_dict()[name], value)


def test_balancing_changes_nothing_but_the_ranges() -> None:
    plain, balanced = DetectorGraph(tiny_detector()).image, DetectorGraph(tiny_detector()).image
    pixels = torch.from_numpy(camera_pixels(4))
    first, second = blocks_of(balanced)
    with torch.no_grad():
        factor = balance(first, second, torch.rand(8) + 0.1)
        one, other = plain.output(pixels), balanced.output(pixels)
    assert factor.min() < factor.max()
    torch.testing.assert_close(other.logits, one.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(other.statistics, one.statistics, rtol=0, atol=1e-4)
    torch.testing.assert_close(other.features[0], one.features[0] / factor[:, None, None], rtol=0, atol=1e-4)


def test_the_range_of_a_channel_leaves_out_a_few() -> None:
    x = torch.zeros(1, 2, 100, 200)
    x[0, 0].view(-1)[:20_000] = torch.linspace(-1, 1, 20_000)
    x[0, 1, 0, 0] = 1e6
    lowest, highest = channel_range(x)
    assert lowest.tolist() == [-1, 0]
    assert highest[0] == pytest.approx(1, abs=3e-4)
    assert highest[1] < 1e-3, "one in twenty thousand does not decide the steps of all"


@pytest.mark.parametrize(("seed", "tolerance"), [(1, 1e-4), (2, 0.05)])
def test_mean_statistics_stay(quantized: DetectorGraph, seed: int, tolerance: float) -> None:
    """On the images that it was tuned with, and nearly so on others."""
    pixels = torch.from_numpy(camera_pixels(8, seed=seed))
    with torch.no_grad():
        expected = mean_statistics(DetectorGraph(tiny_detector()).image, pixels)
        found = mean_statistics(quantized.image, pixels)
    torch.testing.assert_close(found.logit, expected.logit, rtol=0, atol=tolerance)
    for one, other in zip(found.means + found.log_variances, expected.means + expected.log_variances, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def test_a_channel_that_is_always_zero_is_no_error() -> None:
    graph, pixels = DetectorGraph(tiny_detector()), torch.from_numpy(camera_pixels(2))
    with torch.no_grad():
        parameters = dict(graph.image.discriminator.named_parameters())
        parameters["blocks.0.norm.weight"][2] = 0
        parameters["blocks.0.norm.bias"][2] = 0
        parameters["blocks.1.conv.weight"][:, 3] = 0
        parameters["blocks.1.conv.weight"][5] = 0
        quantize_plain(graph.image, graph.regions, pixels)
        logits, statistics = graph.image(pixels).values()
    assert torch.isfinite(logits).all()
    assert torch.isfinite(statistics).all()


def test_places_stay_on_their_scale() -> None:
    """Activations are divided for the sake of 8 bits, and the maps that places are taken from with them."""
    network = Networks.from_seed(Architecture(patch_size=32, hidden=(8, 16, 24), latent=8), 0).discriminator.eval()
    extractor, regions = (
        FeatureExtractor(network, pixel_range="symmetric", kinds=("pooled", "places")) for _ in range(2)
    )
    pixels = torch.from_numpy(camera_pixels(8))
    with torch.no_grad():
        expected = extractor(pixels)
        quantize_plain(extractor, regions, pixels)
        found = extractor(pixels)
    assert any(not torch.allclose(scale, torch.ones(()), rtol=0.1) for scale in extractor.map_scales), "they do matter"
    for kind in ("pooled", "places"):
        before, after = (each[kind].double() for each in (expected, found))
        assert ((after - before).square().mean() / before.var()).sqrt() < 0.1
