"""A score is its own image's alone: the same with any neighbours, batches, threads and sources."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from discopatch.encoders import DiscriminatorEncoder, Patches
from discopatch.heads import CombinedHead, Head, LogitHead
from discopatch.model import Weights
from discopatch.model.patches import Sampling
from discopatch.scorer import Scorer
from tests.samples import some_images, tiny_weights

PLACES: list[tuple[Patches, Sampling]] = [("dense", "random"), (4, "random"), (4, "grid")]


def scorer(weights: Weights | None = None, *, head: Head | None = None, **options: Any) -> Scorer:
    encoder = DiscriminatorEncoder(weights or tiny_weights(), **{"patches": 4, **options})
    return Scorer(encoder, head or LogitHead())


def scores_of(source: object, *, workers: int = 1, **options: Any) -> list[float]:
    return scorer(**options).score(source, workers=workers).tolist()  # type: ignore[no-any-return]


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


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_no_number_is_a_refusal_and_never_a_pass(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogitHead, "forward", lambda self, logits, statistics: logits.double().mean(1) * 0 + number)
    predictions = scorer().predict(some_images())
    assert [each.score for each in predictions] == [None] * 8
    assert all(each.error is not None and each.error.startswith("not_finite") for each in predictions)


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
