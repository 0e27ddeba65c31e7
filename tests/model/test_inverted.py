"""An inverted residual discriminator: its bounds, its layers, and how it begins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.bench.cost import multiplications
from discopatch.bench.networks import EfficientNetLite0
from discopatch.bench.networks.efficientnet import convert_efficientnet
from discopatch.encoders import DiscriminatorEncoder
from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Networks, Weights
from discopatch.model.inverted import LITE0
from discopatch.training import get_preset
from discopatch.training.distill import BackboneTeacher, begin_as_teacher
from tests.bench.networks.samples import efficientnet_state, sample_pixels
from tests.samples import TINY_INVERTED, inverted_weights, one_camera

RELEASED = get_preset("natural-v2").architecture


def test_the_network_of_natural_v2_keeps_its_bounds_of_work_and_size(tmp_path: Path) -> None:
    discriminator = Networks.from_seed(RELEASED, 0).discriminator
    assert sum(parameter.numel() for parameter in discriminator.parameters()) == 2_939_233
    assert multiplications(RELEASED, size=256) == 475_244_544 <= 0.9e9
    assert (RELEASED.stride, RELEASED.statistics) == (32, 2 * (16 + 24 + 40 + 112 + 320))
    Weights(discriminator, Transform()).save(tmp_path / "half", dtype=torch.float16)
    assert (tmp_path / "half").stat().st_size <= 13e6


@torch.no_grad()
def test_it_begins_with_the_layers_of_efficientnet_lite0() -> None:
    """On crops of photos its maps are those of the teacher, but for what lies beyond the border: black or grey."""
    teacher = EfficientNetLite0.from_tensors(convert_efficientnet(efficientnet_state()).tensors).eval()
    discriminator = Networks.from_seed(RELEASED, 0).discriminator.eval()
    begin_as_teacher(discriminator, {"efficientnet-lite0": BackboneTeacher(teacher, {})})
    crops = torch.from_numpy(sample_pixels("cat", "coffee")[:, 16:144, 16:144].copy())
    found = discriminator(to_unit(crops).permute(0, 3, 1, 2), 1).features
    x = nn.functional.relu6(teacher.stem(teacher.normalise(crops)))
    expected = []
    for block in teacher.blocks:
        x = block(x)
        expected.append(x)
    for own, number in zip(found, (0, 2, 4, 10, 15), strict=True):
        spread = expected[number].std()
        torch.testing.assert_close(own / spread, expected[number] / spread, rtol=0, atol=0.02)


def test_one_of_other_widths_or_without_that_teacher_begins_at_random() -> None:
    for architecture in (TINY_INVERTED, RELEASED):
        discriminator = Networks.from_seed(architecture, 0).discriminator
        before = {name: value.clone() for name, value in discriminator.state_dict().items()}
        teacher = BackboneTeacher(EfficientNetLite0(classes=3), {})
        begin_as_teacher(discriminator, {"efficientnet-lite0" if architecture == TINY_INVERTED else "other": teacher})
        assert all(torch.equal(value, before[name]) for name, value in discriminator.state_dict().items())


@torch.no_grad()
def test_the_statistics_are_those_of_each_layers_output_and_cells_have_logits() -> None:
    network = inverted_weights().discriminator
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(3)) * 2 - 1
    found = network(images, 1, statistics=True)
    maps = [(4, 32, 32), (6, 16, 16), (8, 8, 8), (14, 4, 4), (20, 2, 2)]
    assert [tuple(each.shape[1:]) for each in found.features] == maps
    assert found.logits.shape == (2, 4, 4)
    for own, mean, variance in zip(found.features, found.means, found.variances, strict=True):
        np.testing.assert_allclose(mean, own.numpy().mean((2, 3)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variance, own.numpy().var((2, 3)), rtol=1e-3, atol=1e-5)
    assert network(images[..., :32, :32]).logits.shape == (2,)


def test_an_images_features_do_not_depend_on_its_neighbours() -> None:
    encoder = DiscriminatorEncoder(inverted_weights(), kinds=("logits", "statistics", "pooled", "places"))
    pixels = np.stack([image.pixels for image in one_camera(3)])
    together = encoder.extract_pixels(pixels)
    for place in range(3):
        alone = encoder.extract_pixels(pixels[place : place + 1])
        assert all(map(np.array_equal, alone, together.select(slice(place, place + 1))))


def test_its_architecture_survives_a_file(tmp_path: Path) -> None:
    inverted_weights().save(tmp_path / "weights.safetensors")
    loaded = Weights.load(tmp_path / "weights.safetensors")
    assert loaded.discriminator.architecture == TINY_INVERTED
    assert loaded.digest == inverted_weights().digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": (16, 24, 40, 112)}, "five layers"),
        ({"normalisation": "batch"}, "have none"),
        ({"blocks": 3}, "of a residual network"),
        ({"kind": "plain"}, "need one"),
    ],
)
def test_what_an_inverted_network_cannot_have_is_refused(changes: dict[str, Any], message: str) -> None:
    architecture = Architecture(patch_size=64, hidden=LITE0, latent=8, normalisation="none", kind="inverted")
    with pytest.raises(ParameterError, match=message):
        replace(architecture, **changes)
