"""What the sidecar says."""

from math import isfinite
from pathlib import Path
from typing import Any

from discopatch.decision import threshold
from discopatch.deploy.parity import Parity
from discopatch.deploy.references import Floats, References
from discopatch.deploy.sidecar import (
    AT_LEAST,
    FILES,
    FORMAT,
    HEAT,
    KIND,
    PIXELS,
    SCORE,
    WITH_HEAT,
    Sidecar,
    sha256,
)
from discopatch.detector import Detector
from discopatch.scoring.regions import CELLS


def described(
    detector: Detector,
    folder: Path,
    format: str,
    *,
    int8: bool,
    scores: Floats,
    references: References,
    parity: Parity,
) -> Sidecar:
    """All that a result depends on, all that it takes to run the graph, and what was measured."""
    limit = threshold(scores, detector.false_alarm_rate)
    return Sidecar(
        {
            "format": FORMAT,
            "kind": KIND,
            "graph": format,
            "int8": int8,
            **detector.settings(),
            "threshold": limit if isfinite(limit) else None,
            "calibration": {
                "scores": len(scores),
                "spread": float(scores.std()),
                "by": "detector" if scores is detector.fitted.calibration else "export",
            },
            "inputs": inputs(format, detector.loaded_weights.transform.size),
            "outputs": {
                SCORE: tensor("float64", "images"),
                AT_LEAST: tensor("int64", "images"),
                HEAT: tensor("float32", "images", CELLS, CELLS),
            },
            "files": {name: sha256(folder / name) for name in FILES[format]},
            "parity": {"made_up_images": references.made_up, **parity.to_dict()},
        }
    )


def inputs(format: str, size: int) -> dict[str, Any]:
    """What the graph takes; only that of ONNX can be asked to leave the heatmap out."""
    pixels = {PIXELS: tensor("uint8", "images", size, size, 3)}
    return {**pixels, WITH_HEAT: {**tensor("bool"), "default": True}} if format == "onnx" else pixels


def tensor(of: str, *shape: int | str) -> dict[str, Any]:
    """Its type and shape."""
    return {"type": of, "shape": list(shape)}
