"""Several encoders as one: their features stand side by side."""

from collections.abc import Collection

import numpy as np
import pytest

from discopatch.encoders import ChosenNetworks, DiscriminatorEncoder, Encoder, JoinedEncoder, Kind, NetworkEncoder
from discopatch.encoders import base as module
from discopatch.encoders.places import join_maps
from discopatch.errors import ParameterError, TransformError
from discopatch.images import Transform
from tests.encoders.outside_samples import SmallNetwork
from tests.samples import camera_pixels, tiny_weights

PIXELS = camera_pixels(3)


def small(*, seed: int = 0, size: int = 64, kinds: Collection[Kind] = ()) -> NetworkEncoder:
    return NetworkEncoder(SmallNetwork(seed=seed), transform=Transform(size=size), patch_size=32, kinds=kinds)


def parts(kinds: Collection[Kind] = ()) -> list[Encoder]:
    return [DiscriminatorEncoder(tiny_weights()), small(kinds=kinds), small(seed=1, kinds=kinds)]


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [0, 1, 2]])
def test_the_sizes_of_features_are_known_before_an_image_passes(chosen: list[int]) -> None:
    kinds: tuple[Kind, ...] = ("logits", "statistics", "pooled", "places")
    encoders = [DiscriminatorEncoder(tiny_weights(), kinds=kinds), *parts(kinds)[1:]]
    some = [encoders[place] for place in chosen]
    found = (some[0] if len(some) == 1 else JoinedEncoder(some)).extract_pixels(PIXELS)
    weights = tiny_weights() if 0 in chosen else None
    outside = tuple(each.network for each in some if isinstance(each, NetworkEncoder))
    due = (found.statistics.shape[1], found.pooled.shape[1], found.places.shape[3], found.logits.shape[1] > 0)
    assert ChosenNetworks(weights, None, outside).sizes() == due


def test_statistics_stand_side_by_side_and_logits_are_the_discriminators() -> None:
    encoders = parts()
    found = JoinedEncoder(encoders)
    features, alone = found.extract_pixels(PIXELS), [each.extract_pixels(PIXELS) for each in encoders]
    assert np.array_equal(features.logits, alone[0].logits)
    assert np.array_equal(features.statistics, np.concatenate([each.statistics for each in alone], 1))
    assert found.layer_sizes == (), "all layers count as early"
    assert features.pooled.shape == (3, 0)
    assert features.places.shape == (3, 0, 0)
    assert found.start(PIXELS)().statistics.tobytes() == features.statistics.tobytes()


def test_pooled_features_have_one_length_and_places_one_grid() -> None:
    kinds: tuple[Kind, ...] = ("pooled", "places")
    encoders = parts(kinds)
    features = JoinedEncoder(encoders).extract_pixels(PIXELS)
    alone = [each.extract_pixels(PIXELS) for each in encoders[1:]]
    expected = [each.pooled / np.linalg.norm(each.pooled, axis=1, keepdims=True) for each in alone]
    np.testing.assert_allclose(features.pooled, np.concatenate(expected, 1), rtol=1e-5)
    np.testing.assert_allclose(features.places, np.concatenate([each.places for each in alone], 3), rtol=1e-5)
    assert features.places.shape[3] == 20
    assert JoinedEncoder(encoders).place_sizes == tuple(size for each in encoders for size in each.place_sizes)
    compared = JoinedEncoder(encoders, lambda maps: join_maps(maps).sum(-1)).extract_pixels(PIXELS)
    np.testing.assert_allclose(compared.places, features.places.sum(-1), rtol=1e-4, atol=1e-4)
    assert np.array_equal(module.of_unit_length(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))


def test_more_statistics_than_a_head_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STATISTICS", 30)
    with pytest.raises(ParameterError, match="statistics"):
        JoinedEncoder([small(), small(seed=1)])


def test_encoders_of_other_transforms_do_not_join() -> None:
    with pytest.raises(TransformError):
        JoinedEncoder([small(), small(seed=1, size=80)])
