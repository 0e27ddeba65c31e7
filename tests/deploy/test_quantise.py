"""In 8 bits the network is nearly the same, and what it shows of usual pictures is, on average, quite the same."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from scipy.signal import correlate
from torch import Tensor, nn

from discopatch.deploy.graph import look_at_image, look_at_regions
from discopatch.deploy.integers import OPERATOR, IntegerConv
from discopatch.deploy.look import Look
from discopatch.deploy.onnxfile import integer_convolution
from discopatch.deploy.quantise import balance, blocks_of, extent, quantised, usual
from discopatch.deploy.quiet import quiet
from discopatch.model import Discriminator
from tests.deploy.samples import SIZE, pixels_of, tiny_detector


def activations(seed: int = 0) -> Tensor:
    """As a LeakyReLU leaves them: mostly far above zero, or little below."""
    values = torch.randn(2, 5, 12, 10, generator=torch.Generator().manual_seed(seed))
    return torch.where(values > 0, values, 0.01 * values)


def some_conv() -> nn.Conv2d:
    torch.manual_seed(1)
    return nn.Conv2d(5, 7, 3, stride=2, padding=1)


def both(network: Discriminator) -> tuple[Look, Look]:
    return look_at_image(tiny_detector(), network), look_at_regions(network, SIZE)


@pytest.fixture(scope="module")
def networks() -> tuple[Discriminator, Discriminator]:
    network = deepcopy(tiny_detector().loaded_weights.discriminator)
    return network, quantised(network, both, torch.from_numpy(pixels_of(8)))


def test_the_sums_are_those_of_integers() -> None:
    conv, x = some_conv(), activations()
    in_integers = IntegerConv(conv, lowest=-0.05, highest=4.0)
    zero, step = int(in_integers.zero), float(in_integers.step)
    steps = np.clip(np.rint(x.numpy() / np.float32(step)) + zero, 0, 255).astype(np.int64) - zero
    padded = np.pad(steps, [(0, 0), (0, 0), (1, 1), (1, 1)])
    kernel = in_integers.kernel.numpy().astype(np.int64)
    sums = np.stack([[correlate(image, one, "valid")[0, ::2, ::2] for one in kernel] for image in padded])
    expected = sums * in_integers.scale.numpy() + in_integers.bias.numpy()
    np.testing.assert_allclose(in_integers(x).numpy(), expected, rtol=1e-6, atol=1e-6)
    assert np.abs(kernel).max() == 127


def test_8_bits_are_close_to_the_convolution_and_clip_what_is_beyond() -> None:
    conv, x = some_conv(), activations()
    with torch.no_grad():
        exact = conv(x.clamp(-0.05, 2.0))
        found = IntegerConv(conv, lowest=-0.05, highest=2.0)(x)
    assert (found - exact).abs().max() < 0.02 * exact.abs().max()


def test_onnxruntime_gives_the_same_sums(tmp_path: Path) -> None:
    in_integers, x = IntegerConv(some_conv(), lowest=-0.05, highest=3.0), activations()
    with quiet():
        program = torch.onnx.export(
            in_integers,
            (x,),
            dynamo=True,
            custom_translation_table={OPERATOR: integer_convolution},
            verbose=False,
        )
    assert program is not None
    program.save(tmp_path / "conv.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "conv.onnx")
    kinds = {node.op_type for node in program.model_proto.graph.node}
    assert "ConvInteger" in kinds
    assert "Conv" not in kinds
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, in_integers(x).numpy(), rtol=1e-6, atol=1e-6)


def test_all_convolutions_but_the_first_are_in_8_bits(networks: tuple[Discriminator, Discriminator]) -> None:
    before, after = networks
    assert [type(block.conv) for block in blocks_of(before)] == [nn.Conv2d] * 2
    assert [type(block.conv) for block in blocks_of(after)] == [nn.Conv2d, IntegerConv]


def test_the_network_itself_stays_as_it_is(networks: tuple[Discriminator, Discriminator]) -> None:
    before, _ = networks
    for name, value in tiny_detector().loaded_weights.discriminator.state_dict().items():
        assert torch.equal(before.state_dict()[name], value)


def test_balancing_changes_nothing_but_the_ranges() -> None:
    network = deepcopy(tiny_detector().loaded_weights.discriminator)
    balanced, pictures = deepcopy(network), torch.from_numpy(pixels_of(4))
    first, second = blocks_of(balanced)
    with torch.no_grad():
        share = balance(first, second, torch.rand(8) + 0.1)
        one, other = both(network)[0].inspect(pictures), both(balanced)[0].inspect(pictures)
    assert share.min() < share.max()
    torch.testing.assert_close(other.logits, one.logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(other.statistics, one.statistics, rtol=0, atol=1e-4)
    torch.testing.assert_close(other.features[0], one.features[0] / share[:, None, None], rtol=0, atol=1e-4)


def test_the_extent_of_a_channel_leaves_out_a_few() -> None:
    x = torch.zeros(1, 2, 100, 200)
    x[0, 0].view(-1)[:20_000] = torch.linspace(-1, 1, 20_000)
    x[0, 1, 0, 0] = 1e6
    lowest, highest = extent(x)
    assert lowest.tolist() == [-1, 0]
    assert highest[0] == pytest.approx(1, abs=3e-4)
    assert highest[1] < 1e-3, "one in twenty thousand does not decide the steps of all"


def test_usual_pictures_show_the_same_on_average(networks: tuple[Discriminator, Discriminator]) -> None:
    """Of the pictures that it was made with, and nearly so of others."""
    before, after = networks
    for pictures, tolerance in ((pixels_of(8), 1e-4), (pixels_of(8, seed=2), 0.05)):
        with torch.no_grad():
            wanted, found = (usual(both(each)[0], torch.from_numpy(pictures)) for each in (before, after))
        torch.testing.assert_close(found.logit, wanted.logit, rtol=0, atol=tolerance)
        for one, other in zip(found.means + found.log_variances, wanted.means + wanted.log_variances, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def test_a_channel_that_is_always_zero_is_no_error() -> None:
    network = deepcopy(tiny_detector().loaded_weights.discriminator)
    with torch.no_grad():
        parameters = dict(network.named_parameters())
        parameters["blocks.0.norm.weight"][2] = 0
        parameters["blocks.0.norm.bias"][2] = 0
        parameters["blocks.1.conv.weight"][:, 3] = 0
        parameters["blocks.1.conv.weight"][5] = 0
        after = quantised(network, both, torch.from_numpy(pixels_of(2)))
        logits, statistics = both(after)[0](torch.from_numpy(pixels_of(2)))
    assert torch.isfinite(logits).all()
    assert torch.isfinite(statistics).all()
