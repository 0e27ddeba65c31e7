"""A backbone shows what it was asked for, of each image from itself alone."""

import numpy as np
import pytest
import torch

from discopatch.baselines.backbones.backbone import Backbone
from discopatch.baselines.backbones.frozen import FrozenBackbone, Network
from discopatch.baselines.method import PENULTIMATE, STATISTICS
from discopatch.model.weights import digest_of

from .samples import CLASSES, pictures, small_efficientnet, small_resnet


@pytest.fixture(scope="module", params=["resnet50", "efficientnet-lite0"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    network: Network = small_resnet() if request.param == "resnet50" else small_efficientnet()
    return FrozenBackbone(request.param, network, classes=["a", "b"])


def test_every_kind_has_one_row_an_image_in_float32(backbone: Backbone) -> None:
    pixels = pictures()
    features = backbone.look(pixels, backbone.kinds)
    assert features.keys() == set(backbone.kinds)
    for kind, values in features.items():
        assert values.dtype == np.float32
        assert values.ndim == 2
        assert len(values) == len(pixels), kind
        assert np.isfinite(values).all()
    assert backbone.classifier.logits(features[PENULTIMATE]).shape == (len(pixels), CLASSES)


def test_neighbours_never_change_features(backbone: Backbone) -> None:
    pixels = pictures()
    together = backbone.look(pixels, backbone.kinds)
    turned = backbone.look(pixels[::-1], backbone.kinds)
    for place in range(len(pixels)):
        alone = backbone.look(pixels[place : place + 1], backbone.kinds)
        for kind in backbone.kinds:
            assert np.array_equal(alone[kind][0], together[kind][place]), kind
            assert np.array_equal(turned[kind][::-1][place], together[kind][place]), kind


def test_batches_as_on_a_gpu_agree_to_rounding(backbone: Backbone) -> None:
    assert isinstance(backbone, FrozenBackbone)
    pixels = pictures()
    with torch.inference_mode():
        batch = backbone._see(pixels, backbone.kinds)
    for kind, values in backbone.look(pixels, backbone.kinds).items():
        np.testing.assert_allclose(batch[kind].numpy(), values, atol=2e-4, rtol=2e-4)


def test_only_what_is_asked_for_is_shown(backbone: Backbone) -> None:
    assert backbone.look(pictures("cat"), [STATISTICS]).keys() == {STATISTICS}
    assert backbone.look(pictures("cat"), []) == {}


def test_no_images_have_no_features(backbone: Backbone) -> None:
    none = backbone.look(pictures("cat")[:0], backbone.kinds)
    one = backbone.look(pictures("cat"), backbone.kinds)
    assert {kind: values.shape for kind, values in none.items()} == {
        kind: (0, values.shape[1]) for kind, values in one.items()
    }


def test_only_the_centre_is_seen(backbone: Backbone) -> None:
    pixels = pictures("cat")
    changed = pixels.copy()
    changed[:, :16] = changed[:, 240:] = changed[:, :, :16] = changed[:, :, 240:] = 0
    before, after = backbone.look(pixels, [PENULTIMATE]), backbone.look(changed, [PENULTIMATE])
    assert np.array_equal(before[PENULTIMATE], after[PENULTIMATE])


def test_pixels_and_the_network_stay_as_they_were(backbone: Backbone) -> None:
    pixels = pictures("cat")
    before = pixels.copy()
    first = backbone.look(pixels, backbone.kinds)
    second = backbone.look(pixels, backbone.kinds)
    assert np.array_equal(pixels, before)
    for kind in backbone.kinds:
        assert np.array_equal(first[kind], second[kind]), kind


@pytest.mark.parametrize("shape", [(1, 224, 224, 3), (256, 256, 3), (1, 3, 256, 256), (1, 256, 256, 4)])
def test_pixels_of_another_shape_are_refused(backbone: Backbone, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"uint8 pictures of 256 x 256 x 3.*Transform"):
        backbone.look(np.zeros(shape, np.uint8), [PENULTIMATE])


def test_floats_are_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="not at float32"):
        backbone.look(np.zeros((1, 256, 256, 3), np.float32), [PENULTIMATE])


def test_a_kind_that_there_is_not_is_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="cannot show 'attention', only penultimate"):
        backbone.look(pictures("cat"), ["attention"])


def test_the_digest_knows_every_weight() -> None:
    network = small_resnet()
    before = digest_of(network)
    assert before == digest_of(small_resnet()) != digest_of(small_resnet(seed=1))
    with torch.no_grad():
        network.stages[2][5].expand.bias[3] += 1e-6  # type: ignore[index]
    assert digest_of(network) != before
    assert len(before) == 16
