"""Real photos that come with scikit-image and scikit-learn, for the demo and the tests; nothing is downloaded."""

from collections.abc import Callable, Iterable

import numpy as np

from discopatch.images.image import NamedImage, Pixels
from discopatch.utils import require

TRAINING = ("coffee", "coins", "flower", "motorcycle", "rocket", "temple")
HELD_OUT = ("astronaut", "camera", "cat")
PHOTOS = (*TRAINING, *HELD_OUT)


def sample_photos(names: Iterable[str]) -> dict[str, Pixels]:
    """The named photos in RGB, each at least 256 pixels wide and high."""
    require("skimage", "demo")
    require("sklearn", "demo")
    from skimage import data
    from sklearn.datasets import load_sample_image

    photos: dict[str, Callable[[], Pixels]] = {
        "astronaut": data.astronaut,
        "coffee": data.coffee,
        "rocket": data.rocket,
        "motorcycle": lambda: data.stereo_motorcycle()[0],
        "camera": data.camera,
        "cat": data.cat,
        "coins": data.coins,
        "temple": lambda: load_sample_image("china.jpg"),
        "flower": lambda: load_sample_image("flower.jpg"),
    }
    return {name: _to_rgb(photos[name]()) for name in names}


def _to_rgb(photo: Pixels) -> Pixels:
    return np.repeat(photo[..., None], 3, axis=2) if photo.ndim == 2 else photo[..., :3]


def crops(photos: dict[str, Pixels], count: int, *, size: int, seed: int) -> list[NamedImage]:
    """`count` squares of each photo, at random places, named after it and numbered."""
    rng = np.random.default_rng(seed)
    found = []
    for name, photo in photos.items():
        height, width = photo.shape[:2]
        for number in range(count):
            top, left = rng.integers(height - size + 1), rng.integers(width - size + 1)
            found.append(NamedImage(f"{name}-{number}", photo[top : top + size, left : left + size]))
    return found
