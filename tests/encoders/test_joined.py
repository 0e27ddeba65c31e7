"""Several encoders as one: their features stand side by side."""

from collections.abc import Collection

import numpy as np
import pytest
from numpy.typing import NDArray

from discopatch.encoders import (
    ChosenNetworks,
    DiscriminatorEncoder,
    Encoder,
    JoinedEncoder,
    Kind,
    NetworkEncoder,
)
from discopatch.encoders import base as module
from discopatch.errors import ParameterError, TransformError
from discopatch.images import Transform
from tests.encoders.outside_samples import SmallNetwork
from tests.samples import one_camera, tiny_weights


def pixels(count: int = 3) -> NDArray[np.uint8]:
    return np.stack([image.pixels for image in one_camera(count)])


def small(*, seed: int = 0, size: int = 64, kinds: Collection[Kind] = ()) -> NetworkEncoder:
    return NetworkEncoder(SmallNetwork(seed=seed), transform=Transform(size=size), patch_size=32, kinds=kinds)


def parts(kinds: Collection[Kind] = ()) -> list[Encoder]:
    return [DiscriminatorEncoder(tiny_weights()), small(kinds=kinds), small(seed=1, kinds=kinds)]


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [0, 1, 2]])
def test_the_sizes_of_features_are_known_before_an_image_passes(chosen: list[int]) -> None:
    kinds: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")
    encoders = [DiscriminatorEncoder(tiny_weights(), kinds=kinds), *parts(kinds)[1:]]
    some = [encoders[place] for place in chosen]
    found = (some[0] if len(some) == 1 else JoinedEncoder(some)).extract_pixels(pixels())
    weights = tiny_weights() if 0 in chosen else None
    outside = tuple(each.network for each in some if isinstance(each, NetworkEncoder))
    due = (found.statistics.shape[1], found.pooled.shape[1], found.places.shape[2], found.logits.shape[1] > 0)
    assert ChosenNetworks(weights, None, outside).sizes("dense") == due


def test_statistics_stand_side_by_side_and_logits_are_the_discriminators() -> None:
    encoders = parts()
    found = JoinedEncoder(encoders)
    features, alone = found.extract_pixels(pixels()), [each.extract_pixels(pixels()) for each in encoders]
    assert np.array_equal(features.logits, alone[0].logits)
    assert np.array_equal(features.statistics, np.concatenate([each.statistics for each in alone], 1))
    assert found.layer_sizes == (), "all layers count as early"
    assert features.pooled.shape == (3, 0)
    assert features.places.shape == (3, 0, 0)
    assert found.start(pixels())().statistics.tobytes() == features.statistics.tobytes()


def test_regions_are_the_same_places_of_the_image_for_all() -> None:
    encoders, image = parts(), pixels(1)[0]
    found = JoinedEncoder(encoders)
    chosen = np.array([0, 5])
    features = found.extract_regions(image, 9, chosen)
    alone = [each.extract_regions(image, 9, chosen) for each in encoders]
    assert np.array_equal(features.statistics, np.concatenate([each.statistics for each in alone], 1))
    assert found.patch_size == 32 == encoders[0].patch_size


def test_pooled_features_have_one_length_and_places_one_grid() -> None:
    kinds: tuple[Kind, ...] = ("pooled", "places")
    encoders = parts(kinds)
    features = JoinedEncoder(encoders).extract_pixels(pixels())
    alone = [each.extract_pixels(pixels()) for each in encoders[1:]]
    expected = [each.pooled / np.linalg.norm(each.pooled, axis=1, keepdims=True) for each in alone]
    np.testing.assert_allclose(features.pooled, np.concatenate(expected, 1), rtol=1e-5)
    np.testing.assert_allclose(features.places, np.concatenate([each.places for each in alone], 2), rtol=1e-2)
    assert features.places.shape == (3, 256, 20)


def test_places_of_unlike_grids_are_averaged_to_the_coarser_one() -> None:
    fine = np.arange(16, dtype=np.float16).reshape(1, 16, 1)
    coarse = np.array([[[1], [2], [3], [4]]], np.float16)
    found = module.join_places([fine, np.empty((1, 0, 0), np.float16), coarse])
    assert np.array_equal(module.of_unit_length(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))
    assert found[0].tolist() == [[2.5, 1], [4.5, 2], [10.5, 3], [12.5, 4]]


def test_more_statistics_than_a_head_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STATISTICS", 30)
    with pytest.raises(ParameterError, match="statistics"):
        JoinedEncoder([small(), small(seed=1)])


def test_encoders_of_other_transforms_do_not_join() -> None:
    with pytest.raises(TransformError):
        JoinedEncoder([small(), small(seed=1, size=80)])
