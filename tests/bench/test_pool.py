"""Processes hand back what was asked of them, in order."""

import os
import sys
from functools import partial

import numpy as np

from discopatch.bench.dataset import ImageSet, list_files
from discopatch.bench.pool import PART, CorruptionPool
from discopatch.bench.preprocessing import Corrupt
from discopatch.corruptions import corrupt
from discopatch.images.decode import decode
from tests.bench.bench_samples import save_images


def test_images_come_in_the_order_of_the_calls_each_with_its_own_seed(tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("images") / "photos"
    save_images(folder, ["coffee"], PART + 3)
    images = ImageSet("photos", list_files(folder), (Corrupt("gaussian_noise", 2),))
    before = dict(os.environ)
    with CorruptionPool(1, frost=False) as pool:
        assert list(pool.stream(partial(divmod, number, 3) for number in range(20))) == [
            divmod(number, 3) for number in range(20)
        ]
        parts = list(pool.stream(part.load for part in images.parts(PART)))
        assert not next(pool.stream([partial(eval, "'torch' in __import__('sys').modules")])), "it costs memory"
        assert next(pool.stream([partial(os.getenv, "OMP_NUM_THREADS")])) == "1"
    assert "torch" in sys.modules
    assert dict(os.environ) == before
    assert [len(part) for part in parts] == [PART, 3]
    expected = corrupt(decode(images.files[PART + 1].read()), "gaussian_noise", 2, seed=PART + 1)
    assert np.array_equal(parts[1][1], expected)
