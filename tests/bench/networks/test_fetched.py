"""Backbones that were fetched as encoders, here with few channels and random weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from discopatch.bench.networks import FetchedNetwork
from discopatch.bench.networks.base import LOCAL, PENULTIMATE, STATISTICS, ConvertedWeights
from discopatch.bench.networks.efficientnet import EfficientNetLite0, convert_efficientnet
from discopatch.bench.networks.resnet50 import ResNet50, convert_keras
from discopatch.encoders import Kind, NetworkEncoder
from discopatch.errors import WeightsError
from discopatch.images import Transform
from discopatch.model import write_safetensors
from tests.bench.networks.samples import efficientnet_state, keras_variables
from tests.samples import one_camera

ALL: tuple[Kind, ...] = ("statistics", "pooled", "places")


def converted(name: str) -> ConvertedWeights:
    return convert_keras(keras_variables()) if name == "resnet50" else convert_efficientnet(efficientnet_state())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbones")
    for name in ("resnet50", "efficientnet-lite0"):
        found = converted(name)
        header = {"parameters": found.parameters}
        write_safetensors(folder / f"{name}.safetensors", found.tensors, kind="backbone", header=header)
    return folder


def pixels(count: int, size: int) -> NDArray[np.uint8]:
    return np.stack([image.pixels for image in one_camera(count, size=size)])


@pytest.mark.parametrize(("name", "kind"), [("resnet50", ResNet50), ("efficientnet-lite0", EfficientNetLite0)])
def test_images_pass_whole_and_give_what_the_benchmark_extracts(
    name: str, kind: type[ResNet50 | EfficientNetLite0], folder: Path
) -> None:
    network = FetchedNetwork(name, folder)
    images = pixels(2, 96)
    found = NetworkEncoder(network, transform=Transform(size=96), kinds=ALL).extract_pixels(images)
    original = kind.from_tensors(converted(name).tensors).eval()
    with torch.inference_mode():
        expected = original.extract(original.normalise(torch.from_numpy(images)), (STATISTICS, PENULTIMATE, LOCAL))
    np.testing.assert_allclose(found.statistics, expected[STATISTICS], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.pooled, expected[PENULTIMATE], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.places, expected[LOCAL], rtol=1e-2, atol=1e-2)


def test_regions_are_images_of_their_own(folder: Path) -> None:
    network = FetchedNetwork("resnet50", folder)
    image = pixels(1, 128)[0]
    found = NetworkEncoder(network, transform=Transform(size=128)).extract_regions(image, 4)
    crops = np.stack([image[top : top + 32, left : left + 32] for top in (0, 96) for left in (0, 96)])
    expected = NetworkEncoder(network, transform=Transform(size=32)).extract_pixels(crops)
    assert np.array_equal(found.statistics, expected.statistics)


def test_one_that_is_not_fetched_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(WeightsError, match="discopatch data fetch resnet50"):
        FetchedNetwork("resnet50")
