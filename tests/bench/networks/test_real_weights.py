"""A cat must be a cat: the real weights, through our code, on real photos."""

import pytest

from discopatch.bench.networks.base import PENULTIMATE, Backbone
from discopatch.bench.networks.fetch import BACKBONES, fetch_backbone, load_backbone
from discopatch.errors import WeightsError

from .samples import sample_pixels

pytestmark = pytest.mark.slow

# What ImageNet calls what is on the photo.
CONTENT = {"cat": range(281, 286), "coffee": (504, 967, 968), "motorcycle": (665, 670), "camera": (759, 872)}


@pytest.fixture(scope="module", params=list(BACKBONES))
def real_backbone(request: pytest.FixtureRequest) -> Backbone:
    """Each backbone with its weights, downloaded (95, 17 and 20 MB) where they are not in the cache, or skipped."""
    try:
        fetch_backbone(request.param)
    except WeightsError as error:
        pytest.skip(str(error))
    return load_backbone(request.param)


@pytest.mark.parametrize("photo", list(CONTENT))
def test_a_photo_is_what_it_shows(real_backbone: Backbone, photo: str) -> None:
    logits = real_backbone.classifier.logits(real_backbone.extract(sample_pixels(photo), [PENULTIMATE])[PENULTIMATE])
    assert int(logits[0].argmax()) in CONTENT[photo]
