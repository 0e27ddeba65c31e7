"""Images and draws of a step follow from the seed and the place in the run alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.errors import NoImagesError
from discopatch.images import DEFAULT_LIMITS, Processes, Workers, open_index
from discopatch.training import batches
from discopatch.training.batches import ImageOrder, StreamedImages, is_too_large, plain_shards, step_generator
from tests.training.shards import write_shards
from tests.training.tiny import tiny_config

CPU = torch.device("cpu")
COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)


def opened(folder: Path, cache: Path, *, stride: int = 4, workers: Workers = 1) -> StreamedImages:
    index, config = open_index(str(folder)), tiny_config(seed=3)
    return StreamedImages(index, CPU, config, stride=stride, workers=workers, limits=DEFAULT_LIMITS)


@settings(deadline=None)
@given(counts=COUNTS, seed=st.integers(0, 3))
def test_every_epoch_holds_every_image_once_and_in_an_order_of_its_own(counts, seed) -> None:
    order, total = ImageOrder(counts, seed=seed), sum(counts)
    epochs = [order.images(epoch * total, total).tolist() for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(total))] * 3
    if total > 20:
        assert len({tuple(epoch) for epoch in epochs}) == 3


@settings(deadline=None)
@given(
    counts=COUNTS,
    start=st.integers(0, 200),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    share=st.sampled_from([0.2, 1.0]),
)
def test_the_order_does_not_depend_on_where_it_was_interrupted(counts, start, cuts, share) -> None:
    places = np.cumsum([start, *cuts])
    whole = ImageOrder(counts, seed=1, share=share).images(start, sum(cuts))
    parts = [
        ImageOrder(counts, seed=1, share=share).images(int(place), count)
        for place, count in zip(places[:-1], cuts, strict=True)
    ]
    assert np.array_equal(whole, np.concatenate(parts))


def test_seeds_differ_and_an_epoch_that_is_cut_shows_a_new_share_each_time() -> None:
    counts = [20] * 10
    first, second = (ImageOrder(counts, seed=seed).images(0, 200) for seed in (0, 1))
    assert not np.array_equal(first, second)
    shares = ImageOrder(counts, seed=0, share=0.2).images(0, 6 * 40).reshape(6, 40)
    assert all(len(set(each.tolist())) == 40 for each in shares)
    assert len(np.unique(shares)) > 120


def test_few_shards_are_read_at_a_time_and_their_images_are_mixed() -> None:
    shards = ImageOrder(np.full(1281, 1000), seed=0).images(0, 300_000) // 1000
    assert (shards[1:] == shards[:-1]).mean() < 0.07
    assert max(len(np.unique(part)) for part in shards[: 16_000 * 18].reshape(18, -1)) == 16


def test_every_step_and_rank_has_draws_of_its_own_and_always_the_same() -> None:
    def draw(step: int, rank: int, seed: int = 0) -> tuple[float, ...]:
        return tuple(torch.randn(4, generator=step_generator(seed, step, rank, "cpu")).tolist())

    assert draw(3, 1) == draw(3, 1)
    assert len({draw(0, 0), draw(1, 0), draw(0, 1), draw(0, 0, seed=1)}) == 4


@pytest.mark.parametrize("workers", [3, pytest.param(Processes(2), marks=pytest.mark.slow)])
def test_streamed_images_are_the_same_for_any_workers_and_from_any_place(tmp_path: Path, workers) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9, 5), broken=(4, 11))
    alone, several = (opened(folder, tmp_path, workers=each) for each in (1, workers))
    expected = [alone.take(4 * step, 4).clone() for step in range(12)]
    assert all(torch.equal(several.take(4 * step, 4), each) for step, each in enumerate(expected))
    assert torch.equal(several.take(8, 4), expected[2])
    assert torch.equal(several.take(0, 12), torch.cat(expected[:3]))
    alone.close()
    several.close()


def test_unreadable_images_are_replaced_and_counted_the_same_each_time(tmp_path: Path) -> None:
    broken = (0, 4, 11, 12, 17)
    folder = write_shards(tmp_path / "shards", (7, 3, 9, 5), broken=broken)
    images = opened(folder, tmp_path, stride=6)
    order = ImageOrder(open_index(str(folder)).counts, seed=3).images(0, 48).reshape(8, 6)
    for step, numbers in enumerate(order):
        assert images.take(6 * step, 6).flatten(1).float().std(1).min() > 0
        assert images.replaced == np.isin(numbers, broken).sum()
    assert images.report.count == len(broken)
    images.close()


def test_shards_without_a_readable_image_end_the_run(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", (3, 2), broken=range(5))
    with pytest.raises(NoImagesError):
        opened(folder, tmp_path).take(0, 4)


def test_ranks_take_disjoint_parts_of_every_epoch(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9, 5))
    ranks, alone = [opened(folder, tmp_path, stride=8) for _ in range(2)], opened(folder, tmp_path, stride=8)
    for step in range(6):
        parts = [images.take(8 * step + 4 * rank, 4) for rank, images in enumerate(ranks)]
        assert torch.equal(torch.cat(parts), alone.take(8 * step, 8))
    for images in (*ranks, alone):
        images.close()


def test_shards_are_streamed_if_their_images_fit_neither_memory_nor_disk(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_shards(tmp_path / "shards", (7, 3, 9)))
    index = open_index(folder)
    decoded = 19 * 64 * 64 * 3
    for memory, large in ((2 * decoded, False), (2 * decoded - 2, True)):
        monkeypatch.setattr(batches, "usable_memory", lambda memory=memory: memory)
        assert is_too_large(index, folder, tiny_config(), tmp_path / "cache", DEFAULT_LIMITS) == large
    assert plain_shards(str(photos), DEFAULT_LIMITS) is None


MEMORY = """
import resource, sys
from dataclasses import replace
from pathlib import Path
import torch
from discopatch.images import DEFAULT_LIMITS, Transform, open_index
from discopatch.training.batches import StreamedImages
from discopatch.training.config import get_preset
shards, cache = sys.argv[1:]
index, config = open_index(shards), get_preset("tiny")
images = StreamedImages(index, torch.device("cpu"), config, stride=16, workers=2, limits=DEFAULT_LIMITS)
images.take(0, 16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for start in range(16, len(index), 16):
    images.take(start, 16)
images.close()
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(len(index) * 256 * 256 * 3, grown)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    """The same tar in many hard links: 120 MB of pixels, and a few batches of memory."""
    folder = write_shards(tmp_path / "shards", (20,), size=512)
    for number in range(1, 30):
        os.link(folder / "shard-000.tar", folder / f"shard-{number:03d}.tar")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(folder), str(tmp_path / "cache")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    pixels, grown = map(int, done.stdout.split())
    assert pixels > 110e6
    assert grown < 50e6
