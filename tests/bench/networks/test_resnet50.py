"""Our ResNet-50 does what the Keras model does, layer by layer, from the files of the npm package."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.bench.networks.base import LOCAL, PENULTIMATE, STATISTICS, reduce_places
from discopatch.bench.networks.resnet50 import ResNet50, convert_keras, read_tfjs
from discopatch.encoders import local_features
from tests.samples import reference_statistics

from .samples import WIDTH, keras_variables, sample_pixels, small_resnet, tfjs_files

MEAN = np.array([103.939, 116.779, 123.68])


class KerasResNet50:
    """As the layers of model.json follow one another, nothing folded, padding explicit, in double precision."""

    def __init__(self, variables: Mapping[str, NDArray[np.float32]]) -> None:
        self.variables = {name: torch.from_numpy(value).double() for name, value in variables.items()}

    def convolution(self, x: Tensor, place: str, norm: str, *, stride: int = 1, padding: int = 0) -> Tensor:
        kernel = self.variables[f"{place}/kernel"].permute(3, 2, 0, 1)
        x = F.conv2d(F.pad(x, [padding] * 4), kernel, self.variables[f"{place}/bias"], stride)
        mean, variance, gamma, beta = (
            self.variables[f"{norm}/{name}"] for name in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return F.batch_norm(x, mean, variance, gamma, beta, eps=1e-3)

    def block(self, x: Tensor, name: str, *, stride: int) -> Tensor:
        def branch(x: Tensor, which: str, **options: int) -> Tensor:
            return self.convolution(x, f"res{name}_branch{which}", f"bn{name}_branch{which}", **options)

        y = branch(x, "2a", stride=stride).relu()
        y = branch(branch(y, "2b", padding=1).relu(), "2c")
        return (y + (branch(x, "1", stride=stride) if name.endswith("a") else x)).relu()

    def maps(self, pixels: NDArray[np.uint8]) -> list[Tensor]:
        """The ends of the four stages."""
        blue_first = pixels[:, 16:240, 16:240, ::-1] - MEAN
        x = torch.from_numpy(blue_first).permute(0, 3, 1, 2)
        x = self.convolution(x, "conv1", "bn_conv1", stride=2, padding=3).relu()
        x = F.max_pool2d(F.pad(x, [1] * 4), 3, 2)
        ends = []
        for stage, depth in zip("2345", (3, 4, 6, 3), strict=True):
            for block in "abcdef"[:depth]:
                x = self.block(x, stage + block, stride=2 if block == "a" and stage != "2" else 1)
            ends.append(x)
        return ends

    def logits(self, pixels: NDArray[np.uint8]) -> Tensor:
        pooled = self.maps(pixels)[-1].mean(dim=(2, 3))
        return pooled @ self.variables["fc1000/kernel"] + self.variables["fc1000/bias"]


@torch.inference_mode()
def test_shards_become_a_network_that_does_what_keras_does() -> None:
    variables = keras_variables()
    files = tfjs_files(variables)
    network = ResNet50.from_tensors(convert_keras(read_tfjs(files)).tensors)
    pixels = sample_pixels()
    penultimate = network.extract(network.prepare(torch.from_numpy(pixels)), [PENULTIMATE])[PENULTIMATE]
    expected = KerasResNet50(variables).logits(pixels)
    assert expected.std(dim=0).max() > 0.01  # or equality would say little
    torch.testing.assert_close(network.head(penultimate).double(), expected, atol=2e-4, rtol=2e-4)


@torch.inference_mode()
def test_features_come_from_the_ends_of_the_stages() -> None:
    network, pixels = small_resnet(), sample_pixels()
    keras = KerasResNet50(keras_variables())
    found = network.extract(network.prepare(torch.from_numpy(pixels)), network.kinds)
    *measured, _ = keras.maps(pixels)
    close = partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)
    close(found[STATISTICS].double(), torch.from_numpy(reference_statistics(measured)))
    assert found[LOCAL].shape == (3, 16, 16, min(28 * WIDTH, 128))
    expected = reduce_places(local_features(measured))
    close(found[LOCAL].double(), expected.double(), atol=5e-3, rtol=5e-3)
