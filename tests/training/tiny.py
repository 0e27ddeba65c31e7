"""The smallest run that is still a run: real photos, a network of two layers, batches of eight patches."""

from dataclasses import replace
from pathlib import Path

from PIL import Image

from discopatch.images import Transform
from discopatch.images.samples import sample_photos
from discopatch.model import Architecture
from discopatch.training import TrainingConfig, get_preset

ARCHITECTURE = Architecture(patch_size=16, hidden=(4, 8), latent=4)


def tiny_config(**changes) -> TrainingConfig:
    tiny = {
        "architecture": ARCHITECTURE,
        "transform": Transform(size=64),
        "images": 2,
        "patches": 4,
        "steps": 12,
        "grouping": "batch",
    }
    return replace(get_preset("tiny"), **{**tiny, **changes})


def photo_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, photo in sample_photos(("astronaut", "coffee", "rocket", "camera", "cat")).items():
        Image.fromarray(photo).save(folder / f"{name}.png", compress_level=1)
    return folder
