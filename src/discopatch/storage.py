"""A fitted detector as one file: safetensors with a JSON header, versioned, without pickle."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from discopatch.accepting import MAX_ACCEPTED, with_modes
from discopatch.calibration import MAX_CLASSES, Calibration, DetectionRate, NormalClass
from discopatch.encoders import ChosenNetworks, FeatureSizes, OutsideNetwork, find_network
from discopatch.errors import WeightsError
from discopatch.explain.reasons import ReasonModel
from discopatch.fitting import FitParameters, FitResult, FittedState
from discopatch.heads import HEADS, PROBES, Head, PlaceModel
from discopatch.heads.base import read_tensors
from discopatch.heads.basic import check_statistics
from discopatch.heads.modes import Accepted, Mode
from discopatch.images import RefusalReport, Transform
from discopatch.model import Architecture, Weights, read_safetensors, write_safetensors
from discopatch.model.weights import refused
from discopatch.pretrained import PRETRAINED, load_pretrained
from discopatch.resolution import ResolutionStep
from discopatch.schema import Digest, Name, Positive, between, length, read_fields, shorten
from discopatch.utils import strip_prefix

KIND = "detector"
CUSTOM = "custom"  # the name of weights that are stored in the file itself
MAX_NETWORKS = 8  # from outside
ACCEPTED = "accepted-"  # and its number, the prefix of tensors
KEPT = (  # what a fit has learnt and the header has by the same name
    *("n_groups", "groups", "cautions", "refusals", "detection_rates", "aspects", "resolutions", "promised_rate"),
    "classes",
)


@dataclass(frozen=True, kw_only=True)
class DetectorHeader(FitParameters):
    """The header of a detector's file, beyond its format."""

    discopatch: Name
    weights: Name | None
    weights_digest: Digest | None
    transform: Transform
    transform_digest: Digest
    false_alarm_rate: Annotated[float, between(1e-9, 1 - 1e-9)]
    images: Positive
    groups: Name | None
    n_groups: Positive | None
    probes: tuple[Name, ...]
    reasons: tuple[Name, ...] | None
    cautions: tuple[str, ...]
    refusals: RefusalReport
    detection_rates: tuple[DetectionRate, ...]
    aspects: tuple[Annotated[float, between(1e-6, 1e6)], Annotated[float, between(1e-6, 1e6)]] | None
    classes: Annotated[tuple[NormalClass, ...], length(0, MAX_CLASSES)] = ()
    resolutions: tuple[ResolutionStep, ...] = ()
    promised_rate: Annotated[float, between(1e-9, 1 - 1e-9)] | None = None
    accepted: Annotated[tuple[Accepted, ...], length(0, MAX_ACCEPTED)] = ()
    networks: Annotated[dict[Annotated[str, length(1, 5000)], Digest], length(0, MAX_NETWORKS)] = field(
        default_factory=dict
    )
    architecture: Architecture | None = None
    weights_transform: Transform = Transform()  # noqa: RUF009 - frozen
    origin: dict[str, Any] = field(default_factory=dict)


def describe(state: FittedState, transform: Transform) -> dict[str, Any]:
    """Everything that a result depends on, by name and digest; images are read through the transform."""
    weights, name, outside = state.networks
    return {
        "weights": None if weights is None else name or CUSTOM,
        "weights_digest": None if weights is None else weights.digest,
        "networks": {network.name: network.digest for network in outside},
        "transform": transform.to_dict(),
        "transform_digest": transform.digest,
        "false_alarm_rate": state.fitted.calibration.rate,
        **asdict(state.parameters),
        "promised_rate": state.fitted.promised_rate,
        "accepted": [asdict(each.source) for each in state.fitted.modes],
        "images": state.fitted.n_fit,
        "groups": state.fitted.groups,
        "n_groups": state.fitted.n_groups,
        "classes": [asdict(each) for each in state.fitted.classes],
        "detection_rates": [asdict(each) for each in state.fitted.detection_rates],
        "resolutions": [asdict(each) for each in state.fitted.resolutions],
        "cautions": list(state.fitted.cautions),
        "aspects": None if state.fitted.aspects is None else list(state.fitted.aspects),
    }


def write_detector(path: Path, state: FittedState, version: str) -> None:
    """Writes the file atomically; the weights go into it unless they are released ones."""
    fitted, weights = state.fitted, state.networks.weights
    header = {
        "discopatch": version,
        **describe(state, state.transform),
        "probes": list(fitted.head.probes),
        "reasons": None if fitted.reasons is None else list(fitted.reasons.probes),
        "refusals": asdict(fitted.refusals),
    }
    parts = {
        "head": fitted.head.to_tensors(),
        "places": fitted.places.to_tensors(),
        "reasons": {} if fitted.reasons is None else fitted.reasons.to_tensors(),
        "calibration": {"scores": torch.from_numpy(fitted.calibration.stored)},
    }
    parts |= {f"{ACCEPTED}{number}": mode.to_tensors() for number, mode in enumerate(fitted.modes)}
    tensors = {f"{part}/{name}": compact(value) for part, found in parts.items() for name, value in found.items()}
    if weights is not None and state.networks.name is None:
        header |= {
            "architecture": weights.discriminator.architecture.to_dict(),
            "weights_transform": weights.transform.to_dict(),
            "origin": weights.origin,
        }
        tensors |= {f"weights/{name}": value for name, value in weights.discriminator.state_dict().items()}
    write_safetensors(path, tensors, kind=KIND, header=header)


def compact(values: Tensor) -> Tensor:
    """The values in float32 where that loses nothing, which halves the bytes."""
    return values.float() if torch.equal(values.float().double(), values.double()) else values


def read_detector(path: Path, places: Sequence[str | OutsideNetwork] = ()) -> FittedState:
    """The fitted state in a file, or WeightsError unless all of its parts fit together.

    `places` are where networks from outside lie now, KIND=PLACE, or the networks themselves.
    """
    content, tensors = read_safetensors(path, kind=KIND)
    with refused(path, "take the original, or fit again"):
        header = read_fields(DetectorHeader, content, where="header", ignore_unknown=True)
    with refused(path, f"install discopatch {header.discopatch}, or fit again"):
        check_known(header, tensors)
        weights = stored_weights(header, strip_prefix(tensors, "weights"))
    with refused(path, "or fit again"):
        check_places(header, places)
        outside = tuple(find_network(name, digest, places) for name, digest in header.networks.items())
    with refused(path, f"install discopatch {header.discopatch}, or fit again"):
        networks = ChosenNetworks(weights, None if header.weights == CUSTOM else header.weights, outside)
        sizes = networks.sizes()
        head = HEADS[header.head].from_tensors(strip_prefix(tensors, "head"), header.probes, sizes)
        found = PlaceModel.from_tensors(strip_prefix(tensors, "places"), sizes=sizes)
        reasons = None
        if header.reasons is not None:
            reasons = ReasonModel.from_tensors(strip_prefix(tensors, "reasons"), header.reasons)
        calibration = stored_calibration(strip_prefix(tensors, "calibration"), header)
        check_classes(head, header.classes, sizes)
        modes = [
            Mode.from_tensors(source, strip_prefix(tensors, f"{ACCEPTED}{number}"))
            for number, source in enumerate(header.accepted)
        ]
    state = FittedState(
        FitParameters(**{name: getattr(header, name) for name in FitParameters.__dataclass_fields__}),
        networks,
        header.transform,
        FitResult(
            head=head,
            places=found,
            reasons=reasons,
            calibration=calibration,
            n_fit=header.images,
            **{name: getattr(header, name) for name in KEPT},
        ),
    )
    with refused(path, "take the original, or fit again"):
        return with_modes(state, modes) if modes else state


def check_known(header: DetectorHeader, tensors: Mapping[str, Tensor]) -> None:
    """Raises WeightsError unless this version has everything that the header names."""
    if header.head not in HEADS:
        raise WeightsError(f"it has the unknown head {header.head!r}")
    for probes in (header.probes, header.reasons or ()):
        if unknown := set(probes) - PROBES.keys():
            raise WeightsError(f"it has the unknown probes {sorted(unknown)}")
        if len(set(probes)) < len(probes):
            raise WeightsError("it has a probe twice")
    parts = {"head", "places", "calibration"}
    parts |= {"weights"} if header.weights == CUSTOM else set()
    parts |= set() if header.reasons is None else {"reasons"}
    parts |= {f"{ACCEPTED}{number}" for number in range(len(header.accepted))}
    if extra := [name for name in tensors if name.partition("/")[0] not in parts]:
        raise WeightsError(f"it has the unknown tensors {shorten.repr(extra)}")


def check_places(header: DetectorHeader, places: Sequence[str | OutsideNetwork]) -> None:
    """Raises WeightsError where a place is given for a kind of network that the detector does not have."""
    kinds = [name.partition("=")[0] for name in header.networks]
    given = [each for each in places if isinstance(each, str)]
    if unknown := [name for name in given if name.partition("=")[0] not in kinds]:
        has = f"the networks {', '.join(kinds)}" if kinds else "no network from outside"
        raise WeightsError(f"it has {has}: leave out {shorten.repr(unknown[0])}")


def stored_weights(header: DetectorHeader, tensors: Mapping[str, Tensor]) -> Weights | None:
    """The released weights of that name or those in the file, if their digests are those of the fit."""
    if header.transform.digest != header.transform_digest:
        raise WeightsError(f"its transform has the digest {header.transform.digest}, not {header.transform_digest}")
    if header.weights is None:
        if not header.networks:
            raise WeightsError("it has neither weights nor networks that this version can use")
        return None
    if header.weights in PRETRAINED:
        weights = load_pretrained(header.weights)
    elif header.weights != CUSTOM or header.architecture is None:
        raise WeightsError(f"it was fitted with the weights {header.weights!r}, which this version does not have")
    else:
        weights = Weights.from_tensors(tensors, header.architecture, header.weights_transform, header.origin)
    if header.weights_digest != weights.digest:
        raise WeightsError(
            f"it was fitted with the weights {header.weights_digest}, but {header.weights} has {weights.digest}"
        )
    return weights


def stored_calibration(tensors: Mapping[str, Tensor], header: DetectorHeader) -> Calibration:
    """The calibration, whose scores are finite, ascending, and enough for the rate."""
    scores = read_tensors("the calibration", tensors, {"scores": ("scores",)})["scores"]
    promise = {"confidence": header.confidence, "promised": header.promised_rate}
    found = Calibration.of_classes(scores, header.false_alarm_rate, header.classes, **promise)
    found.check()
    return found


def check_classes(head: Head, classes: Sequence[NormalClass], sizes: FeatureSizes) -> None:
    """Raises WeightsError unless the head assigns images to these classes."""
    numbers = [] if head.classes is None else head.classes.numbers.tolist()
    if set(numbers) != set(range(len(classes))):
        raise WeightsError(f"it assigns images to classes other than its {len(classes)}")
    if head.classes is not None:
        check_statistics(len(head.classes.mean), sizes)
