"""The features of an image are its own alone: the same with any neighbours, batches and threads."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.encoders import DiscriminatorEncoder, Features, Patches, local_features, resolve_device
from discopatch.errors import ParameterError
from discopatch.images import Pixels, Transform
from discopatch.images.tensors import to_unit
from discopatch.model import Discriminator, Weights, extract_patches, scoring_corners
from discopatch.model.layers import SMALLEST_VARIANCE, Block
from discopatch.model.patches import Sampling
from tests.samples import TINY, some_images, tiny_weights

PLACES: list[tuple[Patches, Sampling]] = [("dense", "random"), (4, "random"), (4, "grid")]


def encoder(**options: Any) -> DiscriminatorEncoder:
    return DiscriminatorEncoder(tiny_weights(), **options)


def pixels_of(count: int) -> Pixels:
    """`count` squares of each of two photos, through the transform of the tiny weights."""
    return np.stack([tiny_weights().transform(image.pixels) for image in some_images(count)])


def by_hand(network: Discriminator, x: Tensor) -> tuple[NDArray[np.float64], Tensor]:
    """Layer by layer with torch's own functions, all of `x` one group: the statistics, and the last feature map."""
    statistics = []
    for block in network.blocks:
        assert isinstance(block, Block)
        x = F.conv2d(x, block.conv.weight, block.conv.bias, stride=2, padding=1)
        values = x.double().numpy()
        statistics += [values.mean((0, 2, 3)), np.log(values.var((0, 2, 3)) + SMALLEST_VARIANCE)]
        x = F.batch_norm(x, None, None, block.norm.weight, block.norm.bias, training=True, eps=1e-5)  # type: ignore[arg-type]
        x = F.leaky_relu(x)
    return np.concatenate(statistics), x


def assert_same(found: Features, expected: Features) -> None:
    assert all(map(np.array_equal, found, expected))


def assert_close(found: Features, expected: Features) -> None:
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.statistics, expected.statistics, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("patches", "sampling"), PLACES)
def test_neighbours_and_the_batch_size_never_change_features(patches: Patches, sampling: Sampling) -> None:
    images = pixels_of(3)
    first = encoder(patches=patches, sampling=sampling)
    together = first.extract_pixels(images)
    assert together.logits.dtype == together.statistics.dtype == np.float32
    assert len({row.tobytes() for row in together.statistics}) == len(images), "different images"
    for place in range(len(images)):
        assert_same(first.extract_pixels(images[place : place + 1]), together.select(slice(place, place + 1)))
    assert_same(first.extract_pixels(images[::-1]), together.select(slice(None, None, -1)))
    for batch_size in (1, 100):
        other = encoder(patches=patches, sampling=sampling, batch_size=batch_size)
        assert_same(other.extract_pixels(images), together)


@torch.no_grad()
def test_a_dense_pass_classifies_every_window_of_the_last_feature_map() -> None:
    network, cells, pixels = tiny_weights().discriminator, TINY.cells, pixels_of(1)
    bias = network.head.bias
    assert bias is not None
    found = encoder(patches="dense").extract_pixels(pixels)
    assert found.logits.shape == (2, 9 * 9), "64 pixels are 16 cells, a patch is 8"
    for image, logits, statistics in zip(pixels, found.logits, found.statistics, strict=True):
        expected, features = by_hand(network, to_unit(torch.from_numpy(image)[None]).permute(0, 3, 1, 2))
        np.testing.assert_allclose(statistics, expected, rtol=1e-4, atol=1e-5)
        windows = [
            float(features[0, :, top : top + cells, left : left + cells].flatten() @ network.head.weight[0])
            + float(bias)
            for top in range(9)
            for left in range(9)
        ]
        np.testing.assert_allclose(logits, windows, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_patches_are_classified_one_by_one_and_their_statistics_are_of_all_together() -> None:
    network, pixels = tiny_weights().discriminator, pixels_of(1)
    corners = scoring_corners("random", 5, size=64, patch_size=32, seed=3)
    found = encoder(patches=5, seed=3).extract_pixels(pixels)
    assert found.logits.shape == (2, 5)
    assert found.statistics.shape == (2, 2 * sum(TINY.hidden))
    for image, logits, statistics in zip(pixels, found.logits, found.statistics, strict=True):
        patches = to_unit(extract_patches(torch.from_numpy(image)[None], corners, 32))
        expected, features = by_hand(network, patches)
        np.testing.assert_allclose(statistics, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(logits, network.head(features.flatten(1))[:, 0].numpy(), rtol=1e-4, atol=1e-5)


def test_a_dense_pass_over_an_image_of_one_patch_is_that_of_the_patch() -> None:
    weights = Weights(tiny_weights().discriminator, Transform(size=32))
    pixels = pixels_of(1)[:, 10:42, 20:52]
    dense = DiscriminatorEncoder(weights, patches="dense").extract_pixels(pixels)
    assert dense.logits.shape == (2, 1)
    assert_same(DiscriminatorEncoder(weights, patches=1, sampling="grid").extract_pixels(pixels), dense)


def test_seed_and_sampling_decide_the_places() -> None:
    pixels = pixels_of(1)

    def logits(**options: Any) -> bytes:
        return encoder(**options).extract_pixels(pixels).logits.tobytes()

    dense, grid, random = logits(patches="dense"), logits(patches=4, sampling="grid"), logits(patches=4)
    assert dense == logits(patches="dense", seed=5) == logits(patches="dense", sampling="grid"), "no places to choose"
    assert grid == logits(patches=4, sampling="grid", seed=5), "a grid has no seed"
    assert random == logits(patches=4, seed=0) != logits(patches=4, seed=1)
    assert len({dense, grid, random}) == 3


def test_patches_larger_than_the_images_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"32 .* 16"):
        DiscriminatorEncoder(Weights(tiny_weights().discriminator, Transform(size=16)))


@pytest.mark.parametrize(("gpus", "device", "known"), [(2, "cuda:1", True), (1, "cuda:1", False), (0, "cuda", False)])
def test_a_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, known: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if known:
        assert resolve_device(torch.device(device)) == resolve_device(device) == torch.device(device)
    else:
        for wrong in (device, "gpu"):
            with pytest.raises(ParameterError, match=wrong):
                resolve_device(wrong)


ALL_KINDS = ("logits", "statistics", "pooled", "places")


def test_pooled_features_and_places_come_only_where_they_are_asked_for_and_change_nothing_else() -> None:
    pixels = pixels_of(2)
    basic, whole = encoder().extract_pixels(pixels), encoder(kinds=ALL_KINDS).extract_pixels(pixels)
    assert basic.pooled.shape == (4, 0)
    assert basic.places.shape == (4, 0, 0)
    assert np.array_equal(basic.logits, whole.logits)
    assert np.array_equal(basic.statistics, whole.statistics)
    assert sum(encoder().layer_sizes) == whole.statistics.shape[1]
    assert whole.places.shape == (4, 16, 16, sum(encoder().place_sizes))
    assert encoder(kinds=ALL_KINDS, patches=4).extract_pixels(pixels).places.size == 0
    assert encoder(kinds=("logits", "statistics", "pooled")).extract_pixels(pixels).places.shape == (4, 0, 0)


def test_pooled_features_are_the_last_map_averaged_and_places_are_those_of_the_middle_layers() -> None:
    own, pixels = encoder(kinds=ALL_KINDS), pixels_of(1)
    found = own.extract_pixels(pixels)
    for place, image in enumerate(pixels):
        x = to_unit(torch.from_numpy(image)[None]).permute(0, 3, 1, 2)
        network = tiny_weights().discriminator
        with torch.inference_mode():
            _, last = by_hand(network, x)
            maps = network(x, 1).features
        np.testing.assert_allclose(found.pooled[place], last.mean((0, 2, 3)).numpy(), rtol=1e-4, atol=1e-5)
        expected = local_features(maps[network.architecture.place_layers])[0]
        np.testing.assert_allclose(found.places[place], expected.numpy(), rtol=1e-4, atol=1e-5)
        compared = encoder(kinds=ALL_KINDS, compare=lambda maps: maps[0].square().sum(1)).extract_pixels(image[None])
        np.testing.assert_allclose(
            compared.places[0], expected[..., : own.place_sizes[0]].square().sum(-1).numpy(), rtol=1e-3, atol=1e-4
        )
