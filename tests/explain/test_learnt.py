"""The network that was taught known changes: what it computes, what it knows, what it refuses."""

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.corruptions import corrupt
from discopatch.errors import WeightsError
from discopatch.explain.descriptors import descriptors
from discopatch.explain.learnt import LearntChanges
from discopatch.heads import PROBES
from discopatch.images import Pixels, Transform
from discopatch.images.samples import sample_photos

NAMES = list(PROBES)


PHOTOS = ("astronaut", "coffee", "rocket", "motorcycle", "cat", "temple", "flower")


def photos(*, size: int = 256) -> Pixels:
    return np.stack([Transform(size=size)(photo) for photo in sample_photos(PHOTOS).values()])


def test_log_odds_are_those_of_the_same_network_in_torch() -> None:
    learnt = LearntChanges.load()
    found = descriptors(photos()).astype(np.float64)
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


@pytest.mark.parametrize(
    ("corruption", "change"),
    [("gaussian_noise", "noise"), ("gaussian_blur", "blur"), ("jpeg_compression", "compression"), ("fog", "haze")],
)
def test_photos_that_are_degraded_by_other_code_look_more_like_that_change(corruption: str, change: str) -> None:
    clean = photos()
    degraded = np.stack([corrupt(image, corruption, 3, seed=seed) for seed, image in enumerate(clean)])
    before, after = (LearntChanges.load().log_odds(descriptors(each).astype(np.float64)) for each in (clean, degraded))
    assert [NAMES[each] for each in (after - before).argmax(1)].count(change) > len(PHOTOS) / 2


def test_a_small_picture_has_its_descriptors_alone() -> None:
    learnt = LearntChanges.load()
    small, large = photos(size=32), photos(size=64)
    assert np.array_equal(learnt.describe(small), descriptors(small))
    assert learnt.describe(large).shape[1] == descriptors(large).shape[1] + len(PROBES)


def test_tensors_of_other_shapes_are_refused() -> None:
    tensors = LearntChanges.load().to_tensors()
    with pytest.raises(WeightsError, match="weight1"):
        LearntChanges.from_tensors({**tensors, "weight1": tensors["weight1"][:-1]})
    with pytest.raises(WeightsError, match="scale"):
        LearntChanges.from_tensors({**tensors, "scale": 0 * tensors["scale"]})
