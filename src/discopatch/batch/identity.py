"""What scores depend on, as digests: whether two detectors are the same, and in what they differ."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np

from discopatch.schema import Digest, between

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.encoders import OutsideNetwork
    from discopatch.export.runtime import Runtime
    from discopatch.images import Transform
    from discopatch.model import Weights


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A detector by the digests of its parts; of an export encoder and head are one, its graph."""

    kind: Literal["detector", "export"]
    digest: Digest  # of all that follows
    transform: Digest
    encoder: Digest  # of the networks and of what else decides the features of an image
    head: Digest  # of what was learnt about them
    calibration: Digest  # of the scores of the images that were held out
    false_alarm_rate: Annotated[float, between(0, 1)]

    @classmethod
    def of(cls, predictor: "Detector | Runtime") -> Self:
        from discopatch.export.runtime import Runtime

        parts = export_parts(predictor) if isinstance(predictor, Runtime) else detector_parts(predictor)
        rate = predictor.false_alarm_rate_
        calibration = np.ascontiguousarray(predictor.calibration_scores_, "<f8").tobytes()
        found = {**parts, "calibration": digest_of(calibration), "false_alarm_rate": rate}
        return cls(digest=digest_of(as_bytes(found)), **found)

    def differences(self, other: Self) -> list[str]:
        """In what another detector differs, in words."""
        names = {
            "kind": "kind (detector or export)",
            "transform": "transform",
            "encoder": "networks",
            "head": "head",
            "calibration": "calibration",
            "false_alarm_rate": "false-alarm rate",
        }
        return [text for name, text in names.items() if getattr(self, name) != getattr(other, name)]


def detector_parts(detector: "Detector") -> dict[str, Any]:
    state = detector.state_
    parameters = state.parameters
    head = hashlib.sha256(as_bytes({"head": parameters["head"], "probes": state.head.probes}))
    for name, values in sorted(state.head.to_tensors().items()):
        head.update(as_bytes({"name": name, "shape": list(values.shape)}))
        head.update(np.ascontiguousarray(values.cpu().double().numpy(), "<f8").tobytes())
    return {
        "kind": "detector",
        "transform": detector.transform_.digest,
        "encoder": encoder_digest(state.weights, state.networks, parameters, detector.transform_),
        "head": head.hexdigest()[:16],
    }


def encoder_digest(
    weights: "Weights | None",
    networks: "Sequence[OutsideNetwork]",
    parameters: Mapping[str, Any],
    transform: "Transform",
) -> str:
    """That of the networks and of all else that decides the features of an image."""
    cut = {} if parameters["patches"] == "dense" else {name: parameters[name] for name in ("sampling", "seed")}
    encoder = {
        "weights": None if weights is None else weights.digest,
        "networks": [network.digest for network in networks],
        "transform": transform.digest,
        **{name: parameters[name] for name in ("patches", "precision")},
        **cut,
    }
    return digest_of(as_bytes(encoder))


def export_parts(runtime: "Runtime") -> dict[str, Any]:
    return {
        "kind": "export",
        "transform": runtime.transform_.digest,
        "encoder": runtime.digest_,
        "head": runtime.digest_,
    }


def as_bytes(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
