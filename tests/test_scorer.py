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

from discopatch.encoders import DiscriminatorEncoder, Patches
from discopatch.heads import CombinedHead, Head, LogitHead
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model import Weights, extract_patches, scoring_corners
from discopatch.model.patches import Sampling
from discopatch.scorer import Scorer
from tests.samples import save_images, some_images, tiny_weights

PLACES: list[tuple[Patches, Sampling]] = [("dense", "random"), (4, "random"), (4, "grid")]


def scorer(weights: Weights | None = None, *, head: Head | None = None, **options: Any) -> Scorer:
    encoder = DiscriminatorEncoder(weights or tiny_weights(), **{"patches": 4, **options})
    return Scorer(encoder, head or LogitHead())


def scores_of(source: object, *, workers: int = 1, **options: Any) -> list[float]:
    return scorer(**options).score(source, workers=workers).tolist()  # type: ignore[no-any-return]


def test_a_score_is_the_head_of_the_logits_of_the_images_patches() -> None:
    weights, image = tiny_weights(), some_images()[0]
    (score,) = scores_of(image, patches=5, seed=3)
    pixels = torch.from_numpy(weights.transform(image.pixels))
    corners = scoring_corners("random", 5, size=64, patch_size=32, seed=3)
    with torch.no_grad():
        output = weights.discriminator.eval()(to_unit(extract_patches(pixels[None], corners, 32)))
    assert score == pytest.approx(-float(output.logits.double().mean()), rel=0, abs=1e-12)


@pytest.mark.parametrize(("patches", "sampling"), PLACES)
def test_neighbours_never_change_a_score(patches: Patches, sampling: Sampling) -> None:
    images, found = some_images(), scorer(patches=patches, sampling=sampling)
    together = found.score(images, workers=1).tolist()
    assert len(set(together)) == len(together), "different images"
    assert [found.score([image], workers=1)[0] for image in images] == together
    assert found.score(images[::-1], workers=1)[::-1].tolist() == together
    assert found.score([images[0], *images[5:]], workers=1).tolist() == [together[0], *together[5:]]


def test_a_fitted_head_scores_image_by_image_to_the_bit() -> None:
    """Products over a batch round otherwise than products over one image."""
    images = some_images(20)
    encoder = DiscriminatorEncoder(tiny_weights())
    features = encoder.extract_pixels(np.stack([encoder.transform(image.pixels) for image in images]))
    found = Scorer(encoder, CombinedHead().fit(features))
    alone = [found.score_features(each)[0] for each in features.one_by_one()]
    assert found.score_features(features).tolist() == alone
    assert found.score(images).tolist() == alone


def test_batch_size_workers_and_time_never_change_a_score() -> None:
    images = some_images()
    expected = scores_of(images)
    for batch_size in (1, 3, 100):
        assert scores_of(images, batch_size=batch_size) == expected
    assert scores_of(images, workers=4) == expected
    again = scorer()
    assert again.score(images).tolist() == again.score(images).tolist() == expected


def test_the_pixels_come_with_the_prediction() -> None:
    image, bad = some_images(1)[0], np.zeros((3, 3), np.uint8)
    good, refused = scorer().predict_images([image, bad], workers=1)
    assert good.refusal is None
    assert good.pixels is not None
    assert np.array_equal(good.pixels, tiny_weights().transform(image.pixels))
    assert refused.pixels is None
    assert refused.refusal is not None
    assert refused.prediction.error == refused.refusal.error


def test_a_folder_a_shard_and_a_list_give_the_same_scores(tmp_path: Path) -> None:
    paths = save_images(tmp_path / "folder", some_images())
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for path in paths:
            shard.add(path, path.name)
    by_name = []
    for source in (tmp_path / "folder", tmp_path / "shard.tar", [str(path) for path in paths]):
        predictions = scorer().predict(source)
        by_name.append({Path(each.name).name: each.score for each in predictions})
    assert len(by_name[0]) == len(paths)
    assert by_name[0] == by_name[1] == by_name[2]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_bad_file_is_a_refusal_in_its_place(tmp_path: Path, batch_size: int) -> None:
    paths = save_images(tmp_path, some_images())
    good = scores_of(paths)
    paths[2].write_bytes(b"no image at all")
    paths[7].write_bytes(b"")
    found = scorer(batch_size=batch_size)
    items = list(found.predict_images(paths))
    assert [place for place, item in enumerate(items) if item.refusal is not None] == [2, 7]
    predictions = found.predict(paths)
    assert predictions.names.tolist() == [str(path) for path in paths]
    assert np.flatnonzero(predictions.errors != None).tolist() == [2, 7]  # noqa: E711 - one by one
    assert np.isnan(predictions.scores[[2, 7]]).all()
    assert np.delete(predictions.scores, [2, 7]).tolist() == np.delete(good, [2, 7]).tolist()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_a_refusal_and_never_a_pass(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogitHead, "forward", lambda self, logits, statistics: logits.double().mean(1) * 0 + number)
    predictions = scorer().predict(some_images())
    assert [each.score for each in predictions] == [None] * 8
    assert all(each.error is not None and each.error.startswith("not_finite") for each in predictions)


def test_an_endless_stream_is_scored_as_it_comes() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Pixels]:
        while True:
            taken.append(1)
            yield np.full((64, 64, 3), len(taken) % 256, np.uint8)

    stream = scorer(patches=2, batch_size=4).predict_images(endless(), workers=1)
    for _ in range(3):
        assert next(stream).refusal is None
    assert len(taken) <= 4
    stream.close()  # type: ignore[attr-defined]  # a generator


MEMORY = """
import re
from pathlib import Path
import numpy as np, torch
from discopatch import Transform, Weights
from discopatch.encoders import DiscriminatorEncoder
from discopatch.scorer import Scorer
from discopatch.heads import LogitHead
from discopatch.model import Architecture, Discriminator

torch.set_num_threads(1)
architecture = Architecture(patch_size=32, hidden=(4,), latent=4)
encoder = DiscriminatorEncoder(Weights(Discriminator(architecture), Transform(size=32)), patches=1)
pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)

def peak():
    # Not getrusage: a child process starts with its parent's peak there.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

stream = Scorer(encoder, LogitHead()).predict_iter((pixels for _ in range(20_000)), workers=2)
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
    assert growth_in_kilobytes < 30_000, "the images alone are 55,000"
