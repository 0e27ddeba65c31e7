"""Small benchmarks of real images: folders and shards in the layout of the real ones, tiny networks to score them."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from discopatch.bench import runner
from discopatch.bench.dataset import BenchPlan, CorruptionPool, Suite
from discopatch.bench.methods import BenchEncoder, load_encoder
from discopatch.bench.networks.base import LOCAL, PENULTIMATE, STATISTICS, Backbone, Classifier, FeatureDict
from discopatch.bench.runner import BenchRun
from discopatch.bench.suites import NATURAL_GROUPS, folder_suite
from discopatch.demo import crops, sample_photos
from discopatch.images import NamedImage, Pixels, Transform
from tests.images import test_tar
from tests.images.samples import encoded
from tests.samples import tiny_weights

METHODS = ["discopatch/combined", "discopatch/logit", "discopatch-4/logit", "thumbnail/knn", "thumbnail/energy"]


class Thumbnail(Backbone):
    """A backbone whose features are the image at 8 x 8 pixels, and its blocks' the mean; it counts the images."""

    name, digest = "thumbnail", "of no weights"
    parameters: int | None = 1930
    kinds: tuple[str, ...] = (PENULTIMATE, STATISTICS, LOCAL)
    device = torch.device("cpu")
    layer_sizes = (2, 1)
    classifier = Classifier(np.eye(10, 192, dtype=np.float32), np.zeros(10, np.float32))

    def __init__(self) -> None:
        self.extracted = 0

    def extract(self, pixels: Pixels, kinds: Collection[str]) -> FeatureDict:
        self.extracted += len(pixels)
        side = pixels.shape[1] // 8
        small = pixels.reshape(len(pixels), 8, side, 8, side, 3).mean((2, 4), dtype=np.float32)
        features: FeatureDict = {
            PENULTIMATE: small.reshape(len(pixels), -1),
            STATISTICS: small.mean((1, 2)),
            LOCAL: small.astype(np.float16),
        }
        return {kind: features[kind] for kind in kinds}


def make_suite(folder: Path, *, test: int = 6) -> Suite:
    """Crops of two photos are normal, those of another are not."""
    save_images(folder / "normal", ["coffee", "temple"], 24, "png")
    save_images(folder / "coins", ["coins"], 5, "jpeg")
    return folder_suite(folder / "normal", {"coins": folder / "coins"}, test=test, seed=0)


def save_images(folder: Path, photos: list[str], count: int, suffix: str = "png", *, seed: int = 1) -> None:
    """`count` crops of each photo, as files."""
    folder.mkdir(parents=True)
    for number, image in enumerate(crops(sample_photos(photos), count, size=90, seed=seed)):
        Image.fromarray(image.pixels).save(folder / f"{number:03d}.{suffix}")


def make_plan(suite: Suite, **changes: object) -> BenchPlan:
    sizes: dict[str, object] = {
        "fit": 30,
        "corruptions": ("gaussian_noise", "contrast"),
        "severities": (1, 5),
        "resamples": 50,
        **changes,
    }
    return BenchPlan(suite, Transform(size=64), **sizes)  # type: ignore[arg-type]


def make_encoders(seed: int = 0) -> dict[str, BenchEncoder]:
    weights = tiny_weights(seed=seed)
    ours = {name: load_encoder(name, weights, seed=0, device="cpu") for name in ("discopatch", "discopatch-4")}
    return {**ours, "thumbnail": BenchEncoder(Thumbnail())}


def make_run(
    plan: BenchPlan,
    folder: Path,
    pool: CorruptionPool,
    *,
    methods: Sequence[str] = METHODS,
    seed: int = 0,
    **options: Any,
) -> BenchRun:
    """A run with random weights of that seed, and thumbnails as a network."""
    encoders = make_encoders(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "load_encoder", lambda name, *args, **options: encoders[name])
        return BenchRun(plan, methods, folder, tiny_weights(), pool, **options)


def make_folders(root: Path) -> Path:
    """`root`, filled in the layouts of suites natural and solar; crops of sample photos stand for all images."""
    photos, others = sample_photos(["coffee", "temple"]), sample_photos(["coins"])
    write_cells(root / "solar", crops(photos, 90, size=70, seed=0))
    write_shard(root / "natural/train-0000.tar", crops(photos, 40, size=64, seed=1), "JPEG")
    write_shard(root / "natural/train-0001.tar", crops(photos, 40, size=64, seed=2), "JPEG")
    write_shard(root / "natural/test.tar", crops(photos, 4, size=90, seed=3), "JPEG")
    for number, name in enumerate(NATURAL_GROUPS):
        write_shard(root / f"ood/{name}.tar", crops(others, 5, size=80, seed=number), "PNG" if number % 2 else "JPEG")
    return root


def write_cells(folder: Path, images: Iterable[NamedImage]) -> None:
    """Every ninth cell may have a defect; every eighteenth has one."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number, image in enumerate(images):
        name = f"images/cell{number:04d}.png"
        Image.fromarray(image.pixels).save(folder / name)
        probability = {4: 1.0, 13: 0.6666}.get(number % 18, 0.0)
        lines.append(f"{name}  {probability}   mono")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def write_shard(path: Path, images: Iterable[NamedImage], kind: str) -> None:
    suffix = "jpg" if kind == "JPEG" else "png"
    files = {f"{path.stem}-{number:03d}.{suffix}": encoded(image.pixels, kind) for number, image in enumerate(images)}
    test_tar.write_shard(path, files)
