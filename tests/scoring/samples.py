"""Tiny weights and small real pictures to score."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from discopatch import Detector, fitting
from discopatch.images import Picture, Refusal, Transform
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Architecture, Pair
from discopatch.model.weights import Weights
from discopatch.scoring import Evidence, Score
from discopatch.weights import DEFAULT

TINY = Architecture(patch_size=32, hidden=(8, 16), latent=8)


def tiny_weights(*, seed: int = 0) -> Weights:
    """Random, which is as good as any for what a score may depend on."""
    return Weights(Pair.from_seed(TINY, seed).discriminator, Transform(size=64))


def some_pictures(count: int = 4) -> list[Picture]:
    """`count` squares of each of two photos."""
    return crops(sample_photos(["cat", "temple"]), count, size=80, seed=0)


def of_one_camera(count: int, *, size: int = 64, seed: int = 0) -> list[Picture]:
    """Squares of one photo: alike, as the images of one camera are."""
    return crops(sample_photos(["temple"]), count, size=size, seed=seed)


@cache
def natural_detector(weights: str = DEFAULT) -> Detector:
    """With the released weights, on images of one camera; made once for all tests, since it takes half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "CHANGED", 2)  # with all six images it would take twice as long
        return Detector.pretrained(weights, false_alarm_rate=0.1).fit(of_one_camera(30, size=256))


def save_pictures(folder: Path, pictures: Iterable[Picture]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in pictures:
        paths.append(folder / f"{picture.name}.png")
        Image.fromarray(picture.pixels).save(paths[-1])
    return paths


def numbers(results: Iterable[Score | Refusal]) -> list[float]:
    """The scores of results that are all scores."""
    found = []
    for result in results:
        assert isinstance(result, Score), result
        found.append(result.score)
    return found


def made_up_evidence(images: int, *, dimensions: int = 40, seed: int = 0) -> Evidence:
    """Of a made-up camera: correlated statistics around levels of their own, and logits that know nothing of them."""
    camera, rng = np.random.default_rng([dimensions, 99]), np.random.default_rng(seed)
    levels, mixing = camera.normal(0, 3, dimensions), camera.normal(size=(dimensions, dimensions)) / dimensions**0.5
    statistics = levels + rng.normal(size=(images, dimensions)) @ mixing
    statistics += 0.3 * rng.normal(size=(images, dimensions))
    return Evidence(rng.normal(4, 1, (images, 9)).astype(np.float32), statistics.astype(np.float32))


def moved(evidence: Evidence, by: NDArray[np.floating]) -> Evidence:
    """The same images with other statistics."""
    return Evidence(evidence.logits, (evidence.statistics + by).astype(np.float32))


def one_by_one(score: Callable[[Evidence], NDArray[np.float64]], evidence: Evidence) -> NDArray[np.float64]:
    """As for images that come alone."""
    return np.concatenate([score(each) for each in evidence.one_by_one()])
