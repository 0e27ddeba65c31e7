"""One image per core: results in order, and the same bits for any number of threads."""

import os
from threading import get_ident

import numpy as np
import pytest
import torch

from discopatch.encoders import DiscriminatorEncoder, map_on_cores
from discopatch.pretrained import load_pretrained


@pytest.fixture(autouse=True)
def _two_threads():
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(own)


def test_results_come_in_order_from_threads_that_compute_alone_and_without_gradients() -> None:
    def found(item: int) -> tuple[int, int, int, bool]:
        return item, torch.get_num_threads(), get_ident(), torch.is_inference_mode_enabled()

    items, threads, idents, without_gradients = zip(*map_on_cores(found, range(20)), strict=True)
    assert items == tuple(range(20))
    assert set(threads) == {1}
    assert get_ident() not in idents
    assert all(without_gradients)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("name", [pytest.param("natural-v2", marks=pytest.mark.slow), "natural-small-v1"])
def test_features_are_the_same_to_the_bit_alone_together_and_for_any_number_of_threads(name: str) -> None:
    encoder = DiscriminatorEncoder(load_pretrained(name), kinds=("logits", "statistics", "pooled"))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 256, 256, 3), np.uint8)
    expected = encoder.extract_pixels(pixels)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for found in (encoder.extract_pixels(pixels), encoder.extract_pixels(pixels[2:3])):
            rows = slice(None) if len(found.logits) == 5 else slice(2, 3)
            assert np.array_equal(found.logits, expected.logits[rows])
            assert np.array_equal(found.statistics, expected.statistics[rows])
            assert np.array_equal(found.pooled, expected.pooled[rows])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_maps_on_threads_of_its_own() -> None:
    map_on_cores(lambda item: item, range(4))
    child = os.fork()
    if child == 0:
        os._exit(0 if map_on_cores(lambda item: item + 1, range(4)) == [1, 2, 3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0
