"""Weights of others become ours without a change, or are refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from discopatch.baselines.backbones.convert import PackageRefused, fold, read_tfjs

from .samples import keras_variables, tfjs_files

SOME = {"a/kernel": np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3), "a/bias": np.array([0.5, -1, 2], np.float32)}


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("groups", [1, 6])
@torch.inference_mode()
def test_a_folded_convolution_does_what_convolution_and_batchnorm_did(with_bias: bool, groups: int) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(6, 12, 3, groups=groups, bias=with_bias)
    norm = nn.BatchNorm2d(12, eps=1e-3).eval()
    for parameter in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert parameter is not None
        parameter.uniform_(0.1, 2)
    norm.running_var[0] = 0  # type: ignore[index]  # a channel that never changed
    bias = convolution.bias.numpy() if convolution.bias is not None else None
    weight, shift = fold(
        convolution.weight.numpy(),
        bias,
        scale=norm.weight.numpy(),
        shift=norm.bias.numpy(),
        mean=norm.running_mean.numpy(),  # type: ignore[union-attr]
        variance=norm.running_var.numpy(),  # type: ignore[union-attr]
        epsilon=norm.eps,
    )
    x = torch.randn(2, 6, 9, 9)
    folded = nn.functional.conv2d(x, weight, shift, groups=groups)
    torch.testing.assert_close(folded, norm(convolution(x)), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_variables_come_out_of_shards_as_they_went_in(shards: int) -> None:
    variables = keras_variables()
    files = tfjs_files(variables, shards=shards)
    found = read_tfjs(files["model.json"], files)
    assert found.keys() == variables.keys()
    for name, value in variables.items():
        assert np.array_equal(found[name], value), name


def test_a_missing_shard_is_refused() -> None:
    files = tfjs_files(SOME)
    del files["group1-shard2of3.bin"]
    with pytest.raises(PackageRefused, match=r"names the shard 'group1-shard2of3\.bin'"):
        read_tfjs(files["model.json"], files)


@pytest.mark.parametrize(("cut", "match"), [(-4, "end before a/bias"), (None, "4 bytes more")])
def test_shards_of_another_length_are_refused(cut: int | None, match: str) -> None:
    files = tfjs_files(SOME)
    last = files["group1-shard3of3.bin"]
    files["group1-shard3of3.bin"] = last[:cut] if cut else last + b"more"
    with pytest.raises(PackageRefused, match=match):
        read_tfjs(files["model.json"], files)


@pytest.mark.parametrize("change", [{"dtype": "uint8"}, {"quantization": {"scale": 1, "min": 0, "dtype": "uint8"}}])
def test_rounded_weights_are_refused(change: dict[str, object]) -> None:
    files = tfjs_files(SOME)
    model = json.loads(files["model.json"])
    model["weightsManifest"][0]["weights"][0].update(change)
    with pytest.raises(PackageRefused, match="a/kernel is not stored in plain float32"):
        read_tfjs(json.dumps(model).encode(), files)
