"""A score is its own image's alone: the same with any neighbours, batches, threads and sources."""

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discopatch.images import NoImagesError, Pixels, Refusal, Transform
from discopatch.model import Discriminator
from discopatch.model.weights import Weights
from discopatch.patches import cut, scoring_corners, to_unit
from discopatch.scoring import Score, Scorer, SigmoidHead

from .samples import TINY, numbers, save_pictures, some_pictures, tiny_weights


def scores_of(source: object, *, workers: int = 1, **options: Any) -> list[float]:
    return numbers(Scorer(tiny_weights(), patches=4, **options).score(source, workers=workers))


def test_a_score_is_the_head_of_the_logits_of_the_images_patches() -> None:
    weights, picture = tiny_weights(), some_pictures()[0]
    (score,) = numbers(Scorer(weights, patches=5, seed=3).score(picture))
    pixels = torch.from_numpy(weights.transform(picture.pixels))
    corners = scoring_corners("random", 5, size=64, patch_size=32, seed=3)
    with torch.no_grad():
        logits = weights.discriminator.eval()(to_unit(cut(pixels[None], corners[None], 32)))
    assert score == -float(logits.double().mean())


def test_neighbours_never_change_a_score() -> None:
    pictures = some_pictures()
    together = scores_of(pictures)
    assert len(set(together)) == len(together), "different pictures"
    assert [scores_of([picture])[0] for picture in pictures] == together
    assert scores_of(pictures[::-1])[::-1] == together
    assert scores_of([pictures[0], *pictures[5:]]) == [together[0], *together[5:]]


@torch.inference_mode()
def test_images_that_pass_together_as_on_a_gpu_do_not_mix() -> None:
    scorer = Scorer(tiny_weights(), patches=4)
    pictures = torch.stack([torch.from_numpy(scorer.weights.transform(each.pixels)) for each in some_pictures()])
    alone = torch.cat([scorer._logits(picture[None]) for picture in pictures])
    torch.testing.assert_close(scorer._logits(pictures), alone, rtol=1e-5, atol=1e-6)


def test_the_size_of_the_batch_never_changes_a_score() -> None:
    pictures = some_pictures()
    first, *others = (scores_of(pictures, batch_size=size) for size in (1, 3, 8, 100))
    assert all(other == first for other in others)


def test_the_number_of_workers_never_changes_a_score() -> None:
    pictures = some_pictures()
    assert scores_of(pictures, workers=1) == scores_of(pictures, workers=4)


def test_scoring_twice_gives_the_same() -> None:
    scorer, pictures = Scorer(tiny_weights(), patches=4), some_pictures()
    assert numbers(scorer.score(pictures)) == numbers(scorer.score(pictures))


def test_weights_score_the_same_after_a_round_trip(tmp_path: Path) -> None:
    """Whatever memory order the discriminator was in before."""
    torch.manual_seed(0)
    pictures = some_pictures()
    for weights in (tiny_weights(), Weights(Discriminator(TINY), Transform(size=64))):
        weights.save(tmp_path / "weights.safetensors")
        again = Weights.load(tmp_path / "weights.safetensors")
        before, after = (numbers(Scorer(each, patches=4).score(pictures)) for each in (weights, again))
        assert before == after


def test_names_and_order_are_those_of_the_source() -> None:
    pictures = some_pictures()
    results = Scorer(tiny_weights(), patches=4, batch_size=3).score(pictures)
    assert [result.name for result in results] == [picture.name for picture in pictures]


def test_a_folder_a_shard_and_a_list_give_the_same_scores(tmp_path: Path) -> None:
    paths = save_pictures(tmp_path / "folder", some_pictures())
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for path in paths:
            shard.add(path, path.name)
    by_name = []
    for source in (tmp_path / "folder", tmp_path / "shard.tar", [str(path) for path in paths]):
        results = list(Scorer(tiny_weights(), patches=4).score(source))
        by_name.append(
            {Path(result.name).name: number for result, number in zip(results, numbers(results), strict=True)}
        )
    assert len(by_name[0]) == len(paths)
    assert by_name[0] == by_name[1] == by_name[2]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_bad_file_is_a_refusal_in_its_place(tmp_path: Path, batch_size: int) -> None:
    paths = save_pictures(tmp_path, some_pictures())
    good = scores_of(paths)
    paths[2].write_bytes(b"no image at all")
    paths[7].write_bytes(b"")
    results = list(Scorer(tiny_weights(), patches=4, batch_size=batch_size).score(paths))
    assert [result.name for result in results] == [str(path) for path in paths]
    assert [number for number, result in enumerate(results) if isinstance(result, Refusal)] == [2, 7]
    assert [result.score for result in results if isinstance(result, Score)] == [
        score for number, score in enumerate(good) if number not in (2, 7)
    ]


def test_a_batch_of_nothing_but_bad_files_is_all_refusals(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.png").write_bytes(b"")
    assert all(isinstance(result, Refusal) for result in Scorer(tiny_weights(), patches=4).score(tmp_path))


def test_a_path_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoImagesError, match="no images in the folder"):
        list(Scorer(tiny_weights(), patches=4).score(tmp_path))


def test_an_endless_stream_is_scored_as_it_comes() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Pixels]:
        while True:
            taken.append(1)
            yield np.full((64, 64, 3), len(taken) % 256, np.uint8)

    stream = Scorer(tiny_weights(), patches=2, batch_size=4).score(endless(), workers=1)
    for _ in range(3):
        assert isinstance(next(stream), Score)
    assert len(taken) <= 4
    stream.close()  # type: ignore[attr-defined]  # a generator


def test_grid_and_random_are_different_places() -> None:
    pictures = some_pictures()
    grid = scores_of(pictures, sampling="grid")
    assert grid == scores_of(pictures, sampling="grid", seed=5), "a grid has no seed"
    assert grid != scores_of(pictures, sampling="random")


def test_the_seed_decides_the_places() -> None:
    pictures = some_pictures()
    assert scores_of(pictures, seed=1) == scores_of(pictures, seed=1)
    assert scores_of(pictures, seed=1) != scores_of(pictures, seed=2)


def test_the_head_can_be_chosen() -> None:
    assert all(0 <= score <= 1 for score in scores_of(some_pictures(), head=SigmoidHead()))


def test_scoring_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    scores_of(some_pictures())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampling": "spiral"}, "unknown sampling 'spiral': choose random or grid"),
        ({"patches": 0}, "0 patches: give at least 1"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
    ],
)
def test_a_wrong_option_is_refused_before_any_image(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scorer(tiny_weights(), **options)


def test_patches_larger_than_the_pictures_are_refused() -> None:
    small = Weights(tiny_weights().discriminator, Transform(size=16))
    with pytest.raises(ValueError, match="patch of 32 pixels does not fit a picture of 16"):
        Scorer(small)


MEMORY = """
import re, sys
from pathlib import Path
import numpy as np, torch
from discopatch.images import Transform
from discopatch.model import Architecture, Discriminator
from discopatch.model.weights import Weights
from discopatch.scoring import Scorer

torch.set_num_threads(1)
architecture = Architecture(patch_size=32, hidden=(4,), latent=4)
scorer = Scorer(Weights(Discriminator(architecture), Transform(size=32)), patches=1)
pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)

def peak():
    # Not getrusage: a child process starts with its parent's peak there.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

stream = scorer.score((pixels for _ in range(20_000)), workers=2)
for number, _ in enumerate(stream, start=1):
    if number == 2_000:
        before = peak()
print(number, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_20_000_images_need_no_more_memory_than_2_000() -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    images, growth_in_kilobytes = map(int, done.stdout.split())
    assert images == 20_000
    assert growth_in_kilobytes < 30_000, "the pictures alone are 55,000"
