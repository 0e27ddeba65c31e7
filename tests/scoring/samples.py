"""Tiny weights and small real pictures to score."""

from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from discopatch.images import Picture, Refusal, Transform
from discopatch.images.samples import crops, sample_photos
from discopatch.model import Architecture, Pair
from discopatch.model.weights import Weights
from discopatch.scoring import Score

TINY = Architecture(patch_size=32, hidden=(8, 16), latent=8)


def tiny_weights(*, seed: int = 0) -> Weights:
    """Random, which is as good as any for what a score may depend on."""
    return Weights(Pair.from_seed(TINY, seed).discriminator, Transform(size=64))


def some_pictures(count: int = 4) -> list[Picture]:
    """`count` squares of each of two photos."""
    return crops(sample_photos(["cat", "temple"]), count, size=80, seed=0)


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
