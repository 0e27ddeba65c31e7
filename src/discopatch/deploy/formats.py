"""The formats: what writes each, and what runs it. Nothing optional is imported before it is used."""

from pathlib import Path

from discopatch.deploy.engines import ENGINES, Engine
from discopatch.deploy.graph import DetectorGraph
from discopatch.deploy.sidecar import FILES, ExportError
from discopatch.extras import check_installed

NEEDED = {
    "onnx": {"onnx": "export", "onnxscript": "export", "onnxruntime": "export"},
    "openvino": {"onnx": "export", "onnxscript": "export", "openvino": "openvino"},
    "torch-export": {},
}


def check_format(format: str, *, int8: bool) -> None:
    """Whether there is such a format, and all that it takes."""
    if format not in FILES:
        raise ExportError(f"unknown format {format!r}: choose one of {', '.join(FILES)}")
    if int8 and format == "torch-export":
        raise ExportError("torch-export has no 8 bits: choose the format onnx or openvino, or leave int8 out")
    for module, extra in NEEDED[format].items():
        check_installed(module, extra)


def write_graph(format: str, graph: DetectorGraph, folder: Path, *, size: int) -> None:
    """The files of the format, into the folder."""
    path = folder / FILES[format][0]
    match format:
        case "onnx":
            from discopatch.deploy.onnxfile import write_onnx

            write_onnx(graph, path, size=size)
        case "openvino":
            from discopatch.deploy.openvinofile import write_openvino

            write_openvino(graph, path, size=size)
        case _:
            from discopatch.deploy.torchfile import write_torch

            write_torch(graph, path, size=size)


def open_graph(format: str, folder: Path) -> Engine:
    """The graph as it will run where it goes, from the files."""
    path = folder / FILES[format][0]
    if format in ENGINES:
        return ENGINES[format](path)
    from discopatch.deploy.torchfile import TorchEngine

    return TorchEngine(path)
