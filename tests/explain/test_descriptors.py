"""Descriptors are finite for any image and independent of others; log-odds are those of a network in torch."""

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.demo import crops, sample_photos
from discopatch.errors import WeightsError
from discopatch.explain.descriptors import LearntChanges, descriptors
from discopatch.images import Pixels


def photos(count: int = 2, *, size: int = 128) -> Pixels:
    return np.stack([each.pixels for each in crops(sample_photos(["cat", "temple"]), count, size=size, seed=0)])


@pytest.mark.parametrize(("size", "value"), [(16, 0), (50, 255), (257, None)])
def test_every_image_has_finite_descriptors(size: int, value: int | None) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, size, size, 3)) if value is None else np.full((2, size, size, 3), value)
    found = descriptors(pixels.astype(np.uint8))
    assert found.dtype == np.float32
    assert found.shape[0] == 2
    assert np.isfinite(found).all()


def test_descriptors_of_an_image_do_not_depend_on_the_others() -> None:
    pixels = photos()
    together = descriptors(pixels)
    alone = np.concatenate([descriptors(image[None]) for image in pixels])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-5)
    assert np.array_equal(descriptors(np.asfortranarray(pixels)), together)


def test_log_odds_are_those_of_the_same_network_in_torch() -> None:
    learnt, found = LearntChanges.load(), descriptors(photos(size=256)).astype(np.float64)
    values = learnt.to_tensors()
    layers = [nn.Linear(*values[f"weight{number}"].shape).double() for number in range(3)]
    for number, layer in enumerate(layers):
        layer.load_state_dict({"weight": values[f"weight{number}"].T, "bias": values[f"bias{number}"]})
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    standard = (torch.from_numpy(found) - values["centre"]) / values["scale"]
    with torch.inference_mode():
        probabilities = network(3 * torch.asinh(standard / 3)).softmax(1).numpy()
    expected = np.log(probabilities[:, 1:] / probabilities[:, :1])
    np.testing.assert_allclose(learnt.log_odds(found), expected, rtol=1e-6)
    small = descriptors(photos(size=32))
    assert np.array_equal(learnt.describe(small), small), "too small for log-odds"
    damaged = {**values, "weight1": values["weight1"][:-1]}
    with pytest.raises(WeightsError, match="weight1"):
        LearntChanges.from_tensors(damaged)
