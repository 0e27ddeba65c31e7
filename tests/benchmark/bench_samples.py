"""A small benchmark of real pictures: tiny weights, a tiny classifier, files in folders."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from PIL import Image

from discopatch.baselines.method import PENULTIMATE, STATISTICS, Classifier, Features
from discopatch.benchmark.benchplan import BenchPlan
from discopatch.benchmark.eyes import ClassifierEye, DiscriminatorEye, Eye
from discopatch.benchmark.featurecache import FeatureCache
from discopatch.benchmark.methods import MethodName
from discopatch.benchmark.pool import Pool
from discopatch.benchmark.runner import Runner
from discopatch.benchmark.suites.folder import folder_suite
from discopatch.benchmark.suites.suite import Suite
from discopatch.images import Pixels, Transform
from discopatch.images.samples import crops, sample_photos
from tests.scoring.samples import tiny_weights

METHODS = [
    MethodName("discopatch", "combined"),
    MethodName("discopatch", "logit"),
    MethodName("discopatch-4", "logit"),
    MethodName("thumbnail", "knn"),
    MethodName("thumbnail", "energy"),
]


class Thumbnail:
    """A backbone that shows the picture at 8 x 8 pixels; it counts what it has seen."""

    name, digest, parameters = "thumbnail", "of no weights", 1930
    kinds: tuple[str, ...] = (PENULTIMATE, STATISTICS)
    classes: tuple[str, ...] = ()
    classifier = Classifier(np.eye(10, 192, dtype=np.float32), np.zeros(10, np.float32))

    def __init__(self) -> None:
        self.seen = 0

    def look(self, pixels: Pixels, kinds: Collection[str]) -> Features:
        self.seen += len(pixels)
        side = pixels.shape[1] // 8
        small = pixels.reshape(len(pixels), 8, side, 8, side, 3).mean((2, 4), dtype=np.float32)
        shown = {PENULTIMATE: small.reshape(len(pixels), -1), STATISTICS: small.mean((1, 2))}
        return {kind: shown[kind] for kind in kinds}


def make_suite(folder: Path, *, test: int = 6) -> Suite:
    """Crops of two photos are normal, those of another are not."""
    save(folder / "normal", ["coffee", "temple"], 24, "PNG")
    save(folder / "coins", ["coins"], 5, "JPEG")
    return folder_suite(folder / "normal", {"coins": folder / "coins"}, test=test, seed=0)


def save(folder: Path, photos: list[str], count: int, kind: str) -> None:
    folder.mkdir(parents=True)
    for number, picture in enumerate(crops(sample_photos(photos), count, size=90, seed=1)):
        Image.fromarray(picture.pixels).save(folder / f"{number:03d}.{'jpg' if kind == 'JPEG' else 'png'}", kind)


def make_plan(suite: Suite, **changes: object) -> BenchPlan:
    sizes: dict[str, object] = {
        "fit": 30,
        "corruptions": ("gaussian_noise", "contrast"),
        "severities": (1, 5),
        "resamples": 50,
        **changes,
    }
    return BenchPlan(suite, Transform(size=64), **sizes)  # type: ignore[arg-type]


def make_eyes(seed: int = 0) -> dict[str, Eye]:
    weights = tiny_weights(seed=seed)
    ours: list[Eye] = [
        DiscriminatorEye(name, weights, patches=patches, seed=0, device="cpu", batch_size=4)
        for name, patches in (("discopatch", None), ("discopatch-4", 4))
    ]
    return {eye.name: eye for eye in (*ours, ClassifierEye(Thumbnail()))}


def make_runner(plan: BenchPlan, folder: Path, pool: Pool, *, eyes: dict[str, Eye] | None = None) -> Runner:
    return Runner(plan, eyes or make_eyes(), METHODS, folder, FeatureCache(folder / "features"), pool)
