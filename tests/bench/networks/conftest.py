"""The real weights, fetched once into the user's cache."""

import pytest

from discopatch.bench.networks.base import Backbone
from discopatch.bench.networks.fetch import BACKBONES, fetch_backbone, load_backbone
from discopatch.errors import WeightsError


@pytest.fixture(scope="session", params=list(BACKBONES))
def real_backbone(request: pytest.FixtureRequest) -> Backbone:
    """Each backbone with its weights, downloaded (95 and 17 MB) where they are not in the cache, or skipped."""
    try:
        fetch_backbone(request.param)
    except WeightsError as error:
        pytest.skip(str(error))
    return load_backbone(request.param)
