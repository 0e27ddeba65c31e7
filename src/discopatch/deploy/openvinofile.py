"""The graph for OpenVINO."""

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from discopatch.deploy.engines import openvino_without_telemetry
from discopatch.deploy.graph import DetectorGraph
from discopatch.deploy.onnxfile import as_onnx


def write_openvino(graph: DetectorGraph, path: Path, *, size: int) -> None:
    """Two files, the weights beside the graph: through ONNX, and never in half precision."""
    openvino = openvino_without_telemetry()
    with TemporaryDirectory(prefix="discopatch-") as folder:
        through = Path(folder) / "detector.onnx"
        onnx.save(as_onnx(graph, size=size), through)
        model = openvino.Core().read_model(through)
        openvino.save_model(model, path, compress_to_fp16=False)
