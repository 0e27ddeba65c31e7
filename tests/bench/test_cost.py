"""Multiplications are counted as the layers do them, and latencies are measured."""

import time

from discopatch.bench.cost import median_milliseconds, multiplications
from discopatch.model import Architecture
from discopatch.training import get_preset

PAPER = get_preset("paper").architecture
TINY = Architecture(patch_size=32, hidden=(8, 16), latent=8)


def test_the_papers_64_patches_are_14_7_billion_and_one_dense_pass_a_quarter_of_it() -> None:
    assert multiplications(PAPER, size=256, patches=64) == 14_722_007_040 == 4 * multiplications(PAPER, size=256)


def test_the_median_duration_is_in_milliseconds() -> None:
    assert 5 <= median_milliseconds(lambda: time.sleep(0.005), seconds=0.02) < 500
