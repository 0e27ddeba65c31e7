"""Export of a fitted detector to a folder, which is compared with the detector before it is written."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from discopatch.calibration import check_calibration
from discopatch.errors import ExportError
from discopatch.export.graph import DetectorGraph
from discopatch.export.metadata import DECODERS, GRAPH_FILES, Metadata, check_destination
from discopatch.export.parity import NOTABLE_SHIFT, Parity, References, measure_parity
from discopatch.export.quantize import quantize_inverted, quantize_plain
from discopatch.export.runtime import OPEN, Runtime
from discopatch.images import DEFAULT_WORKERS, Workers
from discopatch.pretrained import DEFAULT_WEIGHTS
from discopatch.utils import file_digest, require, staged_folder

if TYPE_CHECKING:
    from discopatch.detector import Detector

QUANTIZE = {"plain": quantize_plain, "inverted": quantize_inverted}  # by the kind of network


class Exported(NamedTuple):
    """An export that was written, and its agreement with the detector."""

    metadata: Metadata
    parity: Parity

    @property
    def caution(self) -> str | None:
        """A sentence where the p-values of the export need a new calibration."""
        moved = self.parity.mean_difference
        if abs(moved) <= NOTABLE_SHIFT or self.metadata.calibrated_by == "export":
            return None
        return (
            f"scores of normal images moved by {moved:+.2f} standard deviations, so that the false-alarm rate of "
            f"{self.metadata.fitted.false_alarm_rate:.2%} does not hold for this export: give calibration "
            "(--calibration) new normal images"
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
    """Writes the folder of an export, if its graph agrees with the detector; otherwise nothing is written.

    format: `onnx` or `openvino`.
    int8: convolutions in 8 bits, which are faster and less exact; needs `reference`.
    reference: images to compare on, preferably new normal images; without it synthetic images.
    calibration: new normal images. Their scores by the export replace the calibration scores of the detector.
    force: whether an existing export is replaced.
    progress: called with a text at every step.
    """
    folder = Path(folder)
    check_request(detector, format, int8=int8, calibrated=calibration is not None)
    check_destination(folder, force=force)
    transform = detector.transform_
    references = References.collect(reference, transform, int8=int8, workers=workers, limits=detector.limits)
    with staged_folder(folder) as staged:
        progress("rounding to 8 bits" if int8 else "copying the network")
        graph = DetectorGraph(detector)
        if references.tuning:
            kind = detector.weights_.discriminator.architecture.kind
            QUANTIZE[kind](graph.image, [torch.from_numpy(each) for each in references.tuning])
        progress("writing the graph")
        runtime = write_runtime(detector, graph, staged, format=format, int8=int8)
        if calibration is not None:
            progress("calibrating")
            runtime = calibrated(runtime, calibration, workers=workers)
        progress(f"comparing on {len(references.pixels)} images")
        parity = measure_parity(detector, runtime, references, int8=int8)
        parity.check()
        metadata = replace(runtime.metadata, parity=asdict(parity))
        metadata.write(staged)
    return Exported(metadata, parity)


def check_request(detector: "Detector", format: str, *, int8: bool, calibrated: bool) -> None:
    """Raises an error where the detector cannot be exported so, or a package is missing."""
    if format not in GRAPH_FILES:
        raise ExportError(f"unknown format {format!r}: choose {' or '.join(GRAPH_FILES)}")
    require("onnx", "export")
    require("onnxscript", "export")
    require(*(("onnxruntime", "export") if format == "onnx" else ("openvino", "openvino")))
    if detector.precision != "float32":
        raise ExportError(f"the precision is {detector.precision}: fit again with precision='float32'")
    if networks := detector.state_.networks.outside:
        raise ExportError(
            f"the network {networks[0].name} cannot be exported: fit again with weights={DEFAULT_WEIGHTS!r}"
        )
    if (decoder := detector.transform_.decoder) not in DECODERS:
        raise ExportError(f"decoder={decoder!r} needs a GPU, which exports do not use: choose {' or '.join(DECODERS)}")
    fitted = detector.state_.transform.decoder
    if decoder != fitted and "scaled" in (decoder, fitted) and not calibrated:
        remedy = "give calibration (--calibration) new normal images"
        raise ExportError(f"the detector was calibrated with decoder={fitted!r}, not {decoder!r}: {remedy}")
    if int8 and (detector.weights_.discriminator.architecture.kind, format) == ("inverted", "openvino"):
        raise ExportError("OpenVINO does not support 8 bits of this network: leave out int8, or choose onnx")


def write_runtime(detector: "Detector", graph: DetectorGraph, folder: Path, *, format: str, int8: bool) -> Runtime:
    """Writes the graph and returns a runtime that reads it from its files."""
    from discopatch.export.graph_files import write_graph

    path = folder / GRAPH_FILES[format][0]
    write_graph(format, graph, path)
    metadata = Metadata(
        graph=format,  # type: ignore[arg-type]  # one of GRAPH_FILES
        int8=int8,
        settings=detector.settings(),
        calibration_scores=tuple(detector.calibration_.stored.tolist()),
        components=detector.component_names,
        significance_level=detector.head_.significance_level if detector.component_names else 0.0,
        place_level=detector.places_.level.item(),
        files={name: file_digest(folder / name) for name in GRAPH_FILES[format]},
        parity={},
    )
    return Runtime(metadata, OPEN[format](path, None), detector.limits)


def calibrated(runtime: Runtime, images: object, *, workers: Workers) -> Runtime:
    """The runtime with its own scores of these normal images as calibration."""
    found: dict[str | None, list[float]] = {name: [] for name in runtime.calibration_.parts}
    for each in runtime.predict_iter(images, workers=workers):
        if each.score is not None:  # other images could not be read
            found[each.class_name].append(each.score)
    for name, part in runtime.calibration_.parts.items():
        check_calibration(np.array(found[name]), part.rate, name)
    scores = tuple(score for own in found.values() for score in sorted(own))
    settings = runtime.metadata.settings
    classes = [{**each, "calibrating": len(found[each["name"]])} for each in settings["classes"]]
    settings = {**settings, "classes": classes}
    metadata = replace(runtime.metadata, settings=settings, calibration_scores=scores, calibrated_by="export")
    return Runtime(metadata, runtime._engine, runtime.limits)
