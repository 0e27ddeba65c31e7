"""From the weights that others stored to ours: tfjs shards, and BatchNorm folded into the convolution before it."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


class PackageRefused(ValueError):  # noqa: N818 - as ImageRefused
    """A package that is not what it should be; nothing of it was used."""


class Converted(NamedTuple):
    """What a package holds, ready for a file of ours."""

    tensors: dict[str, Tensor]
    parameters: int  # as they were trained, before anything was folded
    classes: tuple[str, ...] = ()


def fold(
    weight: Floats,
    bias: Floats | None = None,
    *,
    scale: Floats,
    shift: Floats,
    mean: Floats,
    variance: Floats,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Weight (out, in, H, W) and bias of one convolution that does what convolution and BatchNorm did.

    scale (w * x + bias - mean) / sqrt(variance + epsilon) + shift, in double precision until the end.
    """
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    offset = (0 if bias is None else bias.astype(np.float64)) - mean.astype(np.float64)
    folded = weight.astype(np.float64) * factor[:, None, None, None]
    return torch.from_numpy(folded).float(), torch.from_numpy(offset * factor + shift).float()


def read_tfjs(model: bytes, shards: Mapping[str, bytes]) -> dict[str, Floats]:
    """The variables of a tfjs model by name: model.json says in which order they lie in its shards."""
    found: dict[str, Floats] = {}
    for group in json.loads(model)["weightsManifest"]:
        if missing := [path for path in group["paths"] if path not in shards]:
            raise PackageRefused(f"model.json names the shard {missing[0]!r}, which is not in the package")
        values = b"".join(shards[path] for path in group["paths"])
        place = 0
        for entry in group["weights"]:
            name, shape = entry["name"], tuple(entry["shape"])
            if entry["dtype"] != "float32" or "quantization" in entry:
                raise PackageRefused(f"{name} is not stored in plain float32: take another version of the package")
            number = int(np.prod(shape, dtype=np.int64))
            if place + 4 * number > len(values):
                raise PackageRefused(f"the shards end before {name} does: take the package again")
            found[name] = np.frombuffer(values, "<f4", number, place).reshape(shape)
            place += 4 * number
        if place != len(values):
            raise PackageRefused(f"the shards have {len(values) - place} bytes more than model.json speaks of")
    return found
