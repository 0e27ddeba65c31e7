"""A fitted detector as one file: safetensors with a JSON header, versioned, without pickle."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.files import below
from discopatch.fitting import Fitted
from discopatch.images import RefusalReport
from discopatch.model.weights import Weights, WeightsError, read_safetensors, write_safetensors
from discopatch.scoring import HEADS, Head
from discopatch.scoring.regions import Regions
from discopatch.weights import RELEASED, released

KIND = "detector"
STORED = ("head", "false_alarm_rate", "sampling", "patches", "seed", "precision")
ONCE_UNSAID = {"precision": "float32"}  # what files of earlier versions do not say, since there was nothing to choose


def write_detector(path: Path, fitted: Fitted, weights: Weights, settings: Mapping[str, Any]) -> None:
    """Atomically; the weights only where they are not among the released ones."""
    header = {**settings, "refusals": fitted.refusals.to_dict()}
    arrays = {
        **{f"head/{name}": value for name, value in fitted.head.arrays().items()},
        **{f"regions/{name}": value for name, value in fitted.regions.arrays().items()},
        "calibration": fitted.calibration,
    }
    tensors = {name: torch.from_numpy(np.array(value, order="C")) for name, value in arrays.items()}
    if header["weights"] == "custom":
        header |= {"architecture": weights.discriminator.architecture.to_dict(), "origin": weights.origin}
        tensors |= {f"weights/{name}": value for name, value in weights.discriminator.state_dict().items()}
    write_safetensors(path, tensors, kind=KIND, header=header)


def read_detector(path: Path) -> tuple[str | Weights, dict[str, Any], Fitted]:
    """The weights or their released name, the parameters, and what was learnt; refused unless all fit together."""
    header, tensors = read_safetensors(path, kind=KIND)
    if header["head"] not in HEADS:
        raise WeightsError(
            f"{path} has a head called {header['head']!r}, which this version does not know: "
            f"install discopatch {header['discopatch']}, or fit again"
        )
    weights = stored_weights(path, header, tensors)
    check_digests(path, header, released(weights) if isinstance(weights, str) else weights)
    fitted = Fitted(
        stored_head(path, header, tensors),
        Regions.from_arrays(arrays_below(tensors, "regions")),
        tensors["calibration"].numpy(),
        header["images"],
        RefusalReport.from_dict(header["refusals"]),
    )
    return weights, {name: {**ONCE_UNSAID, **header}[name] for name in STORED}, fitted


def stored_head(path: Path, header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Head:
    """The head with what it had learnt."""
    try:
        return HEADS[header["head"]].from_arrays(arrays_below(tensors, "head"))
    except KeyError as missing:
        raise WeightsError(
            f"{path} lacks {missing}, which the head {header['head']!r} has in this version: fit again"
        ) from None


def stored_weights(path: Path, header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> str | Weights:
    """The name of released weights, or those in the file itself."""
    name = str(header["weights"])
    if name in RELEASED:
        return name
    if name != "custom":
        raise WeightsError(
            f"{path} was fitted with the weights {name!r} of discopatch {header['discopatch']}, "
            "which this version does not have: install that version, or fit again"
        )
    return Weights.from_tensors(below(tensors, "weights"), header)


def check_digests(path: Path, header: Mapping[str, Any], weights: Weights) -> None:
    """Scores mean something only with the weights and the transform that they were calibrated with."""
    if weights.digest != header["weights_digest"]:
        raise WeightsError(
            f"{path} was fitted with weights {header['weights_digest']}, but {header['weights']} are {weights.digest}: "
            f"install discopatch {header['discopatch']}, or fit again"
        )
    if weights.transform.digest != header["transform_digest"]:
        raise WeightsError(
            f"{path} was fitted through the transform {header['transform_digest']}, but its weights want "
            f"{weights.transform.digest}: install discopatch {header['discopatch']}, or fit again"
        )


def arrays_below(tensors: Mapping[str, torch.Tensor], folder: str) -> dict[str, NDArray[np.floating]]:
    """What lies in that folder, as arrays."""
    return {name: each.numpy() for name, each in below(tensors, folder).items()}
