"""From a fitted detector to a folder for other runtimes, compared with the detector before it is there."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from discopatch.calibration import check_calibration
from discopatch.errors import ExportError
from discopatch.explain.anomaly_map import ANOMALY_MAP_SIZE
from discopatch.export.engines import ENGINES, Engine
from discopatch.export.graph import DetectorGraph
from discopatch.export.metadata import (
    ANOMALY_MAP,
    AT_LEAST,
    COMPONENTS,
    DECODERS,
    FORMAT,
    GRAPH_FILES,
    KIND,
    PIXELS,
    PLACE_MAP,
    SCORE,
    WITH_ANOMALY_MAP,
    Metadata,
    check_destination,
    staged_folder,
)
from discopatch.export.parity import NOTABLE_SHIFT, Parity, measure_parity
from discopatch.export.quantize import quantize_plain
from discopatch.export.quantize_inverted import quantize_inverted
from discopatch.export.quantize_residual import quantize_residual
from discopatch.export.references import References
from discopatch.export.runtime import Runtime
from discopatch.heads import Head
from discopatch.images import DEFAULT_WORKERS, Workers
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.utils import check_output, file_digest, require

if TYPE_CHECKING:
    from discopatch.detector import Detector

QUANTIZE = {
    "plain": quantize_plain,
    "residual": quantize_residual,
    "inverted": quantize_inverted,
}  # by the kind of network
NEEDED_PACKAGES = {
    "onnx": {"onnx": "export", "onnxscript": "export", "onnxruntime": "export"},
    "openvino": {"onnx": "export", "onnxscript": "export", "openvino": "openvino"},
    "torch-export": {},
}


class Exported(NamedTuple):
    """What was written, and how well it agrees with the detector."""

    metadata: Metadata
    parity: Parity

    @property
    def caution(self) -> str | None:
        """One sentence if p-values of the export are not those that were calibrated."""
        moved = self.parity.mean_difference
        if abs(moved) <= NOTABLE_SHIFT or self.metadata.content["calibration"]["by"] == "export":
            return None
        return (
            f"scores of normal images moved by {moved:+.2f} of their standard deviations: the false-alarm rate of "
            f"{self.metadata.false_alarm_rate:.2%} holds for the detector, not for this export; give calibration "
            "(--calibration) normal images that are new to the detector, and it is exact again"
        )


def export_detector(
    detector: "Detector",
    folder: Path | str,
    *,
    format: str = "onnx",
    int8: bool = False,
    reference: object | None = None,
    calibration: object | None = None,
    force: bool = False,
    workers: Workers = DEFAULT_WORKERS,
    progress: Callable[[str], object] = lambda text: None,
) -> Exported:
    """Writes the folder, whole or not at all, and only if its graph agrees with the detector.

    format: onnx, openvino or torch-export.
    int8: convolutions in 8 bits, faster and less exact; needs `reference`.
    reference: images to compare on, such as new normal ones; without them synthetic images are used.
    calibration: other normal images, whose scores by the export itself take the place of the detector's own.
    progress: is called with a text for every step.
    """
    check_format(format, int8=int8)
    check_destination(Path(folder), force=force)
    check_output(Path(folder).parent, folder=True)
    if detector.precision != "float32":
        raise ExportError(
            f"the detector was fitted in {detector.precision}, in which no exported graph computes: "
            "fit again with precision='float32'"
        )
    if networks := detector.state_.networks.outside:
        raise ExportError(
            f"the detector has the network {networks[0].name}, which is in no export: fit again with a discriminator "
            f"alone, such as weights={DEFAULT_WEIGHTS!r}"
        )
    transform = detector.transform_
    if transform.decoder not in DECODERS:
        raise ExportError(
            f"images are read with decoder={transform.decoder!r}, on a GPU, and exports run without: fit again with "
            f"one of {', '.join(DECODERS)}, or load the detector with one of these that passed its comparison"
        )
    references = References.collect(reference, transform, int8=int8, workers=workers, limits=detector.limits)
    content = {
        "format": FORMAT,
        "kind": KIND,
        "graph": format,
        "int8": int8,
        **detector.settings(),
        **describe_components(detector.head_),
    }
    with staged_folder(Path(folder), force=force) as staged:
        progress("rounding to 8 bits" if int8 else "copying the network")
        graph = DetectorGraph(detector)
        if references.tuning is not None:
            kind = detector.weights_.discriminator.architecture.kind
            if (kind, format) == ("inverted", "openvino"):
                raise ExportError(
                    "OpenVINO does not read 8 bits of inverted residual networks: leave out int8, or choose onnx"
                )
            QUANTIZE[kind](graph.image, graph.regions, torch.from_numpy(references.tuning))
        progress("writing the graph")
        runtime = write_runtime(graph, staged, content, calibrated_by="detector")
        if calibration is not None:
            progress("calibrating")
            runtime.max_pixels, runtime.max_bytes = detector.max_pixels, detector.max_bytes
            scores = np.sort(runtime.score(calibration, workers=workers))
            scores = scores[~np.isnan(scores)]  # those of images that could not be read
            check_calibration(scores, detector.false_alarm_rate_)
            graph.calibration_scores = torch.from_numpy(scores)
            runtime = write_runtime(graph, staged, content, calibrated_by="export")
        progress(f"comparing on {len(references.pixels)} images")
        parity = measure_parity(detector, runtime, references)
        parity.check()
        metadata = Metadata(
            {
                **runtime.metadata.content,
                "threshold": runtime.threshold_,
                **describe_tensors(format, transform.size, detector.head_),
                "files": {name: file_digest(staged / name) for name in GRAPH_FILES[format]},
                "parity": {"synthetic_references": references.synthetic, **asdict(parity)},
            }
        )
        metadata.write(staged)
    return Exported(metadata, parity)


def check_format(format: str, *, int8: bool) -> None:
    """Raises an error unless there is such a format, and all packages that it takes are installed."""
    if format not in GRAPH_FILES:
        raise ExportError(f"unknown format {format!r}: choose one of {', '.join(GRAPH_FILES)}")
    if int8 and format == "torch-export":
        raise ExportError("torch-export has no 8 bits: choose the format onnx or openvino, or leave int8 out")
    for module, extra in NEEDED_PACKAGES[format].items():
        require(module, extra)


def write_runtime(graph: DetectorGraph, folder: Path, content: dict[str, Any], *, calibrated_by: str) -> Runtime:
    """Writes the graph and returns a runtime of it, read from its files as it will be where it is used."""
    write_graph(content["graph"], graph, folder)
    calibration = {"by": calibrated_by, "scores": graph.calibration_scores.tolist()}
    return Runtime(Metadata({**content, "calibration": calibration}), open_graph(content["graph"], folder))


def write_graph(format: str, graph: DetectorGraph, folder: Path) -> None:
    path = folder / GRAPH_FILES[format][0]
    match format:
        case "onnx":
            from discopatch.export.onnx import write_onnx

            write_onnx(graph, path)
        case "openvino":
            from discopatch.export.openvino import write_openvino

            write_openvino(graph, path)
        case _:
            from discopatch.export.torch_export import write_torch_export

            write_torch_export(graph, path)


def open_graph(format: str, folder: Path) -> Engine:
    path = folder / GRAPH_FILES[format][0]
    if format in ENGINES:
        return ENGINES[format](path)
    from discopatch.export.torch_export import TorchEngine

    return TorchEngine(path)


def describe_components(head: Head) -> dict[str, Any]:
    """The field of the metadata for a head that tells of components."""
    names = list(head.component_names)
    return {"components": {"names": names, "significance_level": head.significance_level}} if names else {}


def describe_tensors(format: str, size: int, head: Head) -> dict[str, Any]:
    """Inputs and outputs; only the graph of ONNX can be asked to leave the anomaly map out."""
    choice = {WITH_ANOMALY_MAP: {"type": "bool", "shape": [], "default": True}} if format == "onnx" else {}
    own: dict[str, Any] = {}
    if head.component_names:
        own[COMPONENTS] = {"type": "float64", "shape": ["images", len(head.component_names)]}
    if head.place_side:
        own[PLACE_MAP] = {"type": "float32", "shape": ["images", head.place_side, head.place_side]}
    return {
        "inputs": {PIXELS: {"type": "uint8", "shape": ["images", size, size, 3]}, **choice},
        "outputs": {
            SCORE: {"type": "float64", "shape": ["images"]},
            AT_LEAST: {"type": "int64", "shape": ["images"]},
            ANOMALY_MAP: {"type": "float32", "shape": ["images", ANOMALY_MAP_SIZE, ANOMALY_MAP_SIZE]},
            **own,
        },
    }
