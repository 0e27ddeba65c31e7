"""The real weights, fetched once into the user's cache."""

import pytest

from discopatch.baselines.backbones import BACKBONES, load_backbone
from discopatch.baselines.backbones.backbone import Backbone
from discopatch.baselines.backbones.fetch import UnreachableError, fetch


@pytest.fixture(scope="session", params=list(BACKBONES))
def real(request: pytest.FixtureRequest) -> Backbone:
    """Each backbone with its weights; where they are not in the cache they are taken (95 and 17 MB), or skipped."""
    try:
        fetch(request.param)
    except UnreachableError as error:
        pytest.skip(str(error))
    return load_backbone(request.param)
