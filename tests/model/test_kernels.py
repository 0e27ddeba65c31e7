"""The fast pass computes what the plain one does: by its plain stages on a CPU, by its kernels on a GPU."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from discopatch.encoders import Features, measure_tones
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Discriminator, Networks, extract_patches, kernels, scoring_corners
from discopatch.model.kernels import FastMBConv, FastPass
from discopatch.model.layers import MBConv
from tests.model.plain_stages import PlainStages
from tests.samples import TINY_EMBEDDED, TINY_INVERTED

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
on_a_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
with_kernels = pytest.mark.skipif(
    not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a GPU, or Triton and TRITON_INTERPRET=1"
)

NETWORKS = [(TINY_INVERTED, 64), (replace(TINY_EMBEDDED, patch_size=64, hidden=(6, 10, 12, 21, 25)), 100)]


def network_of(architecture: Architecture) -> Discriminator:
    """As if trained a little: no scale is 1, and no shift 0."""
    network = Networks.from_seed(architecture, 0).discriminator.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network


def corners_of(patches: int | None, *, size: int, patch: int) -> Tensor | None:
    return None if patches is None else scoring_corners("random", patches, size=size, patch_size=patch, seed=2)


def random_walks(size: int, count: int = 6) -> Pixels:
    """Smooth as photos are, some bright with little contrast."""
    walks = np.random.default_rng(0).normal(size=(count, size, size, 3)).cumsum(1).cumsum(2)
    squares: Pixels = np.clip(128 + 50 * walks / walks.std((1, 2, 3), keepdims=True), 0, 255).astype(np.uint8)
    squares[::3] = 200 + squares[::3] // 16
    return squares


def cut_out(image: Tensor, corners: Tensor | None, patch: int) -> Tensor:
    """The patches of one image (1, H, W, 3), or all of it, (patches, 3, S, S)."""
    return image.permute(0, 3, 1, 2) if corners is None else extract_patches(image, corners, patch)


def plain_features(network: Discriminator, corners: Tensor | None, pixels: Pixels) -> Features:
    """By the discriminator itself, in float64, one image at a time."""
    exact = Discriminator(network.architecture).double().eval()
    exact.load_state_dict(network.state_dict())
    found = []
    for image in torch.from_numpy(pixels).split(1):
        patches = to_unit(cut_out(image, corners, network.architecture.patch_size)).double()
        with torch.no_grad():
            output = exact(patches, statistics=True)
        found.append(Features(output.logits.reshape(1, -1).numpy(), output.statistics.numpy()))
    return Features.concatenate(found)


def fast_pass(network: Discriminator, corners: Tensor | None = None, *, size: int = 64, **options: Any) -> FastPass:
    return FastPass(network, corners, size=size, **{"stages": PlainStages(), **options})


def streamed(fast: FastPass, *batches: Pixels) -> list[Features]:
    return [Features(**arrays) for arrays in fast.stream(batches)]


def relative_difference(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), NETWORKS)
def test_it_gives_what_the_discriminator_gives(architecture: Architecture, size: int, patches: int | None) -> None:
    network, pixels = network_of(architecture), random_walks(size)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    expected = plain_features(network, corners, pixels)
    for dtype, within in ((torch.float32, 1e-4), (torch.bfloat16, 1e-2)):
        (found,) = streamed(fast_pass(network, corners, size=size, dtype=dtype), pixels)
        assert found.logits.dtype == found.statistics.dtype == np.float32
        assert relative_difference(found.statistics, expected.statistics) < within
        assert relative_difference(found.logits, expected.logits) < within


def test_images_that_pass_together_do_not_mix_and_a_flat_one_has_finite_features() -> None:
    fast, pixels = fast_pass(network_of(TINY_INVERTED), dtype=torch.float32), random_walks(64)
    pixels[-1] = 128
    (together,) = streamed(fast, pixels)
    assert np.isfinite(together.statistics).all()
    for place, alone in enumerate(streamed(fast, *np.split(pixels, len(pixels)))):
        np.testing.assert_allclose(alone.logits[0], together.logits[place], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(alone.statistics[0], together.statistics[place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", [TINY_INVERTED, TINY_EMBEDDED])
def test_pooled_features_places_and_tones_come_on_request(architecture: Architecture) -> None:
    network, pixels = network_of(architecture), random_walks(64)
    places = partial(torch.mean, dim=(2, 3))
    wanted: dict[str, Any] = {"pooled": True, "places": lambda maps: places(maps[1]), "tones": measure_tones}
    fast = fast_pass(network, dtype=torch.float32, **wanted)
    (found,) = fast.stream([pixels])
    with torch.no_grad():
        features = network(to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2), 1).features
    assert list(found) == ["logits", "statistics", "pooled", "tones", "places"]
    assert np.array_equal(found["tones"], measure_tones(torch.from_numpy(pixels)))
    np.testing.assert_allclose(found["pooled"], features[-1].mean((2, 3)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["places"], features[1].mean((2, 3)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("large", [0, 2**40])
def test_images_are_copied_whole_in_threads_too(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MANY", large)
    target, source = np.zeros((40, 8, 8, 3), np.uint8), np.random.default_rng(0).integers(1, 256, (2, 8, 8, 3))
    with ThreadPoolExecutor(kernels.COPIERS) as threads:
        kernels.copy_images(target[:2], source.astype(np.uint8), threads)
    assert np.array_equal(target[:2], source)
    assert not target[2:].any()


class ScaledLogits(PlainStages):
    """Writes statistics as they should be, and logits that are not."""

    def classify(self, x: Tensor, classifier: Any, out: Tensor) -> None:
        super().classify(x, classifier, out)
        out *= 1.1


class NotANumber(PlainStages):
    """The result of a kernel that does not work."""

    def statistics(self, x: Tensor, out: Tensor) -> None:
        out.fill_(torch.nan)


@pytest.mark.parametrize("wrong", [ScaledLogits, NotANumber])
def test_stages_that_compute_something_else_are_found_out(wrong: Any) -> None:
    with pytest.raises(ArithmeticError, match="plain pass"):
        fast_pass(network_of(TINY_INVERTED), size=44, stages=wrong())


# The kernels


@with_kernels
@pytest.mark.parametrize("sides", [(8, 8), (7, 5)])
@pytest.mark.parametrize(
    ("kernel", "stride", "inputs", "outputs"), [(3, 1, 16, 16), (5, 2, 24, 40), (3, 1, 7, 5), (5, 1, 80, 80)]
)
@pytest.mark.parametrize("expansion", [1, 6])
@torch.inference_mode()
def test_the_kernels_of_a_block_compute_it(
    kernel: int, stride: int, inputs: int, outputs: int, expansion: int, sides: tuple[int, int]
) -> None:
    from discopatch.model.kernels import programs

    torch.manual_seed(0)
    made = MBConv(inputs, outputs, kernel=kernel, stride=stride, expansion=expansion).to(DEVICE)
    block, x = FastMBConv(made, torch.float16), torch.randn(3, *sides, inputs).half().to(DEVICE)
    found, expected = programs.mbconv(x, block), PlainStages().mbconv(x, block)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    within = 2**-9 * float(expected.float().abs().max())  # some of the last digits, of sums and of their terms
    torch.testing.assert_close(found.float(), expected.float(), rtol=2**-9, atol=within)


@with_kernels
@pytest.mark.parametrize(("places", "vectors", "axes"), [(300, 5000, 64), (257, 129, 40), (5, 3, 7)])
@torch.inference_mode()
def test_the_kernel_of_nearest_vectors_gives_their_exact_distance(places: int, vectors: int, axes: int) -> None:
    """Half precision may choose another of vectors that are nearly as near; too large and unknown numbers pass."""
    from discopatch.model.kernels import programs

    torch.manual_seed(0)
    bank, x = torch.randn(vectors, axes), torch.randn(places, axes)
    x[0], x[1], x[2], x[3] = bank[-1], bank[0] + 0.01, 1e6 * x[2], torch.nan
    found = programs.nearest_squares(x.to(DEVICE), bank.to(DEVICE)).cpu()
    expected = torch.cdist(x.double(), bank.double()).square().amin(1).float()
    assert found[0] == 0
    torch.testing.assert_close(found[1:3], expected[1:3], rtol=1e-4, atol=0)
    torch.testing.assert_close(found[4:], expected[4:], rtol=2e-3, atol=0)
    assert ((found / expected)[4:] < 1 + 1e-5).float().mean() > 0.98
    assert found[3].isnan()
    assert kernels.nearest_kernel(DEVICE) is programs.nearest_squares


@with_kernels
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), NETWORKS)
def test_the_kernels_of_a_network_give_its_features(architecture: Architecture, size: int, patches: int | None) -> None:
    network, pixels = network_of(architecture), random_walks(size)[:2]
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    expected = plain_features(network, corners, pixels)
    (found,) = streamed(FastPass(network.to(DEVICE), corners, size=size, batch_size=2), pixels)
    assert relative_difference(found.statistics, expected.statistics) < 1e-2
    assert relative_difference(found.logits, expected.logits) < 1e-2


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), NETWORKS)
def test_on_a_gpu_neighbours_batches_and_time_never_change_features(
    architecture: Architecture, size: int, patches: int | None
) -> None:
    network, pixels = network_of(architecture), random_walks(size)[:5]
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    fast = FastPass(network.to("cuda"), corners, size=size, batch_size=5)
    whole, few, turned, again = streamed(fast, pixels, pixels[:2], pixels[::-1].copy(), pixels)
    assert all(map(np.array_equal, again, whole))
    assert all(map(np.array_equal, few, whole.select(slice(2))))
    assert relative_difference(turned.statistics[::-1], whole.statistics) < 1e-3
    on_device = fast.start(torch.from_numpy(pixels).to("cuda"))()
    assert np.array_equal(on_device["statistics"], whole.statistics)
    both = list(zip(fast.stream([pixels, pixels[:2]]), fast.stream([pixels[:2], pixels]), strict=True))
    assert np.array_equal(both[0][0]["logits"], both[1][1]["logits"]), "two streams at once"
