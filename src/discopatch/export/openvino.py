"""The graph for OpenVINO."""

from pathlib import Path

import onnx

from discopatch.export.engines import import_openvino
from discopatch.export.graph import DetectorGraph
from discopatch.export.onnx import to_onnx
from discopatch.utils import check_space, output_errors, temporary_folder


def write_openvino(graph: DetectorGraph, path: Path) -> None:
    """Writes two files, the weights beside the graph: through ONNX, and never in half precision."""
    openvino = import_openvino()
    with temporary_folder() as folder:
        intermediate = folder / "detector.onnx"
        with output_errors(intermediate):
            onnx.save(to_onnx(graph), intermediate)
        try:
            openvino.save_model(openvino.Core().read_model(intermediate), path, compress_to_fp16=False)
        except RuntimeError:
            check_space(path.parent)  # a full disk is an error without a number here
            raise
