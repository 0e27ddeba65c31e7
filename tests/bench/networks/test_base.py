"""A backbone extracts what it was asked for, of each image from itself alone; rank 1 is that of the SVD."""

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.bench.networks.base import (
    LOCAL,
    PENULTIMATE,
    STATISTICS,
    FrozenBackbone,
    Network,
    average_pool,
    channel_statistics,
    eigenvector_by_squaring,
    fold_batchnorm,
    remove_rank_one,
    weight_without_rank_one,
)
from discopatch.errors import ParameterError
from discopatch.model import parameters_digest
from discopatch.model.discriminator import SMALLEST_VARIANCE

from .samples import CLASSES, by_full_svd, sample_pixels, small_efficientnet, small_resnet


@pytest.fixture(scope="module", params=["resnet50", "efficientnet-lite0"])
def backbone(request: pytest.FixtureRequest) -> FrozenBackbone:
    network: Network = small_resnet() if request.param == "resnet50" else small_efficientnet()
    return FrozenBackbone(request.param, network, classes=["a", "b"])


def test_every_kind_has_one_row_an_image_in_float32_and_local_ones_a_row_a_position_in_float16(
    backbone: FrozenBackbone,
) -> None:
    pixels = sample_pixels()
    features = backbone.extract(pixels, backbone.kinds)
    assert features.keys() == set(backbone.kinds)
    for kind, values in features.items():
        assert values.dtype == (np.float16 if kind == LOCAL else np.float32)
        assert values.ndim == (3 if kind == LOCAL else 2)
        assert len(values) == len(pixels), kind
        assert np.isfinite(values).all()
    assert backbone.classifier.logits(features[PENULTIMATE]).shape == (len(pixels), CLASSES)


def test_the_sizes_of_layers_are_those_of_the_statistics(backbone: FrozenBackbone) -> None:
    """As published: conv2_x to conv4_x double their channels; blocks 1, 4 and 8 have 24, 40 and 112."""
    first = backbone.layer_sizes[0]
    expected = {"resnet50": (first, 2 * first, 4 * first), "efficientnet-lite0": (48, 80, 224)}
    assert backbone.layer_sizes == expected[backbone.name]
    assert sum(backbone.layer_sizes) == backbone.extract(sample_pixels("cat"), [STATISTICS])[STATISTICS].shape[1]


def test_neighbours_never_change_features(backbone: FrozenBackbone) -> None:
    pixels = sample_pixels()
    together = backbone.extract(pixels, backbone.kinds)
    turned = backbone.extract(pixels[::-1], backbone.kinds)
    for place in range(len(pixels)):
        alone = backbone.extract(pixels[place : place + 1], backbone.kinds)
        for kind in backbone.kinds:
            assert np.array_equal(alone[kind][0], together[kind][place]), kind
            assert np.array_equal(turned[kind][::-1][place], together[kind][place]), kind


def test_batches_as_on_a_gpu_agree_to_rounding(backbone: FrozenBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = backbone.extract(sample_pixels(), backbone.kinds)
    monkeypatch.setattr(backbone, "batch_size", 64)
    for kind, values in backbone.extract(sample_pixels(), backbone.kinds).items():
        rounding = 2e-3 if kind == LOCAL else 2e-4
        np.testing.assert_allclose(values, alone[kind], atol=rounding, rtol=rounding)


def test_only_what_is_asked_for_is_extracted(backbone: FrozenBackbone) -> None:
    assert backbone.extract(sample_pixels("cat"), [STATISTICS]).keys() == {STATISTICS}
    assert backbone.extract(sample_pixels("cat"), []) == {}


def test_no_images_have_no_features(backbone: FrozenBackbone) -> None:
    none = backbone.extract(sample_pixels("cat")[:0], backbone.kinds)
    one = backbone.extract(sample_pixels("cat"), backbone.kinds)
    assert {kind: values.shape for kind, values in none.items()} == {
        kind: (0, *values.shape[1:]) for kind, values in one.items()
    }


def test_only_the_centre_enters(backbone: FrozenBackbone) -> None:
    pixels = sample_pixels("cat")
    changed = pixels.copy()
    changed[:, :16] = changed[:, 240:] = changed[:, :, :16] = changed[:, :, 240:] = 0
    before, after = backbone.extract(pixels, [PENULTIMATE]), backbone.extract(changed, [PENULTIMATE])
    assert np.array_equal(before[PENULTIMATE], after[PENULTIMATE])


def test_pixels_and_the_network_stay_as_they_were(backbone: FrozenBackbone) -> None:
    pixels = sample_pixels("cat")
    before = pixels.copy()
    first = backbone.extract(pixels, backbone.kinds)
    second = backbone.extract(pixels, backbone.kinds)
    assert np.array_equal(pixels, before)
    for kind in backbone.kinds:
        assert np.array_equal(first[kind], second[kind]), kind


@pytest.mark.parametrize("shape", [(1, 224, 224, 3), (256, 256, 3), (1, 3, 256, 256), (1, 256, 256, 4)])
def test_pixels_of_another_shape_are_refused(backbone: FrozenBackbone, shape: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="256 x 256 x 3"):
        backbone.extract(np.zeros(shape, np.uint8), [PENULTIMATE])


def test_floats_are_refused(backbone: FrozenBackbone) -> None:
    with pytest.raises(ParameterError, match="float32"):
        backbone.extract(np.zeros((1, 256, 256, 3), np.float32), [PENULTIMATE])


def test_a_kind_that_there_is_not_is_refused(backbone: FrozenBackbone) -> None:
    with pytest.raises(ParameterError, match=r"'attention'.*penultimate"):
        backbone.extract(sample_pixels("cat"), ["attention"])


def test_the_digest_depends_on_every_weight() -> None:
    network = small_resnet()
    before = parameters_digest(network)
    assert before == parameters_digest(small_resnet()) != parameters_digest(small_resnet(seed=1))
    with torch.no_grad():
        network.stages[2][5].expand.bias[3] += 1e-6  # type: ignore[index]
    assert parameters_digest(network) != before
    assert len(before) == 16


@pytest.mark.parametrize("shape", [(3, 64, 7, 7), (2, 20, 14, 14), (1, 49, 7, 7), (2, 1, 3, 3), (1, 5, 1, 1)])
def test_rank_one_is_removed_as_by_a_full_svd(shape: tuple[int, ...]) -> None:
    maps = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(remove_rank_one(maps), by_full_svd(maps.double()).float(), atol=1e-6, rtol=1e-5)


def test_a_map_whose_channels_sum_to_zero_loses_its_rank_one_too() -> None:
    maps = torch.randn((2, 12, 5, 5), generator=torch.Generator().manual_seed(4))
    maps -= maps.mean((2, 3), keepdim=True)
    torch.testing.assert_close(remove_rank_one(maps), by_full_svd(maps.double()).float(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_squaring_finds_what_the_decomposition_finds(centred: bool) -> None:
    """What a GPU runs, here on the CPU."""
    matrix = torch.rand((3, 30, 12), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    matrix -= matrix.mean(1, keepdim=True) if centred else 0
    gram = matrix.mT @ matrix
    found, expected = eigenvector_by_squaring(gram), torch.linalg.eigh(gram).eigenvectors[..., -1:]
    torch.testing.assert_close(found @ found.mT, expected @ expected.mT, atol=1e-9, rtol=0)
    assert torch.equal(
        eigenvector_by_squaring(torch.zeros(1, 4, 4, dtype=torch.float64)), torch.zeros(1, 4, 1, dtype=torch.float64)
    )


@pytest.mark.parametrize("shape", [(16, 5, 3, 3), (12, 40, 1, 1), (40, 12, 1, 1)])
def test_a_weight_loses_its_largest_singular_value_alone(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    before, after = (torch.linalg.svdvals(each.flatten(1)) for each in (weight, weight_without_rank_one(weight)))
    torch.testing.assert_close(after, torch.cat([before[1:], torch.zeros(1)]), atol=1e-5, rtol=1e-5)


def test_a_folded_weight_loses_the_rank_one_that_it_had_before_it_was_folded() -> None:
    random = torch.Generator().manual_seed(0)
    weight, factor = torch.randn((12, 5, 3, 3), generator=random), torch.rand(12, generator=random) - 0.3
    expected = weight_without_rank_one(weight) * factor[:, None, None, None]
    folded = weight * factor[:, None, None, None]
    torch.testing.assert_close(weight_without_rank_one(folded, factor), expected, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(weight_without_rank_one(folded), expected, rtol=0.01)


def test_a_channel_that_batchnorm_has_switched_off_stays_off() -> None:
    weight, factor = torch.randn((6, 5, 1, 1), generator=torch.Generator().manual_seed(0)), torch.ones(6)
    factor[2] = weight[2] = 0
    found = weight_without_rank_one(weight, factor)
    assert torch.isfinite(found).all()
    assert not found[2].any()


def test_each_map_loses_its_own_rank_one() -> None:
    maps = torch.rand((4, 6, 5, 5), generator=torch.Generator().manual_seed(1))
    together = remove_rank_one(maps)
    for place in range(4):
        torch.testing.assert_close(together[place], remove_rank_one(maps[place : place + 1])[0])


def test_a_map_of_rank_one_vanishes_and_an_empty_one_stays() -> None:
    once = torch.rand(1, 8, 1, generator=torch.Generator().manual_seed(2)) @ torch.rand(1, 1, 25)
    assert remove_rank_one(once.reshape(1, 8, 5, 5)).abs().max() < 1e-6
    assert torch.equal(remove_rank_one(torch.zeros(1, 8, 5, 5)), torch.zeros(1, 8, 5, 5))


def test_the_memory_order_of_a_map_does_not_matter() -> None:
    maps = torch.rand((2, 6, 5, 5), generator=torch.Generator().manual_seed(3))
    turned = maps.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(remove_rank_one(turned), remove_rank_one(maps))
    torch.testing.assert_close(channel_statistics([turned]), channel_statistics([maps]))


def test_statistics_are_numpys_map_by_map_means_then_log_variances() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(2, 3, (2, 4, 6, 6)), random.normal(-1, 0.1, (2, 3, 10))
    found = channel_statistics([torch.from_numpy(first).float(), torch.from_numpy(second).float()])
    expected = [
        first.mean(axis=(2, 3)),
        np.log(first.var(axis=(2, 3)) + SMALLEST_VARIANCE),
        second.mean(axis=2),
        np.log(second.var(axis=2) + SMALLEST_VARIANCE),
    ]
    np.testing.assert_allclose(found.numpy(), np.concatenate(expected, axis=1), rtol=1e-4, atol=1e-5)


def test_a_flat_channel_has_finite_statistics() -> None:
    found = channel_statistics([torch.full((1, 2, 4, 4), 3.0)])
    np.testing.assert_allclose(found.numpy(), [[3, 3, np.log(SMALLEST_VARIANCE), np.log(SMALLEST_VARIANCE)]])


def test_pooling_is_the_mean() -> None:
    maps = torch.rand(2, 3, 4, 5)
    np.testing.assert_allclose(average_pool(maps).numpy(), maps.numpy().mean(axis=(2, 3)), rtol=1e-5)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("groups", [1, 6])
@torch.inference_mode()
def test_a_folded_convolution_does_what_convolution_and_batchnorm_did(with_bias: bool, groups: int) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(6, 12, 3, groups=groups, bias=with_bias)
    norm = nn.BatchNorm2d(12, eps=1e-3).eval()
    for parameter in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert parameter is not None
        parameter.uniform_(0.1, 2)
    norm.running_var[0] = 0  # type: ignore[index]  # a channel that never changed
    bias = convolution.bias.numpy() if convolution.bias is not None else None
    parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, shift = fold_batchnorm(convolution.weight.numpy(), bias, *(each.numpy() for each in parts))  # type: ignore[union-attr]
    x = torch.randn(2, 6, 9, 9)
    folded = nn.functional.conv2d(x, weight, shift, groups=groups)
    torch.testing.assert_close(folded, norm(convolution(x)), atol=1e-4, rtol=1e-5)
