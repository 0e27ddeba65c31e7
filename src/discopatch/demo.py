"""A demonstration in a minute: a detector fitted on sample photos scores clean and corrupted photos."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from discopatch.corruptions import corrupt
from discopatch.detector import Detector
from discopatch.images import NamedImage, Pixels
from discopatch.normal_images import Progress
from discopatch.report import ReportBuilder
from discopatch.results import Prediction
from discopatch.utils import require

TRAINING = ("coffee", "coins", "flower", "motorcycle", "rocket", "temple")
HELD_OUT = ("astronaut", "camera", "cat")
PHOTOS = (*TRAINING, *HELD_OUT)
SIZE = 256
NORMAL, INCOMING = 6, 1  # crops of each photo
FALSE_ALARM_RATE = 0.05
CONDITIONS = (  # corruption and severity
    ("none", 0),
    ("gaussian_noise", 1),
    ("gaussian_noise", 3),
    ("gaussian_blur", 1),
    ("gaussian_blur", 3),
    ("jpeg_compression", 1),
    ("brightness", 3),
)
CLOSE_UPS = 6


@dataclass(frozen=True)
class DemoRow:
    """Predictions of the incoming photos with one corruption; severity 0 means none."""

    corruption: str
    severity: int
    predictions: Sequence[Prediction]

    @property
    def flagged(self) -> int:
        return sum(bool(each.is_ood) for each in self.predictions)

    @property
    def median_p_value(self) -> float:
        return median(each.p_value or 0.0 for each in self.predictions)


def run_demo(out: Path, *, seed: int, created: str, progress: Progress | None = None) -> Iterator[DemoRow]:
    """Fits on crops of sample photos and scores other crops of them; yields one row for each corruption.

    Writes the detector and a report to `out`.
    """
    photos = sample_photos(PHOTOS)
    detector = Detector(false_alarm_rate=FALSE_ALARM_RATE, seed=seed)
    normal = crops(photos, NORMAL, size=SIZE, seed=seed)
    order = np.random.default_rng(seed).permutation(len(normal))  # sorted by photo, they would look like drift
    detector.fit([normal[place] for place in order], progress=progress)
    detector.save(out / "detector")
    incoming = crops(photos, INCOMING, size=SIZE, seed=seed + 1)
    report = ReportBuilder(CLOSE_UPS)
    for corruption, severity in CONDITIONS:
        images = [corrupted(image, corruption, severity, seed=seed) for image in incoming]
        yield DemoRow(corruption, severity, list(report.collect(detector.predict_images(images))))
    report.write(out / "report.html", detector, title="discopatch demo", created=created)


def corrupted(image: NamedImage, corruption: str, severity: int, *, seed: int) -> NamedImage:
    """The image with the corruption, which is added to its name."""
    if severity == 0:
        return image
    pixels = corrupt(image.pixels, corruption, severity, seed=seed)
    return NamedImage(f"{image.name} {corruption} {severity}", pixels)


def sample_photos(names: Iterable[str]) -> dict[str, Pixels]:
    """Photos that come with scikit-image and scikit-learn, in RGB, each at least 256 pixels wide and high."""
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
