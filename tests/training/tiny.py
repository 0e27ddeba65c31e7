"""The smallest run that is still a run: real photos, a network of two layers, batches of eight patches."""

from pathlib import Path

from PIL import Image

from discopatch.images import Transform
from discopatch.images.samples import sample_photos
from discopatch.model import Architecture
from discopatch.training.recipe import Recipe

ARCHITECTURE = Architecture(patch_size=16, hidden=(4, 8), latent=4)


def tiny_recipe(**changes) -> Recipe:
    settings = {
        "architecture": ARCHITECTURE,
        "transform": Transform(size=64),
        "images": 2,
        "patches": 4,
        "steps": 12,
        "grouping": "batch",
        **changes,
    }
    return Recipe.of("tiny", **settings)


def photo_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, photo in sample_photos(("astronaut", "coffee", "rocket", "camera", "cat")).items():
        Image.fromarray(photo).save(folder / f"{name}.png", compress_level=1)
    return folder
