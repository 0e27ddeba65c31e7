"""A fitted detector as one file: safetensors with a JSON header, versioned, without pickle."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discopatch.errors import WeightsError
from discopatch.fitting import FittedState
from discopatch.heads import HEADS, PROBES, RegionModel
from discopatch.images import RefusalReport
from discopatch.model import Weights, read_safetensors, write_safetensors
from discopatch.pretrained import PRETRAINED, load_pretrained
from discopatch.utils import strip_prefix

KIND = "detector"
PARAMETERS = ("head", "false_alarm_rate", "patches", "sampling", "seed", "precision")
CUSTOM = "custom"  # the name of weights that are stored in the file itself


def write_detector(path: Path, state: FittedState, settings: Mapping[str, Any]) -> None:
    """Writes the file atomically; the weights go into it only where they are not among the released ones."""
    header = {**settings, "probes": list(state.head.probes), "refusals": state.refusals.to_dict()}
    parts = {"head": state.head.to_tensors(), "calibration": {"scores": torch.from_numpy(state.calibration_scores)}}
    if state.regions is not None:
        parts["regions"] = state.regions.to_tensors()
        header["region_probes"] = list(state.regions.head.probes)
    tensors = {f"{part}/{name}": compact(value) for part, found in parts.items() for name, value in found.items()}
    if state.weights_name is None:
        header |= {"architecture": state.weights.discriminator.architecture.to_dict(), "origin": state.weights.origin}
        tensors |= {f"weights/{name}": value for name, value in state.weights.discriminator.state_dict().items()}
    write_safetensors(path, tensors, kind=KIND, header=header)


def compact(values: Tensor) -> Tensor:
    """In float32 where that loses nothing, to halve the bytes."""
    return values.float() if torch.equal(values.float().double(), values.double()) else values


def read_detector(path: Path) -> FittedState:
    """The fitted state that was stored; refused unless all of its parts fit together."""
    header, tensors = read_safetensors(path, kind=KIND)
    if header["head"] not in HEADS:
        raise WeightsError(
            f"{path} has a head called {header['head']!r}, which this version does not know: {refit_remedy(header)}"
        )
    if unknown := {*header["probes"], *header.get("region_probes", ())} - PROBES.keys():
        raise WeightsError(f"{path} has the probes {sorted(unknown)}, unknown to this version: {refit_remedy(header)}")
    weights = stored_weights(path, header, tensors)
    check_digests(path, header, weights)
    try:
        head = HEADS[header["head"]].from_tensors(strip_prefix(tensors, "head"), tuple(header["probes"]))
        regions = (
            RegionModel.from_tensors(strip_prefix(tensors, "regions"), tuple(header["region_probes"]))
            if "region_probes" in header
            else None
        )
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}, which this version expects otherwise: {refit_remedy(header)}") from None
    return FittedState(
        {name: header[name] for name in PARAMETERS},
        weights,
        None if header["weights"] == CUSTOM else header["weights"],
        head,
        regions,
        tensors["calibration/scores"].double().numpy(),
        header["images"],
        RefusalReport.from_dict(header["refusals"]),
    )


def stored_weights(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Weights:
    """The released weights of that name, or those in the file itself."""
    name = str(header["weights"])
    if name in PRETRAINED:
        return load_pretrained(name)
    if name != CUSTOM:
        raise WeightsError(
            f"{path} was fitted with the weights {name!r} of discopatch {header['discopatch']}, "
            f"which this version does not have: {refit_remedy(header)}"
        )
    return Weights.from_tensors(strip_prefix(tensors, "weights"), header)


def check_digests(path: Path, header: Mapping[str, Any], weights: Weights) -> None:
    """Scores mean something only with the weights and the transform that they were calibrated with."""
    for what, digest in (("weights", weights.digest), ("transform", weights.transform.digest)):
        if digest != header[f"{what}_digest"]:
            raise WeightsError(
                f"{path} was fitted with the {what} {header[f'{what}_digest']}, but {header['weights']} has {digest}: "
                f"{refit_remedy(header)}"
            )


def refit_remedy(header: Mapping[str, Any]) -> str:
    return f"install discopatch {header['discopatch']}, or fit again"
