"""What the tests of all corruptions share."""

import numpy as np
import pytest

from discopatch.corruptions import SEVERITIES

every_severity = pytest.mark.parametrize("severity", SEVERITIES)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)
