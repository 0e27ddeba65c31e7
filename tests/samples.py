"""Tiny weights, small real images, and features of a made-up camera, for all tests."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.interpolate import RegularGridInterpolator
from torch import Tensor

from discopatch import Detector
from discopatch.calibration import Calibration
from discopatch.demo import crops, sample_photos
from discopatch.encoders import Features
from discopatch.images import DEFAULT_LIMITS, DEFAULT_WORKERS, NamedImage, Pixels, Transform, Workers
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Networks, Weights
from discopatch.model.config import LITE1
from discopatch.model.layers import SameConv2d
from discopatch.model.weights import DIGEST, HEADER, content_digest
from discopatch.pretrained import SMALL_WEIGHTS
from discopatch.results import Explanation, FittedDetector, PredictedBatch, PredictedImage

TINY = Architecture(patch_size=32, hidden=(8, 16), latent=8)
TINY_INVERTED = Architecture(patch_size=32, hidden=(4, 6, 8, 14, 20), latent=8, normalisation="none", kind="inverted")
TINY_EMBEDDED = replace(TINY_INVERTED, depths=LITE1, embedding=6)
TOO_SMALL = np.zeros((3, 3), np.uint8)  # an image that is refused


def tiny_weights(*, seed: int = 0) -> Weights:
    """Random, which is as good as any for what a score may depend on."""
    return Weights(Networks.from_seed(TINY, seed).discriminator, Transform(size=64))


def inverted_weights(architecture: Architecture = TINY_INVERTED, *, seed: int = 3) -> Weights:
    """Random, with outputs of deviation 1 on real photos, which those of so many random layers would not be."""
    discriminator = Networks.from_seed(architecture, seed).discriminator
    photos = to_unit(torch.from_numpy(camera_pixels(8))).permute(0, 3, 1, 2)

    @torch.no_grad()
    def standardise(conv: torch.nn.Module, _: object, output: Tensor) -> Tensor:
        assert isinstance(conv, SameConv2d)
        conv.weight.div_(output.std())
        return output / output.std()

    convolutions = [each for each in discriminator.modules() if isinstance(each, SameConv2d)]
    hooks = []
    for conv in convolutions:
        assert conv.bias is not None
        torch.nn.init.zeros_(conv.bias)
        hooks.append(conv.register_forward_hook(standardise))
    with torch.no_grad():
        discriminator(photos, 1)
    for hook in hooks:
        hook.remove()
    return Weights(discriminator.eval(), Transform(size=64))


def new_detector(weights: Weights | Path | None = None, **parameters: Any) -> Detector:
    """Not fitted yet; tiny and random, which is as good as any for what a detector has to keep."""
    fast = {"false_alarm_rate": 0.1, "device": "cpu", "reason_images": 0, "detection_images": 0}
    return Detector(weights or tiny_weights(), **{**fast, **parameters})


def some_images(count: int = 4) -> list[NamedImage]:
    """`count` squares of each of two photos."""
    return crops(sample_photos(["cat", "temple"]), count, size=80, seed=0)


def camera_pixels(count: int, *, size: int = 64, seed: int = 0) -> Pixels:
    """(count, size, size, 3): images of one camera."""
    return np.stack([image.pixels for image in one_camera(count, size=size, seed=seed)])


def one_camera(count: int, *, size: int = 64, seed: int = 0) -> list[NamedImage]:
    """Squares of one photo: alike, as the images of one camera are."""
    return crops(sample_photos(["temple"]), count, size=size, seed=seed)


@cache
def natural_detector(weights: str = SMALL_WEIGHTS) -> Detector:
    """A detector with released weights, fitted once for all tests on images of one camera."""
    return Detector(weights, false_alarm_rate=0.1, reason_images=4, detection_images=0).fit(one_camera(30, size=256))


class NumberDetector(FittedDetector):
    """A fitted detector of numbers, which are their own scores: for tests of what follows from scores."""

    max_pixels, max_bytes = DEFAULT_LIMITS.max_pixels, DEFAULT_LIMITS.max_bytes

    def __init__(self, images: int = 99, rate: float = 0.01, *, groups: str | None = None, seed: int = 1) -> None:
        scores = np.sort(np.random.default_rng(seed).normal(size=images))
        self._calibration, self._groups = Calibration(scores, rate), groups

    @property
    def calibration_(self) -> Calibration:
        return self._calibration

    @property
    def transform_(self) -> Transform:
        return Transform(size=64)

    @property
    def digest_(self) -> str:
        return hashlib.sha256(self._calibration.scores.tobytes()).hexdigest()[:16]

    def settings(self) -> dict[str, Any]:
        rate = self._calibration.rate
        return {"images": 40, "n_groups": None, "groups": self._groups, "false_alarm_rate": rate}

    def with_rate(self, false_alarm_rate: float) -> Self:
        other = copy(self)
        other._calibration = self._calibration.with_rate(false_alarm_rate)
        return other

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        for place, score in enumerate(np.asarray(images, np.float64)):
            image = NamedImage(f"{place}.png", np.zeros((64, 64, 3), np.uint8))
            yield PredictedImage.scored(image, float(score), self._calibration)

    def predict_batches(self, sources: Any, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedBatch]:
        for source in sources:
            yield PredictedBatch(list(self.predict_images(source)), ends=True)

    def explain(self, image: object) -> Explanation:
        raise NotImplementedError


def on_grid(values: NDArray[np.floating], shape: tuple[int, int]) -> NDArray[np.float64]:
    """A map (rows, columns) on another grid over the same image, with straight lines between its cells."""
    middles = [(np.arange(length) + 0.5) / length for length in values.shape]
    own = [
        np.clip((np.arange(length) + 0.5) / length, known[0], known[-1])
        for length, known in zip(shape, middles, strict=True)
    ]
    points = np.stack(np.meshgrid(*own, indexing="ij"), -1)
    found: NDArray[np.float64] = RegularGridInterpolator(middles, values)(points)
    return found


def reference_statistics(maps: Iterable[Any]) -> NDArray[np.float64]:
    """Maps (B, C, H, W): of each the means, then the logarithms of the variances, by plain numpy."""
    found = []
    for one in maps:
        values = np.asarray(one, np.float64)
        found += [values.mean((2, 3)), np.log(values.var((2, 3)) + 1e-6)]
    return np.concatenate(found, 1)


def save_images(folder: Path, images: Iterable[NamedImage]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for image in images:
        paths.append(folder / f"{image.name}.png")
        Image.fromarray(image.pixels).save(paths[-1])
    return paths


def made_up_features(images: int, *, dimensions: int = 40, seed: int = 0) -> Features:
    """Correlated statistics around levels of their own, and logits that are independent of them."""
    camera, rng = np.random.default_rng([dimensions, 99]), np.random.default_rng(seed)
    levels, mixing = camera.normal(0, 3, dimensions), camera.normal(size=(dimensions, dimensions)) / dimensions**0.5
    statistics = levels + rng.normal(size=(images, dimensions)) @ mixing
    statistics += 0.3 * rng.normal(size=(images, dimensions))
    return Features(rng.normal(4, 1, (images, 9)).astype(np.float32), statistics.astype(np.float32))


def without_logits(statistics: NDArray[np.floating]) -> Features:
    """Features of a network that is no discriminator."""
    return Features(np.empty((len(statistics), 0), np.float32), np.asarray(statistics, np.float32))


def moved(features: Features, by: NDArray[np.floating]) -> Features:
    """The same images with other statistics."""
    return Features(features.logits, (features.statistics + by).astype(np.float32))


def one_by_one(score: Callable[[Features], NDArray[np.float64]], features: Features) -> NDArray[np.float64]:
    return np.concatenate([score(each) for each in features.one_by_one()])


def with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file with another header around the same tensors, and a digest that fits."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    change(header)
    save_sealed(path, tensors, header)
    return path


def with_tensors(path: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """The file with other tensors under the same header, and a digest that fits."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[HEADER])
    tensors = load_file(path)
    change(tensors)
    save_sealed(path, tensors, header)
    return path


def save_sealed(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    new = path.with_name(f"{path.name}.new")  # the tensors may be mapped from the old
    header.pop(DIGEST, None)
    save_file(tensors, new, {HEADER: json.dumps({**header, DIGEST: content_digest(header, tensors)})})
    new.replace(path)
