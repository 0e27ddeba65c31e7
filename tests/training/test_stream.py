"""Training from tar shards that are read anew in every epoch, in an order that follows from seed and place alone."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discopatch.errors import NoImagesError, RunError
from discopatch.images import DEFAULT_LIMITS, Processes, Transform, Workers, open_index
from discopatch.training import Hardware, RunOptions, hardware, stream, train
from discopatch.training.checkpoint import RunFolder
from discopatch.training.stream import StreamedImages, StreamOrder
from tests.training.shards import write_shards
from tests.training.tiny import tiny_config

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WINDOW_SHARDS", 2)
    monkeypatch.setattr(stream, "WINDOW_IMAGES", 8)


def opened(
    folder: Path,
    cache: Path,
    *,
    batch: int = 4,
    stride: int | None = None,
    workers: Workers = 1,
    share: float = 1.0,
) -> StreamedImages:
    return StreamedImages(
        open_index(str(folder), cache),
        CPU,
        Transform(size=64),
        seed=3,
        share=share,
        batch=batch,
        stride=stride or batch,
        workers=workers,
        limits=DEFAULT_LIMITS,
    )


@settings(deadline=None)
@given(counts=COUNTS, seed=st.integers(0, 3), windows=st.sampled_from([(1, 1), (2, 8), (16, 65_536)]))
def test_every_epoch_holds_every_image_once_and_in_an_order_of_its_own(counts, seed, windows) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WINDOW_SHARDS", windows[0])
        patch.setattr(stream, "WINDOW_IMAGES", windows[1])
        order, total = StreamOrder(counts, seed=seed), sum(counts)
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WINDOW_SHARDS", 2)
        patch.setattr(stream, "WINDOW_IMAGES", 8)
        whole = StreamOrder(counts, seed=1, share=share).images(start, sum(cuts))
        parts = [
            StreamOrder(counts, seed=1, share=share).images(int(place), count)
            for place, count in zip(places[:-1], cuts, strict=True)
        ]
    assert np.array_equal(whole, np.concatenate(parts))


def test_seeds_differ_and_an_epoch_that_is_cut_shows_a_new_share_each_time(small_windows: None) -> None:
    counts = [20] * 10
    first, second = (StreamOrder(counts, seed=seed).images(0, 200) for seed in (0, 1))
    assert not np.array_equal(first, second)
    shares = StreamOrder(counts, seed=0, share=0.2).images(0, 6 * 40).reshape(6, 40)
    assert all(len(set(each.tolist())) == 40 for each in shares)
    assert len(np.unique(shares)) > 120


def test_neighbours_are_hardly_more_alike_than_chance_has_it() -> None:
    """Shards are sorted, as those of classes are: of 1,281 shards a window has about 66."""
    counts = np.full(1281, 1000)
    order = StreamOrder(counts, seed=0).images(0, 300_000)
    shards = order // 1000
    assert (shards[1:] == shards[:-1]).mean() < 2 / 66
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.1
    assert len(np.unique(shards[:512])) > 60
    batches = shards[: 512 * 500].reshape(500, 512).mean(1)  # a batch is a fair sample of all
    assert batches.std() < 1.5 * 1281 / np.sqrt(12 * 66)


def test_huge_and_small_shards_make_windows_of_some_of_them() -> None:
    plan = StreamOrder([200_000, *[10] * 20_000], seed=0)._make_plan(0)
    shards = np.diff(plan.first_shards)
    images = np.diff(plan.first_places)
    assert shards.min() >= stream.WINDOW_SHARDS
    assert images.min() >= stream.WINDOW_IMAGES
    assert plan.first_shards[-1] == 20_001
    assert plan.first_places[-1] == 400_000


@pytest.mark.parametrize("workers", [3, pytest.param(Processes(2), marks=pytest.mark.slow)])
def test_the_images_are_the_same_for_any_number_of_workers(tmp_path: Path, small_windows: None, workers) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9, 5), broken=(4, 11))
    found = []
    for each in (1, workers):
        images = opened(folder, tmp_path, workers=each)
        found.append([images.take(4 * step, 4) for step in range(15)])
        images.close()
    assert all(map(torch.equal, *found))


def test_a_batch_may_be_asked_for_twice_and_the_stream_goes_on_from_anywhere(
    tmp_path: Path, small_windows: None
) -> None:
    images = opened(write_shards(tmp_path / "shards", (7, 3, 9)), tmp_path, workers=2)
    batches = [images.take(4 * step, 4).clone() for step in range(8)]
    assert torch.equal(images.take(28, 4), batches[7])
    assert torch.equal(images.take(8, 4), batches[2])
    assert torch.equal(images.take(0, 12), torch.cat(batches[:3]))
    assert torch.equal(images.take(12, 4), batches[3])
    images.close()
    assert torch.equal(images.take(16, 4), batches[4])
    images.close()


def test_what_cannot_be_read_is_replaced_and_counted_the_same_each_time(tmp_path: Path, small_windows: None) -> None:
    broken = (0, 4, 11, 12, 17)
    folder = write_shards(tmp_path / "shards", (7, 3, 9, 5), broken=broken)
    index = open_index(str(folder), tmp_path)
    images = opened(folder, tmp_path, batch=6)
    order = StreamOrder(index.counts, seed=3).images(0, 48).reshape(8, 6)
    replaced = []
    for step, numbers in enumerate(order):
        assert images.take(6 * step, 6).flatten(1).float().std(1).min() > 0
        replaced.append(images.replaced)
        assert images.replaced == np.isin(numbers, broken).sum()
    assert sum(replaced) == 2 * len(broken)
    assert images.report.count == len(broken)
    images.close()


def test_shards_without_a_readable_image_end_the_run(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", (3, 2), broken=range(5))
    with pytest.raises(NoImagesError, match="5 of 5"):
        opened(folder, tmp_path).take(0, 4)


def test_ranks_take_disjoint_parts_of_every_epoch(tmp_path: Path, small_windows: None) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9, 5))
    ranks = [opened(folder, tmp_path, batch=4, stride=8) for _ in range(2)]
    alone = opened(folder, tmp_path, batch=8)
    for step in range(6):
        parts = [images.take(8 * step + 4 * rank, 4) for rank, images in enumerate(ranks)]
        assert torch.equal(torch.cat(parts), alone.take(8 * step, 8))
    for images in (*ranks, alone):
        images.close()


@pytest.mark.parametrize("config", [{}, {"weight_degraded": 1.0, "min_scale": 0.5}])
def test_a_run_from_shards_resumes_to_the_bit_and_shows_each_image(tmp_path: Path, small_windows: None, config) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9), broken=(5,))
    options = RunOptions(checkpoint_every=4, samples_every=4, log_every=2)
    cpu = Hardware(accelerator="cpu")
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    asked = tiny_config(steps=20, stream=True, **config)
    result = train(str(folder), whole.path, asked, cache=tmp_path, hardware=cpu, options=options)
    assert (result.images_seen, result.replaced) == (40, 2)
    train(str(folder), parts.path, replace(asked, steps=8), cache=tmp_path, hardware=cpu, options=options)
    again = replace(asked, stream=None)  # a run stays what it is
    result = train(str(folder), parts.path, again, cache=tmp_path, resume=True, hardware=cpu, options=options)
    assert (result.images_seen, result.replaced) == (40, 2)
    assert whole.losses.read_text() == parts.losses.read_text()
    assert whole.weights.stat().st_size == parts.weights.stat().st_size
    assert not list(tmp_path.glob("*/pixels.bin"))


def test_a_run_keeps_its_way_and_its_shards(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9))
    asked, cpu = tiny_config(steps=2, stream=True), Hardware(accelerator="cpu")
    train(str(folder), tmp_path / "run", asked, cache=tmp_path, hardware=cpu)
    with pytest.raises(RunError, match="stream was True"):
        train(str(folder), tmp_path / "run", replace(asked, stream=False), cache=tmp_path, resume=True, hardware=cpu)
    (folder / "shard-002.tar").unlink()
    with pytest.raises(RunError, match="not those"):
        train(str(folder), tmp_path / "run", asked, cache=tmp_path, resume=True, hardware=cpu)


def test_what_does_not_fit_in_memory_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_shards(tmp_path / "shards", (7, 3, 9))
    decoded = 19 * 64 * 64 * 3
    cpu = Hardware(accelerator="cpu")
    for memory, disk, streams in ((2 * decoded, 1e9, False), (2 * decoded - 2, 1e9, True), (1e9, decoded - 1, True)):
        monkeypatch.setattr(hardware, "usable_memory", lambda memory=memory: memory)
        monkeypatch.setattr(hardware, "free_disk", lambda folder, disk=disk: disk)
        name = f"{memory}-{disk}"
        train(str(folder), tmp_path / name, tiny_config(steps=1), cache=tmp_path / f"{name}.cache", hardware=cpu)
        assert RunFolder(tmp_path / name).streams == streams
        assert len(list(tmp_path.glob(f"{name}.cache/*/pixels.bin"))) == (0 if streams else 1)


def test_loose_images_are_decoded_even_where_memory_is_short(photos, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(hardware, "usable_memory", lambda: 1)
    train(str(photos), tmp_path / "run", tiny_config(steps=1), cache=tmp_path, hardware=Hardware(accelerator="cpu"))
    assert not RunFolder(tmp_path / "run").streams


MEMORY = """
import resource, sys
from pathlib import Path
import torch
from discopatch.images import DEFAULT_LIMITS, Transform, open_index
from discopatch.training.stream import StreamedImages
shards, cache = sys.argv[1:]
index = open_index(shards, Path(cache))
images = StreamedImages(
    index, torch.device("cpu"), Transform(size=256), seed=0, batch=16, stride=16, workers=2, limits=DEFAULT_LIMITS
)
images.take(0, 16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(path.stat().st_size for path in Path(shards).iterdir())
seen = 16
while seen < len(index):
    images.take(seen, 16)
    seen += 16
images.close()
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(total, len(index) * 256 * 256 * 3, grown)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    """The same tar in many hard links: 200 MB of shards, 120 MB of pixels, and a few batches of memory."""
    folder = write_shards(tmp_path / "shards", (20,), size=512)
    first = folder / "shard-000.tar"
    for number in range(1, 30):
        os.link(first, folder / f"shard-{number:03d}.tar")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(folder), str(tmp_path / "cache")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    shards, pixels, grown = map(int, done.stdout.split())
    assert shards > 150e6
    assert pixels > 110e6
    assert grown < 50e6
