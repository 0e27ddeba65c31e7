"""The fast pass computes what the plain one does; without a GPU, by its plain stages."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.encoders import Features
from discopatch.errors import ParameterError
from discopatch.heads import CombinedHead
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Discriminator, Networks, extract_patches, scoring_corners
from discopatch.model.fast import FastPass, FastResidual, scoring
from discopatch.model.fast.inverted_blocks import FastMBConv
from discopatch.model.fast.inverted_network import FastInverted
from discopatch.model.fast.network import Affine, FastNetwork, PatchLayout, Stages, split_digits
from discopatch.model.fast.scoring import check_agreement
from discopatch.model.layers import Block
from tests.model.plain_stages import PlainStages
from tests.samples import TINY, TINY_INVERTED, TINY_RESIDUAL, one_camera, tiny_weights

CPU = torch.device("cpu")
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Channels that fill no block, a side that is odd after two layers, an image that is none of its multiples, one layer.
ARCHITECTURES = [
    (TINY, 64),
    (Architecture(patch_size=16, hidden=(5, 24, 40), latent=8), 44),
    (Architecture(patch_size=8, hidden=(20,), latent=8), 23),
    (Architecture(patch_size=64, hidden=(128, 256), latent=8), 64),
]
RESIDUAL = [
    (TINY_RESIDUAL, 64),
    (replace(TINY_RESIDUAL, patch_size=16, hidden=(5, 24, 40), blocks=2), 44),
    (replace(TINY_RESIDUAL, patch_size=64, hidden=(32, 48, 136, 40)), 64),
]
INVERTED = [(TINY_INVERTED, 64), (replace(TINY_INVERTED, patch_size=64, hidden=(6, 10, 12, 21, 25)), 100)]


def network_of(architecture: Architecture) -> Discriminator:
    """As if trained a little: no scale is 1, no shift 0, and no running statistic either."""
    network = Networks.from_seed(architecture, 0).discriminator.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in network.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(0.3 * torch.rand(buffer.shape, generator=generator))
    return network


def corners_of(patches: int | None, *, size: int, patch: int) -> Tensor | None:
    return None if patches is None else scoring_corners("random", patches, size=size, patch_size=patch, seed=2)


def random_walks(size: int, count: int = 6, *, seed: int = 0) -> Pixels:
    """Smooth as photos are, some bright with little contrast; made up: a machine with a GPU may have no photos."""
    walks = np.random.default_rng(seed).normal(size=(count, size, size, 3)).cumsum(1).cumsum(2)
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
    return FastPass(network, corners, size=size, stages=PlainStages(), **options)


def streamed(fast: FastPass, *batches: Pixels) -> list[Features]:
    return [Features(**arrays) for arrays in fast.stream(batches)]


def relative_difference(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("patches", [None, 1, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES)
def test_moments_are_the_sums_of_products_of_unfolded_windows(
    architecture: Architecture, size: int, patches: int | None
) -> None:
    pixels, patch = torch.from_numpy(random_walks(size)), architecture.patch_size
    corners = corners_of(patches, size=size, patch=patch)
    found = PlainStages().moments(pixels, PatchLayout.at(corners, patch=patch, size=size, device=CPU))
    for image, moments in zip(pixels.split(1), found, strict=True):
        unfolded = F.unfold(2.0 * cut_out(image, corners, patch).double() - 255, 3, padding=1, stride=2)
        rows = unfolded.unflatten(1, (3, 9)).permute(0, 3, 2, 1).flatten(2).flatten(0, 1)  # (pixels, 9 x 3)
        assert torch.equal(moments[:27, :27], rows.T @ rows)
        assert torch.equal(moments[27, :27], rows.sum(0))
        assert moments[27, 27] == len(rows)
        assert not moments[28:].any()


@pytest.mark.parametrize("patches", [None, 3])
def test_the_statistics_of_the_first_layer_are_known_before_it_is_computed(patches: int | None) -> None:
    network, pixels = network_of(TINY), torch.from_numpy(random_walks(64))
    corners = corners_of(patches, size=64, patch=32)
    layout = PatchLayout.at(corners, patch=32, size=64, device=CPU)
    layer = FastNetwork.of(network, torch.float32).first
    moments = PlainStages().moments(pixels, layout).flatten(1)
    sums, squares = (moments @ layer.forms).view(len(pixels), 2, -1).unbind(1)
    first = network.blocks[0]
    assert isinstance(first, Block)
    for image, total, square in zip(pixels.split(1), sums, squares, strict=True):
        values = F.conv2d(
            cut_out(image, corners, 32).double() / 127.5 - 1, first.conv.weight.double(), stride=2, padding=1
        )
        mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3), unbiased=False)
        torch.testing.assert_close(total / layout.pixels(1), mean, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(square / layout.pixels(1) - mean.square(), variance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("patches", [None, 1, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES + RESIDUAL + INVERTED)
def test_in_float32_it_gives_what_the_discriminator_gives(
    architecture: Architecture, size: int, patches: int | None
) -> None:
    network, pixels = network_of(architecture), random_walks(size)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    expected = plain_features(network, corners, pixels)
    logits, statistics = fast_pass(network, corners, size=size, dtype=torch.float32)(torch.from_numpy(pixels)).values()
    assert logits.dtype == statistics.dtype == torch.float32
    np.testing.assert_allclose(statistics, expected.statistics, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits, expected.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize("architecture", [TINY, TINY_RESIDUAL, TINY_INVERTED])
def test_in_bfloat16_it_gives_nearly_the_same(architecture: Architecture, patches: int | None) -> None:
    network, pixels = network_of(architecture), random_walks(64)
    corners = corners_of(patches, size=64, patch=32)
    expected = plain_features(network, corners, pixels)
    (found,) = streamed(fast_pass(network, corners), pixels)
    assert relative_difference(found.statistics, expected.statistics) < 1e-2
    assert relative_difference(found.logits, expected.logits) < 1e-2
    layer = 0 if architecture.kind == "inverted" else 2 * architecture.hidden[0]  # that of others is exact
    np.testing.assert_allclose(found.statistics[:, :layer], expected.statistics[:, :layer], rtol=1e-5, atol=1e-5)


def test_in_bfloat16_the_order_of_scores_is_nearly_kept() -> None:
    pixels = np.stack([image.pixels for image in one_camera(80)])
    pixels[60:] = pixels[60:] // 2 + 64
    network = tiny_weights().discriminator.eval()
    (found,) = streamed(fast_pass(network, batch_size=80), pixels)
    ranks = []
    for features in (plain_features(network, None, pixels), found):
        head = CombinedHead().fit(features.select(slice(40)))
        ranks.append(head.score(features.select(slice(40, None))).argsort().argsort())
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.99


@pytest.mark.parametrize("architecture", [TINY, TINY_RESIDUAL, TINY_INVERTED])
def test_images_that_pass_together_do_not_mix(architecture: Architecture) -> None:
    fast, pixels = fast_pass(network_of(architecture), dtype=torch.float32), random_walks(64)
    (together,) = streamed(fast, pixels)
    for place, alone in enumerate(streamed(fast, *np.split(pixels, len(pixels)))):
        np.testing.assert_allclose(alone.logits[0], together.logits[place], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(alone.statistics[0], together.statistics[place], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", [TINY, TINY_RESIDUAL, TINY_INVERTED])
def test_a_flat_image_has_finite_features(architecture: Architecture) -> None:
    (found,) = streamed(fast_pass(network_of(architecture)), np.full((1, 64, 64, 3), 128, np.uint8))
    assert np.isfinite(found.logits).all()
    assert np.isfinite(found.statistics).all()


@pytest.mark.parametrize(("dtype", "digits"), [(torch.bfloat16, 16), (torch.float16, 22)])
def test_two_halves_have_the_digits_of_both(dtype: torch.dtype, digits: int) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    high, low = split_digits(values, dtype)
    assert high.dtype == low.dtype == dtype
    torch.testing.assert_close(high.float() + low.float(), values, rtol=2**-digits, atol=2**-24)


def test_the_next_batch_is_on_its_way_before_one_is_waited_for() -> None:
    drawn: list[int] = []
    pixels = random_walks(64)

    def batches() -> Iterator[Pixels]:
        for number in range(4):
            drawn.append(number)
            yield pixels[number : number + 1]

    fast = fast_pass(network_of(TINY), dtype=torch.float32)
    stream = fast.stream(batches())
    first = next(stream)
    assert drawn == [0, 1]
    found = [each["logits"] for each in (first, *stream)]
    assert np.array_equal(found, [each["logits"] for each in fast.stream(batches())])
    assert len(found) == 4


def test_more_images_than_there_is_room_for_are_refused() -> None:
    fast = fast_pass(network_of(TINY), dtype=torch.float32, batch_size=3)
    with pytest.raises(ParameterError, match=r"4 .* at most 3"):
        fast.start(random_walks(64)[:4])


@pytest.mark.parametrize("normalisation", ["batch", "group", "instance"])
def test_another_normalisation_than_that_of_patches_is_refused(normalisation: Any) -> None:
    other = Architecture(patch_size=32, hidden=(8, 16), latent=8, normalisation=normalisation)
    with pytest.raises(ParameterError, match=f"'{normalisation}'.*precision='float32'"):
        fast_pass(network_of(other))


@pytest.mark.parametrize("changed", [{"normalisation": "patch"}, {"stem": 7}])
def test_a_residual_network_of_another_kind_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"residual.*precision='float32'"):
        fast_pass(network_of(replace(TINY_RESIDUAL, **changed)))


def test_more_features_of_a_plain_network_are_refused() -> None:
    with pytest.raises(ParameterError, match="alone"):
        fast_pass(network_of(TINY), pooled=True)


def test_residual_networks_give_pooled_features_and_whatever_is_made_of_the_maps() -> None:
    network, pixels = network_of(TINY_RESIDUAL), random_walks(64)
    places = partial(torch.mean, dim=(2, 3))
    fast = fast_pass(network, dtype=torch.float32, pooled=True, places=lambda maps: places(maps[1]))
    (found,) = fast.stream([pixels])
    with torch.no_grad():
        features = network(to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2), 1).features
    assert list(found) == ["logits", "statistics", "pooled", "places"]
    np.testing.assert_allclose(found["pooled"], features[-1].mean((2, 3)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["places"], features[1].mean((2, 3)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("large", [0, 2**40])
def test_images_are_copied_whole_in_threads_too(count: int, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MANY", large)
    target, source = np.zeros((40, 8, 8, 3), np.uint8), np.random.default_rng(0).integers(1, 256, (count, 8, 8, 3))
    with ThreadPoolExecutor(scoring.COPIERS) as threads:
        scoring.copy_images(target[:count], source.astype(np.uint8), threads)
        with pytest.raises(ValueError, match="broadcast"):
            scoring.copy_images(target[:count], np.zeros((count, 8, 9, 3), np.uint8), threads)
    assert np.array_equal(target[:count], source)
    assert not target[count:].any()


class SwappedAffine(PlainStages):
    """Scales by the shift and shifts by the scale."""

    def activate(self, x: Tensor, affine: Affine) -> Tensor:
        return super().activate(x, Affine(affine.shift, affine.scale))


class ScaledLogits(PlainStages):
    """Writes statistics as they should be, and logits that are not."""

    def classify(self, x: Tensor, affine: Affine | None, classifier: Any, out: Tensor, *, first: int) -> None:
        super().classify(x, affine, classifier, out, first=first)
        out[:, first:] *= 1.1


class NotANumber(PlainStages):
    """What a kernel that does not work at all may give."""

    def sums(self, x: Tensor, images: int) -> Tensor:
        return super().sums(x, images) * torch.nan


class NoShortcut(PlainStages):
    """Leaves out what a block adds to its input."""

    def add_activate(self, x: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
        return super().add_activate(x, bias, None)


class OtherSlope(PlainStages):
    """Activates as if there were no LeakyReLU."""

    def add_activate(self, x: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
        return x + bias.to(x.dtype) + (0 if other is None else other)


class NoInput(PlainStages):
    """Leaves out the input that an inverted block adds to its output."""

    def filter_project(self, x: Tensor, block: FastMBConv, other: Tensor | None) -> Tensor:
        return super().filter_project(x, block, None)


def test_places_that_are_others_are_found_out() -> None:
    discriminator, layout = network_of(TINY_RESIDUAL), PatchLayout.at(None, patch=32, size=64, device=CPU)
    turns = iter((1.0, 1.1))
    network = FastResidual.of(discriminator, torch.float32, lambda maps: maps[1] * next(turns))
    with pytest.raises(ArithmeticError, match="places"):
        check_agreement(discriminator, network, layout, PlainStages())


@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(
    ("kind", "architecture", "wrong", "named"),
    [
        *(
            (FastNetwork, ARCHITECTURES[1][0], *each)
            for each in ((SwappedAffine, "statistics"), (ScaledLogits, "logits"), (NotANumber, "statistics"))
        ),
        *(
            (FastResidual, RESIDUAL[1][0], *each)
            for each in (
                (NoShortcut, "statistics"),
                (OtherSlope, "statistics"),
                (ScaledLogits, "logits"),
                (NotANumber, "statistics"),
            )
        ),
        *(
            (FastInverted, TINY_INVERTED, *each)
            for each in ((NoInput, "statistics"), (ScaledLogits, "logits"), (NotANumber, "statistics"))
        ),
    ],
)
def test_stages_that_compute_something_else_are_found_out(
    kind: type[FastNetwork | FastResidual | FastInverted],
    architecture: Architecture,
    wrong: type[PlainStages],
    named: str,
    patches: int | None,
) -> None:
    discriminator = network_of(architecture)
    patch = architecture.patch_size
    layout = PatchLayout.at(corners_of(patches, size=44, patch=patch), patch=patch, size=44, device=CPU)
    for dtype in (torch.float32, torch.bfloat16):
        network = kind.of(discriminator, dtype)
        check_agreement(discriminator, network, layout, PlainStages())
        with pytest.raises(ArithmeticError, match=named):
            check_agreement(discriminator, network, layout, wrong())


# On a GPU


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES)
@torch.inference_mode()
def test_each_kernel_computes_its_plain_stage(architecture: Architecture, size: int, patches: int | None) -> None:
    from discopatch.model.fast.launch import Kernels

    device = torch.device("cuda")
    network = FastNetwork.of(network_of(architecture).to(device), torch.bfloat16)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    layout = PatchLayout.at(corners, patch=architecture.patch_size, size=size, device=device)
    images, plain, fast = torch.from_numpy(random_walks(size)).to(device), PlainStages(), Kernels()
    count, layer = len(images), network.first
    found = torch.empty(2, count, network.width(layout), device=device)
    both: list[tuple[Stages, Tensor]] = [(plain, found[0]), (fast, found[1])]

    moments = plain.moments(images, layout)
    assert torch.equal(fast.moments(images, layout), moments)
    sums = (moments.flatten(1) @ layer.forms).view(count, 1, 2, -1)
    affine, other = (each.statistics(sums, None, layer.norm, rows, pixels=layout.pixels(1)) for each, rows in both)
    torch.testing.assert_close(other, affine, rtol=1e-4, atol=1e-4)
    x = plain.first(images, layout, layer, affine, torch.bfloat16)
    torch.testing.assert_close(fast.first(images, layout, layer, affine, torch.bfloat16), x, rtol=1e-2, atol=1e-3)
    sums = plain.sums(x, count)
    torch.testing.assert_close(fast.sums(x, count).sum(1), sums.sum(1), rtol=1e-4, atol=1e-2)
    affine, other = (each.statistics(sums, x, layer.norm, rows, pixels=layout.pixels(1)) for each, rows in both)
    torch.testing.assert_close(other, affine, rtol=1e-4, atol=1e-4)
    written = slice(2 * architecture.hidden[0])
    torch.testing.assert_close(found[1, :, written], found[0, :, written], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.activate(x.clone(), affine), plain.activate(x, affine), rtol=1e-2, atol=1e-3)


@on_a_gpu
@pytest.mark.parametrize("shape", [(3, 5, 5, 7), (2, 16, 16, 40), (1, 33, 31, 320)])
@pytest.mark.parametrize("joined", [False, True])
def test_the_adding_kernel_computes_its_plain_stage(shape: tuple[int, ...], joined: bool) -> None:
    from discopatch.model.fast.launch import Kernels

    generator = torch.Generator("cuda").manual_seed(0)
    x, other = torch.randn(2, *shape, generator=generator, device="cuda").bfloat16()
    bias = torch.randn(shape[3], generator=generator, device="cuda")
    expected = PlainStages().add_activate(x, bias, other if joined else None)
    found = Kernels().add_activate(x.clone(), bias, other if joined else None)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-6)  # the last digit


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), [ARCHITECTURES[0], ARCHITECTURES[2]])
@pytest.mark.parametrize("normalised", [False, True])
@torch.inference_mode()
def test_the_classifying_kernels_compute_their_plain_stage(
    architecture: Architecture, size: int, patches: int | None, normalised: bool
) -> None:
    from discopatch.model.fast.launch import Kernels

    network = FastNetwork.of(network_of(architecture).to("cuda"), torch.bfloat16)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    layout = PatchLayout.at(corners, patch=architecture.patch_size, size=size, device=torch.device("cuda"))
    generator, side = torch.Generator("cuda").manual_seed(0), layout.side(len(architecture.hidden))
    shape = 3 * layout.patches, side, side, architecture.hidden[-1]
    x = torch.randn(shape, generator=generator, device="cuda").bfloat16()
    scale, shift = torch.randn(2, 3, shape[3], generator=generator, device="cuda")
    found = torch.full((2, 3, network.width(layout) - 2 * network.channels), torch.nan, device="cuda")
    both: list[tuple[Stages, Tensor]] = [(PlainStages(), found[0]), (Kernels(), found[1])]
    for stages, rows in both:
        stages.classify(x, None if normalised else Affine(scale, shift), network.classifier, rows, first=0)
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=float(found[0].std()) / 100)


@on_a_gpu
@pytest.mark.parametrize("patches", [None, 3])
@pytest.mark.parametrize(("architecture", "size"), ARCHITECTURES + RESIDUAL + INVERTED)
def test_on_a_gpu_it_gives_nearly_what_a_cpu_gives(architecture: Architecture, size: int, patches: int | None) -> None:
    network, pixels = network_of(architecture), random_walks(size)
    corners = corners_of(patches, size=size, patch=architecture.patch_size)
    expected = plain_features(network, corners, pixels)
    fast = FastPass(network.to("cuda"), corners, size=size)
    assert type(fast.stages).__name__ == "Kernels"
    (found,) = streamed(fast, pixels)
    assert relative_difference(found.statistics, expected.statistics) < 1e-2
    assert relative_difference(found.logits, expected.logits) < 3e-2
    logits, statistics = fast(torch.from_numpy(pixels).to("cuda")).values()
    assert relative_difference(statistics.cpu().numpy(), found.statistics) < 1e-3
    assert relative_difference(logits.cpu().numpy(), found.logits) < 1e-2


@on_a_gpu
@pytest.mark.parametrize("architecture", [TINY, TINY_RESIDUAL, TINY_INVERTED])
def test_on_a_gpu_neighbours_batches_and_time_never_change_features(architecture: Architecture) -> None:
    fast, pixels = FastPass(network_of(architecture).to("cuda"), None, size=64, batch_size=5), random_walks(64)[:5]
    whole, few, turned, again = streamed(fast, pixels, pixels[:2], pixels[::-1].copy(), pixels)
    assert all(map(np.array_equal, again, whole))
    assert all(map(np.array_equal, few, whole.select(slice(2))))
    assert relative_difference(turned.statistics[::-1], whole.statistics) < 1e-3


@on_a_gpu
def test_on_a_gpu_images_may_lie_in_memory_channel_by_channel() -> None:
    fast, pixels = FastPass(network_of(TINY).to("cuda"), None, size=64), torch.from_numpy(random_walks(64)).to("cuda")
    otherwise = pixels.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    with torch.inference_mode():
        assert torch.equal(fast.run(otherwise)[0], fast.run(pixels)[0])


@on_a_gpu
def test_two_streams_of_one_pass_do_not_mix_and_one_may_be_left() -> None:
    fast, pixels = FastPass(network_of(TINY).to("cuda"), None, size=64, batch_size=1), random_walks(64)
    forwards, backwards = list(pixels[:, None]), list(pixels[::-1, None])
    expected = list(fast.stream(forwards))
    left = fast.stream(forwards)
    next(left)
    del left
    both = list(zip(fast.stream(forwards), fast.stream(backwards), strict=True))
    for (one, other), first, last in zip(both, expected, expected[::-1], strict=True):
        assert all(np.array_equal(one[kind], first[kind]) for kind in first)
        assert all(np.array_equal(other[kind], last[kind]) for kind in last)
