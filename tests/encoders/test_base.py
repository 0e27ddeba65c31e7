"""Every encoder takes images from a source to features in order and in constant memory; a new one is a small class."""

import os
from collections.abc import Iterator
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
import torch

from discopatch.encoders import DiscriminatorEncoder, Encoder, Features, map_on_cores
from discopatch.encoders.base import choose_batch_size
from discopatch.images import Pixels, Refusal, Transform
from discopatch.pretrained import load_pretrained
from tests.samples import save_images, some_images


class MeanColour(Encoder):
    """The mean of each colour as statistics, that of all as a logit."""

    def __init__(self, *, batch_size: int = 8, prefetched: int = 0) -> None:
        super().__init__(Transform(size=64), patch_size=16, batch_size=batch_size)
        self.prefetched = prefetched

    def extract_pixels(self, pixels: Pixels) -> Features:
        means = pixels.mean((1, 2), dtype=np.float64).astype(np.float32)
        return Features(means.mean(1, keepdims=True), means)


@pytest.mark.parametrize("prefetched", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_every_image_comes_with_its_name_pixels_and_features_in_order(
    tmp_path: Path, batch_size: int, prefetched: int
) -> None:
    images = some_images()
    paths = save_images(tmp_path, images)
    for bad in (0, 1, 2, 6):
        paths[bad].write_bytes(b"no image at all")
    encoder = MeanColour(batch_size=batch_size, prefetched=prefetched)
    found = list(encoder.extract(paths))
    names = [item.name if isinstance(item, Refusal) else item[0].name for item in found]
    assert names == [str(path) for path in paths]
    assert [place for place, item in enumerate(found) if isinstance(item, Refusal)] == [0, 1, 2, 6]
    for item, image in zip(found, images, strict=True):
        if not isinstance(item, Refusal):
            assert np.array_equal(item[0].pixels, encoder.transform(image.pixels))
            assert all(map(np.array_equal, item[1], encoder.extract_pixels(item[0].pixels[None])))


def test_a_batch_of_nothing_but_bad_files_is_all_refusals(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    (batch,) = MeanColour().batches([tmp_path])
    assert batch.features is None
    results: list[float] = []
    assert all(isinstance(item, Refusal) for item in batch.pair(results))
    assert len(batch.items) == 2


@pytest.mark.parametrize("prefetched", [0, 1])
def test_an_endless_source_is_read_lazily(prefetched: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[Pixels]:
        while True:
            taken.append(1)
            yield np.full((64, 64, 3), len(taken) % 256, np.uint8)

    stream = MeanColour(batch_size=4, prefetched=prefetched).extract(endless(), workers=1)
    for _ in range(3):
        assert not isinstance(next(stream), Refusal)
    assert len(taken) <= 4 * (1 + prefetched)
    stream.close()  # type: ignore[attr-defined]  # a generator


# One image per core


@pytest.fixture
def _two_threads():
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(own)


@pytest.mark.usefixtures("_two_threads")
def test_results_come_in_order_from_threads_that_compute_alone_and_without_gradients() -> None:
    def found(item: int) -> tuple[int, int, int, bool]:
        return item, torch.get_num_threads(), get_ident(), torch.is_inference_mode_enabled()

    items, threads, idents, without_gradients = zip(*map_on_cores(found, range(20)), strict=True)
    assert items == tuple(range(20))
    assert set(threads) == {1}
    assert get_ident() not in idents
    assert all(without_gradients)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("name", [pytest.param("paper-v1", marks=pytest.mark.slow), "natural-small-v2"])
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


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_maps_on_threads_of_its_own() -> None:
    map_on_cores(lambda item: item, range(4))
    child = os.fork()
    if child == 0:
        os._exit(0 if map_on_cores(lambda item: item + 1, range(4)) == [1, 2, 3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("free", "batch_sizes"),  # GiB; of images of 64, 256, 512, 1024 and 8192 pixels along a side
    [
        (140, [128, 128, 32, 8, 1]),
        (24, [128, 64, 16, 4, 1]),
        (23, [128, 64, 16, 4, 1]),
        (7, [128, 16, 4, 1, 1]),
        (0, [1] * 5),
    ],
)
def test_the_default_batch_is_larger_on_a_gpu_with_free_memory(free: int, batch_sizes: list[int]) -> None:
    sides = (64, 256, 512, 1024, 8192)
    assert [choose_batch_size("cuda", free * 2**30, side**2) for side in sides] == batch_sizes
    assert [choose_batch_size("cpu", 0, side**2) for side in sides] == [8] * 5
