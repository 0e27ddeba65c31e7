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
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images import NoImagesError, Picture, Pixels, Refusal, Transform
from discopatch.model import Discriminator
from discopatch.model.blocks import Block
from discopatch.model.discriminator import SMALLEST_VARIANCE
from discopatch.model.weights import Weights
from discopatch.patches import Sampling, cut, grid_corners, scoring_corners, to_unit
from discopatch.scoring import Evidence, Score, Scorer, SigmoidHead
from discopatch.scoring.scorer import Inspected

from .samples import TINY, numbers, save_pictures, some_pictures, tiny_weights

SAMPLINGS: tuple[Sampling, ...] = ("random", "grid", "dense")


def scores_of(source: object, *, workers: int = 1, **options: Any) -> list[float]:
    return numbers(Scorer(tiny_weights(), patches=4, **options).score(source, workers=workers))


def test_a_score_is_the_head_of_the_logits_of_the_images_patches() -> None:
    weights, picture = tiny_weights(), some_pictures()[0]
    (score,) = numbers(Scorer(weights, patches=5, seed=3).score(picture))
    pixels = torch.from_numpy(weights.transform(picture.pixels))
    corners = scoring_corners("random", 5, size=64, patch_size=32, seed=3)
    with torch.no_grad():
        logits = weights.discriminator.eval()(to_unit(cut(pixels[None], corners[None], 32)))
    assert score == pytest.approx(-float(logits.double().mean()), rel=0, abs=1e-12)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_neighbours_never_change_a_score(sampling: Sampling) -> None:
    pictures = some_pictures()
    together = scores_of(pictures, sampling=sampling)
    assert len(set(together)) == len(together), "different pictures"
    assert [scores_of([picture], sampling=sampling)[0] for picture in pictures] == together
    assert scores_of(pictures[::-1], sampling=sampling)[::-1] == together
    assert scores_of([pictures[0], *pictures[5:]], sampling=sampling) == [together[0], *together[5:]]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_neighbours_never_change_what_is_seen_of_an_image(sampling: Sampling) -> None:
    scorer, pictures = Scorer(tiny_weights(), patches=4, sampling=sampling), pixels_of(some_pictures())
    together = scorer.inspect_pixels(pictures)
    for place in range(len(pictures)):
        alone = scorer.inspect_pixels(pictures[place : place + 1])
        assert np.array_equal(alone.logits, together.logits[place : place + 1])
        assert np.array_equal(alone.statistics, together.statistics[place : place + 1])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@torch.inference_mode()
def test_images_that_pass_together_as_on_a_gpu_do_not_mix(sampling: Sampling) -> None:
    scorer = Scorer(tiny_weights(), patches=4, sampling=sampling)
    pictures = torch.from_numpy(pixels_of(some_pictures()))
    alone, together = scorer.inspect_pixels(pictures.numpy()), scorer._evidence(pictures)
    np.testing.assert_allclose(together.logits, alone.logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together.statistics, alone.statistics, rtol=1e-4, atol=1e-5)


def pixels_of(pictures: list[Picture]) -> Pixels:
    """Through the transform of the tiny weights."""
    return np.stack([tiny_weights().transform(picture.pixels) for picture in pictures])


def seen_by_hand(network: Discriminator, x: Tensor) -> tuple[NDArray[np.float64], Tensor]:
    """Layer by layer with torch's own functions, all of `x` one group: the statistics, and the last feature map."""
    statistics = []
    for block in network.blocks:
        assert isinstance(block, Block)
        x = F.conv2d(x, block.conv.weight, block.conv.bias, stride=2, padding=1)
        values = x.double().numpy()
        statistics += [values.mean((0, 2, 3)), np.log(values.var((0, 2, 3)) + SMALLEST_VARIANCE)]
        x = F.batch_norm(x, None, None, block.norm.weight, block.norm.bias, training=True, eps=1e-5)  # type: ignore[arg-type]
        x = F.leaky_relu(x)
    return np.concatenate(statistics), x


@torch.no_grad()
def test_a_dense_look_judges_every_window_of_the_last_feature_map() -> None:
    scorer, pixels = Scorer(tiny_weights(), sampling="dense"), pixels_of(some_pictures(1))
    network, cells = scorer.weights.discriminator, TINY.cells
    found = scorer.inspect_pixels(pixels)
    assert found.logits.shape == (2, 9 * 9), "64 pixels are 16 cells, a patch is 8"
    for picture, logits, statistics in zip(pixels, found.logits, found.statistics, strict=True):
        expected, features = seen_by_hand(network, to_unit(torch.from_numpy(picture)[None]).permute(0, 3, 1, 2))
        np.testing.assert_allclose(statistics, expected, rtol=1e-4, atol=1e-5)
        by_hand = [
            float(features[0, :, top : top + cells, left : left + cells].flatten() @ network.head.weight[0])
            + float(network.head.bias)
            for top in range(9)
            for left in range(9)
        ]
        np.testing.assert_allclose(logits, by_hand, rtol=1e-4, atol=1e-5)


def test_a_dense_look_at_a_picture_of_one_patch_is_a_look_at_that_patch() -> None:
    weights = Weights(tiny_weights().discriminator, Transform(size=32))
    pixels = pixels_of(some_pictures(1))[:, 10:42, 20:52]
    dense, cut_out = (Scorer(weights, sampling=each, patches=1).inspect_pixels(pixels) for each in ("dense", "grid"))
    assert dense.logits.shape == (2, 1)
    assert np.array_equal(dense.logits, cut_out.logits)
    assert np.array_equal(dense.statistics, cut_out.statistics)


def test_a_dense_look_has_no_places_to_choose() -> None:
    pictures = some_pictures()
    assert scores_of(pictures, sampling="dense", seed=5) == scores_of(pictures, sampling="dense")
    few, many = (Scorer(tiny_weights(), sampling="dense", patches=patches) for patches in (1, 64))
    assert numbers(few.score(pictures)) == numbers(many.score(pictures))


@torch.no_grad()
def test_the_statistics_of_patches_are_those_of_all_of_them_together() -> None:
    scorer, pixels = Scorer(tiny_weights(), patches=5, seed=3), pixels_of(some_pictures(1))
    corners = scoring_corners("random", 5, size=64, patch_size=32, seed=3)
    found = scorer.inspect_pixels(pixels)
    assert found.logits.shape == (2, 5)
    assert found.statistics.shape == (2, 2 * sum(TINY.hidden))
    for picture, statistics in zip(pixels, found.statistics, strict=True):
        patches = to_unit(cut(torch.from_numpy(picture)[None], corners[None], 32))
        expected, _ = seen_by_hand(scorer.weights.discriminator, patches)
        np.testing.assert_allclose(statistics, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_patches_inspected_one_by_one_are_pictures_of_their_own() -> None:
    scorer, picture = Scorer(tiny_weights(), sampling="dense"), pixels_of(some_pictures(1))[0]
    found = scorer.inspect_patches(picture, 9)
    small = Scorer(Weights(scorer.weights.discriminator, Transform(size=32)), sampling="dense")
    corners = grid_corners(9, size=64, patch_size=32).tolist()
    alone = small.inspect_pixels(np.stack([picture[top : top + 32, left : left + 32] for top, left in corners]))
    np.testing.assert_allclose(found.logits, alone.logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.statistics, alone.statistics, rtol=1e-4, atol=1e-5)


def test_a_flat_picture_has_finite_evidence() -> None:
    flat = np.full((1, 64, 64, 3), 128, np.uint8)
    found = Scorer(tiny_weights(), sampling="dense").inspect_pixels(flat)
    assert np.isfinite(found.logits).all()
    assert np.isfinite(found.statistics).all()


def test_inspection_brings_the_name_the_transformed_pixels_and_the_evidence(tmp_path: Path) -> None:
    pictures = some_pictures()
    paths = save_pictures(tmp_path, pictures)
    paths[2].write_bytes(b"")
    scorer = Scorer(tiny_weights(), sampling="dense", batch_size=3)
    found = list(scorer.inspect(paths))
    assert [each.name for each in found] == [str(path) for path in paths]
    assert isinstance(found.pop(2), Refusal)
    expected = np.delete(pixels_of(pictures), 2, axis=0)
    for item, pixels in zip(found, expected, strict=True):
        assert isinstance(item, Inspected)
        assert np.array_equal(item.pixels, pixels)
        assert np.array_equal(item.evidence.statistics, scorer.inspect_pixels(pixels[None]).statistics)


def test_evidence_can_be_put_together_and_taken_apart() -> None:
    whole = Scorer(tiny_weights(), sampling="dense").inspect_pixels(pixels_of(some_pictures(2)))
    again = Evidence.concatenate(list(whole.one_by_one()))
    assert all(map(np.array_equal, again, whole))
    assert np.array_equal(whole.of(np.array([2, 0])).logits, whole.logits[[2, 0]])
    assert np.array_equal(whole.of(np.array([False, True, True, False])).statistics, whole.statistics[1:3])


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
        ({"sampling": "spiral"}, "unknown sampling 'spiral': choose random, grid or dense"),
        ({"patches": 0}, "0 patches: give at least 1"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
    ],
)
def test_a_wrong_option_is_refused_before_any_image(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scorer(tiny_weights(), **options)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_patches_larger_than_the_pictures_are_refused(sampling: Sampling) -> None:
    small = Weights(tiny_weights().discriminator, Transform(size=16))
    with pytest.raises(ValueError, match="patch of 32 pixels does not fit a picture of 16"):
        Scorer(small, sampling=sampling)


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


def test_mean_features_are_those_of_the_last_block_averaged() -> None:
    weights = tiny_weights()
    pixels = np.stack([weights.transform(picture.pixels) for picture in some_pictures(1)])
    for sampling, patches in (("dense", 1), ("random", 3)):
        scorer = Scorer(weights, sampling=sampling, patches=patches)  # type: ignore[arg-type]
        found = scorer.mean_features(pixels)
        seen = scorer._patches(torch.from_numpy(pixels[1:]))
        features = weights.discriminator.inspect(to_unit(seen[0]), seen[1]).features[-1]
        assert found.shape == (2, 16)
        np.testing.assert_allclose(found[1], features.detach().mean((0, 2, 3)).numpy(), rtol=1e-5)
