"""Networks in 8 bits: integer arithmetic is exact, and statistics of normal images keep their means."""

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from scipy.signal import correlate
from torch import Tensor, nn

from discopatch.encoders.discriminator import FeatureExtractor
from discopatch.export.graph import DetectorGraph, quiet_torch
from discopatch.export.graph_files import TRANSLATIONS
from discopatch.export.quantize import (
    IntegerConv2d,
    IntegerMBConv,
    mean_outputs,
    quantize_inverted,
    quantize_plain,
)
from discopatch.model import Architecture, Networks
from discopatch.model.layers import MBConv, SameConv2d
from tests.export.samples import camera_pixels, tiny_detector
from tests.samples import inverted_weights, new_detector, one_camera

KINDS = ["plain", "inverted"]


def activations() -> Tensor:
    """As a LeakyReLU leaves them."""
    values = torch.randn(2, 5, 12, 10, generator=torch.Generator().manual_seed(0))
    return torch.where(values > 0, values, 0.01 * values)


def some_conv() -> nn.Conv2d:
    torch.manual_seed(1)
    return nn.Conv2d(5, 7, 3, stride=2, padding=1)


def run_onnx(module: nn.Module, x: Tensor, folder: Path) -> tuple[Tensor, list[str]]:
    """The output of the exported module, and the kinds of its nodes."""
    with quiet_torch():
        program = torch.onnx.export(module, (x,), dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False)
    assert program is not None
    program.save(folder / "module.onnx")
    session = onnxruntime.InferenceSession(folder / "module.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(found), [node.op_type for node in program.model_proto.graph.node]


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
    with torch.no_grad():
        assert (in_integers(x) - conv(x.clamp(-0.05, 4.0))).abs().max() < 0.02 * conv(x).abs().max()


@torch.no_grad()
@pytest.mark.slow
def test_onnxruntime_gives_the_same(tmp_path: Path) -> None:
    conv = IntegerConv2d(some_conv(), lowest=-0.05, highest=3.0)
    found, kinds = run_onnx(conv, activations(), tmp_path)
    assert (kinds.count("ConvInteger"), kinds.count("Conv")) == (1, 0)
    torch.testing.assert_close(found, conv(activations()), rtol=1e-6, atol=1e-6)
    torch.manual_seed(2)
    exact = MBConv(6, 8, kernel=5, stride=2, expansion=6)
    means = {each: torch.ones(each.in_channels) for each in exact.children() if isinstance(each, SameConv2d)}
    block, x = IntegerMBConv(exact, (torch.full((6,), -2.0), torch.full((6,), 3.0)), means), torch.randn(2, 6, 12, 10)
    found, kinds = run_onnx(block, x, tmp_path)
    assert (kinds.count("QLinearConv"), kinds.count("ConvInteger"), kinds.count("Conv")) == (2, 1, 0)
    torch.testing.assert_close(found, block(x), rtol=1e-5, atol=1e-5)


# Whole networks


@cache
def graphs(kind: str) -> tuple[DetectorGraph, DetectorGraph]:
    """A network as it was trained, and in 8 bits."""
    detector = tiny_detector()
    if kind == "inverted":
        detector = new_detector(inverted_weights(), head="statistics", reason_images=0).fit(one_camera(40), workers=1)
    exact, rounded = DetectorGraph(detector), DetectorGraph(detector)
    quantize = quantize_plain if kind == "plain" else quantize_inverted
    quantize(rounded.image, torch.from_numpy(camera_pixels(8)))
    return exact, rounded


@pytest.mark.parametrize("kind", KINDS)
def test_all_convolutions_but_the_first_are_in_8_bits(kind: str) -> None:
    exact, rounded = graphs(kind)
    network = rounded.image.discriminator
    kept = [each for each in network.modules() if isinstance(each, nn.Conv2d)]
    assert len(kept) == (2 if kind == "inverted" else 1), "the first; of an inverted network also the last"
    assert any(isinstance(each, IntegerConv2d) for each in network.modules())
    assert not any(isinstance(each, IntegerConv2d) for each in exact.modules())


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "tolerance"), [(1, 1e-4), (2, 0.2)])
def test_statistics_keep_their_means(kind: str, seed: int, tolerance: float) -> None:
    """On the images that set the ranges, and nearly on others."""
    exact, rounded = graphs(kind)
    pixels = torch.from_numpy(camera_pixels(8, seed=seed))
    found = torch.cat([rounded.image(image)["statistics"] for image in pixels.split(1)]).mean(0)
    torch.testing.assert_close(found, mean_outputs(exact.image, pixels)[1], rtol=0, atol=tolerance)


@torch.no_grad()
def test_a_channel_that_is_always_zero_is_no_error() -> None:
    graph, pixels = DetectorGraph(tiny_detector()), torch.from_numpy(camera_pixels(2))
    parameters = dict(graph.image.discriminator.named_parameters())
    parameters["blocks.0.norm.weight"][2] = 0
    parameters["blocks.0.norm.bias"][2] = 0
    parameters["blocks.1.conv.weight"][:, 3] = 0
    parameters["blocks.1.conv.weight"][5] = 0
    quantize_plain(graph.image, pixels)
    assert all(torch.isfinite(values).all() for values in graph.image(pixels).values())


@torch.no_grad()
def test_places_stay_on_their_scale() -> None:
    """The maps of which places are taken are divided by the factors of `balance`, and multiplied again."""
    network = Networks.from_seed(Architecture(patch_size=32, hidden=(8, 16, 24), latent=8), 0).discriminator.eval()
    extractor = FeatureExtractor(network, pixel_range="symmetric", kinds=("pooled", "places"))
    pixels = torch.from_numpy(camera_pixels(8))
    expected = extractor(pixels)
    quantize_plain(extractor, pixels)
    found = extractor(pixels)
    for kind in ("pooled", "places"):
        before, after = (each[kind].double() for each in (expected, found))
        assert ((after - before).square().mean() / before.var()).sqrt() < 0.1
