"""A fitted detector as one file: safetensors with a JSON header, versioned, without pickle."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.calibration import check_calibration
from discopatch.decoders import DecoderParity
from discopatch.encoders import (
    FeatureSizes,
    OutsideNetwork,
    Patches,
    Precision,
    feature_sizes,
    find_network,
    joined_sizes,
)
from discopatch.errors import WeightsError
from discopatch.explain import ReasonModel, RegionModel
from discopatch.fitting import FittedState
from discopatch.heads import HEADS, PROBES
from discopatch.heads.base import Size, Stored, read_stored
from discopatch.images import RefusalReport, Transform
from discopatch.model import Architecture, Weights, read_safetensors, write_safetensors
from discopatch.model.patches import PatchCount, Sampling
from discopatch.model.weights import refused
from discopatch.pretrained import PRETRAINED, load_pretrained
from discopatch.schema import Count, Digest, Name, Positive, between, length, read_fields, shorten
from discopatch.utils import strip_prefix

KIND = "detector"
PARAMETERS = ("head", "false_alarm_rate", "patches", "sampling", "seed", "precision")
CUSTOM = "custom"  # the name of weights that are stored in the file itself
SCORES = Size("scores", 10_000_000)
MAX_NETWORKS = 8  # from outside
MAX_DECODERS = 8


@dataclass(frozen=True, kw_only=True)
class DetectorHeader:
    """What the header of a detector says, beyond its format; fields that this version does not know are ignored."""

    discopatch: Name
    weights: Name | None
    weights_digest: Digest | None
    transform: Transform
    transform_digest: Digest
    head: Name
    false_alarm_rate: Annotated[float, between(1e-9, 1 - 1e-9)]
    patches: PatchCount | Literal["dense"]
    sampling: Sampling
    seed: Count
    precision: Precision
    images: Positive
    probes: tuple[Name, ...]
    refusals: RefusalReport
    region_probes: tuple[Name, ...] | None = None
    reasons: tuple[Name, ...] | None = None
    groups: Name | None = None
    n_groups: Positive | None = None
    cautions: tuple[str, ...] = ()
    networks: Annotated[dict[Annotated[str, length(1, 5000)], Digest], length(0, MAX_NETWORKS)] = field(
        default_factory=dict
    )
    decoders: Annotated[tuple[DecoderParity, ...], length(0, MAX_DECODERS)] = ()
    architecture: Architecture | None = None
    origin: dict[str, Any] = field(default_factory=dict)


def write_detector(path: Path, state: FittedState, settings: Mapping[str, Any]) -> None:
    """Writes the file atomically; the weights go into it only where they are not among the released ones.

    Networks from outside are named by their place and digest alone.
    """
    header = {
        **settings,
        "transform": state.transform.to_dict(),  # of the fit, whatever images are read with now
        "transform_digest": state.transform.digest,
        "probes": list(state.head.probes),
        "cautions": list(state.cautions),
        "refusals": state.refusals.to_dict(),
    }
    if state.decoders:
        header["decoders"] = [asdict(each) for each in state.decoders]
    parts = {"head": state.head.to_tensors(), "calibration": {"scores": torch.from_numpy(state.calibration_scores)}}
    if state.regions is not None:
        parts["regions"] = state.regions.to_tensors()
        header["region_probes"] = list(state.regions.head.probes)
    if state.reasons is not None:
        parts["reasons"] = state.reasons.to_tensors()
        header["reasons"] = list(state.reasons.probes)
    tensors = {f"{part}/{name}": compact(value) for part, found in parts.items() for name, value in found.items()}
    if state.weights is not None and state.weights_name is None:
        header |= {"architecture": state.weights.discriminator.architecture.to_dict(), "origin": state.weights.origin}
        tensors |= {f"weights/{name}": value for name, value in state.weights.discriminator.state_dict().items()}
    write_safetensors(path, tensors, kind=KIND, header=header)


def compact(values: Tensor) -> Tensor:
    """In float32 where that loses nothing, to halve the bytes."""
    return values.float() if torch.equal(values.float().double(), values.double()) else values


def read_detector(path: Path, networks: Sequence[str] = ()) -> FittedState:
    """The fitted state that was stored; refused unless all of its parts fit together.

    `networks` say where networks from outside lie now, KIND=PLACE, where they are not where they were.
    """
    content, tensors = read_safetensors(path, kind=KIND)
    with refused(path, "take the original, or fit again"):
        header = read_fields(DetectorHeader, content, where="header", ignore_unknown=True)
    with refused(path, f"install discopatch {header.discopatch}, or fit again"):
        check_known(header)
        weights = stored_weights(header, strip_prefix(tensors, "weights"))
        check_parts(header, tensors)
        check_kinds(header, networks)
    with refused(path, "or fit again"):
        outside = tuple(find_network(name, digest, networks) for name, digest in header.networks.items())
    with refused(path, f"install discopatch {header.discopatch}, or fit again"):
        scores = stored_scores(strip_prefix(tensors, "calibration"), header.false_alarm_rate)
        sizes = None if header.region_probes is None else count_features(weights, outside, header.patches)
        statistics = None if weights is None or sizes is None else sizes.statistics
        head = HEADS[header.head].from_tensors(strip_prefix(tensors, "head"), header.probes, statistics=statistics)
        regions = None
        if sizes is not None and header.region_probes is not None:
            head.check_sizes(sizes)
            parts = strip_prefix(tensors, "regions")
            regions = RegionModel.from_tensors(parts, header.region_probes, statistics=statistics)
            regions.head.check_sizes(sizes)
        reasons = None
        if header.reasons is not None:
            reasons = ReasonModel.from_tensors(strip_prefix(tensors, "reasons"), header.reasons)
    return FittedState(
        {name: getattr(header, name) for name in PARAMETERS},
        weights,
        None if header.weights == CUSTOM else header.weights,
        head,
        regions,
        scores,
        header.images,
        header.n_groups,
        header.groups,
        header.cautions,
        header.refusals,
        reasons,
        outside,
        header.transform.decoder,
        header.decoders,
    )


def check_known(header: DetectorHeader) -> None:
    """Raises WeightsError unless this version has all that the header names."""
    if header.head not in HEADS:
        raise WeightsError(f"it has a head called {header.head!r}, which this version does not know")
    for probes in (header.probes, header.region_probes or (), header.reasons or ()):
        if unknown := set(probes) - PROBES.keys():
            raise WeightsError(f"it has the probes {sorted(unknown)}, unknown to this version")
        if len(set(probes)) < len(probes):
            raise WeightsError("it names a probe twice")


def check_parts(header: DetectorHeader, tensors: Mapping[str, Tensor]) -> None:
    """Raises WeightsError where the file has tensors that belong to nothing."""
    parts = {"head", "calibration"}
    parts |= {"weights"} if header.weights == CUSTOM else set()
    parts |= set() if header.region_probes is None else {"regions"}
    parts |= set() if header.reasons is None else {"reasons"}
    if unknown := [name for name in tensors if name.partition("/")[0] not in parts]:
        raise WeightsError(f"it has the unknown tensors {shorten.repr(unknown)}")


def check_kinds(header: DetectorHeader, given: Sequence[str]) -> None:
    """Raises WeightsError where a place is given for a kind of network that the detector has not."""
    kinds = [name.partition("=")[0] for name in header.networks]
    if unknown := [name for name in given if name.partition("=")[0] not in kinds]:
        has = f"the networks {', '.join(kinds)}" if kinds else "no network from outside"
        raise WeightsError(f"it has {has}, so that {shorten.repr(unknown[0])} belongs to nothing")


def count_features(weights: Weights | None, networks: Sequence[OutsideNetwork], patches: Patches) -> FeatureSizes:
    """Those of an image, of all networks of a detector."""
    own = [] if weights is None else [feature_sizes(weights.discriminator.architecture, patches)]
    return joined_sizes([*own, *(network.sizes for network in networks)])


def stored_weights(header: DetectorHeader, tensors: Mapping[str, Tensor]) -> Weights | None:
    """The released weights of that name, or those in the file itself; both as they were when the detector was fitted.

    Scores mean something only with the weights and the transform that they were calibrated with.
    """
    if header.weights is None:
        if not header.networks or replace(header.transform, decoder="pillow") != Transform():
            raise WeightsError("it has neither weights nor networks that this version could use")
        return None
    if header.weights in PRETRAINED:
        weights = load_pretrained(header.weights)
    elif header.weights != CUSTOM or header.architecture is None:
        raise WeightsError(f"it was fitted with the weights {header.weights!r}, which this version does not have")
    else:
        own = replace(header.transform, decoder="pillow")
        weights = Weights.from_tensors(tensors, header.architecture, own, header.origin)
    transform = replace(weights.transform, decoder=header.transform.decoder)
    found = {"weights": weights.digest, "transform": transform.digest}
    for what, digest in (("weights", header.weights_digest), ("transform", header.transform_digest)):
        if digest != found[what]:
            raise WeightsError(f"it was fitted with the {what} {digest}, but {header.weights} has {found[what]}")
    return weights


def stored_scores(tensors: Mapping[str, Tensor], rate: float) -> NDArray[np.float64]:
    """The calibration scores: finite, ascending, and as many as the rate needs."""
    found = read_stored("the calibration", tensors, {"scores": Stored(SCORES)}, {})
    scores = np.array(found["scores"], np.float64)
    if (scores[1:] < scores[:-1]).any():
        raise WeightsError("its calibration scores are not in ascending order")
    check_calibration(scores, rate)
    return scores
