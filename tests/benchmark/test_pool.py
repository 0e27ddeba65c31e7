"""Processes hand back what was asked of them, in order."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.storage import LOSSLESS, Storage
from discopatch.images.corrupt import corrupt


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1, frost=False) as pool:
        yield pool


def test_results_come_in_the_order_of_the_calls(pool: Pool) -> None:
    assert list(pool.stream(partial(divmod, number, 3) for number in range(20))) == [
        divmod(number, 3) for number in range(20)
    ]


def test_corrupted_pictures_come_in_order_each_with_its_own_seed(pool: Pool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (PART + 3, 32, 32, 3), dtype=np.uint8)
    cells = [("gaussian_noise", 2), ("jpeg_compression", 1)]
    found = list(pool.corrupted(pixels, cells, LOSSLESS))
    assert [(name, severity, len(part)) for name, severity, part in found] == [
        (name, severity, size) for name, severity in cells for size in (PART, 3)
    ]
    assert np.array_equal(found[1][2][1], corrupt(pixels[PART + 1], "gaussian_noise", 2, seed=PART + 1))
    (_, _, stored), *_ = pool.corrupted(pixels[:2], cells[:1], Storage(92))
    assert np.array_equal(stored[1], Storage(92).store(found[0][2][1]))
