"""Large images pass in tiles, with the features and the score of one pass."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from discopatch.demo import sample_photos
from discopatch.encoders import DiscriminatorEncoder, Features
from discopatch.encoders import places as encoder_places
from discopatch.heads.places import PlaceModel, without_scale
from discopatch.images import Pixels, Transform
from discopatch.model import networks
from discopatch.model.patches import tiles
from discopatch.pretrained import load_weights
from tests.samples import TINY_EMBEDDED, inverted_weights, new_detector, one_camera, tiny_weights

ALL_KINDS = ("logits", "statistics", "pooled", "places")


@pytest.fixture
def in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets images of few pixels pass in small tiles, whose halos are those of large ones."""
    small = tuple((layers, side) for (layers, _), side in zip(networks.STAGES, (96, 128, 256), strict=True))
    monkeypatch.setattr(networks, "STAGES", small)
    monkeypatch.setattr(encoder_places, "MAX_PIXELS", 2**12)
    monkeypatch.setattr(encoder_places, "SIDE", 32)


def photo(height: int, width: int) -> Pixels:
    return np.array(Image.fromarray(sample_photos(["temple"])["temple"]).resize((width, height)))


def place_model(features: Features, sizes: tuple[int, ...]) -> PlaceModel:
    """A comparison with places of these features, by another centre and spread at each position."""
    places = features.places.reshape(-1, features.places.shape[-1])
    rng = np.random.default_rng(0)
    grids = {"centres": rng.normal(size=(7, 9)), "spreads": rng.uniform(0.5, 2, (7, 9))}
    model = without_scale([places[:: len(places) // 300]], sizes).hold(**grids)
    model.derive()
    return model


@pytest.mark.parametrize("read", [partial(load_weights, "natural-v2"), partial(inverted_weights, TINY_EMBEDDED)])
@pytest.mark.parametrize("shape", [(320, 960), (200, 200)], ids=str)
def test_tiles_give_the_features_of_one_pass(shape: tuple[int, int], read, request: pytest.FixtureRequest) -> None:
    """Statistics include the embedding of the deeper network."""
    weights, images = read(), photo(*shape)[None]
    architecture = weights.discriminator.architecture
    make = partial(DiscriminatorEncoder, weights, transform=Transform(size=200), kinds=ALL_KINDS)
    features = make().extract_pixels(images)
    assert features.statistics.shape == (1, 2 * sum(architecture.hidden) + architecture.embedding)
    model = place_model(features, architecture.hidden[architecture.place_layers])
    expected = features, make(compare=model).extract_pixels(images)
    request.getfixturevalue("in_tiles")
    for compare, whole in zip((None, model), expected, strict=True):
        found = make(compare=compare).extract_pixels(images)
        for name, values in found._asdict().items():
            within = 0.005 if name == "places" else 1e-4  # in float16
            np.testing.assert_allclose(values, getattr(whole, name), rtol=within, atol=within, err_msg=name)


def test_tiles_give_the_score_of_one_pass(request: pytest.FixtureRequest) -> None:
    detector = new_detector(inverted_weights(), resolution=192).fit(one_camera(30, size=192))
    images = one_camera(3, size=192, seed=1)
    expected, explained = detector.score(images), detector.explain(images[0].pixels)
    request.getfixturevalue("in_tiles")
    np.testing.assert_allclose(detector.score(images), expected, rtol=1e-4)
    np.testing.assert_array_equal(detector.score(images[1:]), detector.score(images)[1:])
    np.testing.assert_allclose(detector.explain(images[0].pixels).anomaly_map, explained.anomaly_map, atol=1e-3)


def test_a_network_that_normalises_over_the_image_keeps_one_pass(request: pytest.FixtureRequest) -> None:
    encoder = DiscriminatorEncoder(tiny_weights(), kinds=("logits", "statistics"))
    expected = encoder.extract_pixels(photo(96, 160)[None])
    request.getfixturevalue("in_tiles")
    assert all(map(np.array_equal, encoder.extract_pixels(photo(96, 160)[None]), expected))


def test_cores_cover_an_image_once_and_are_read_with_their_halo() -> None:
    image = torch.arange(1000 * 700).view(1, 1, 1000, 700)
    counts = torch.zeros_like(image)
    for core, read, inner in tiles(1000, 700, side=256, halo=40):
        counts[..., *core] += 1
        assert torch.equal(image[..., *read][..., *inner], image[..., *core])
        assert max(each.stop - each.start for each in core) < 256 + 32
        assert core[0].start % 32 == core[1].start % 32 == 0
    assert bool((counts == 1).all())
