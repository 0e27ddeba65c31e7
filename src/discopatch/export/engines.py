"""Engines that run the graphs of an export on a CPU, without torch."""

import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from discopatch.export.metadata import PIXELS, graph_paths
from discopatch.images import Pixels
from discopatch.utils import require

Outputs = dict[str, NDArray[np.floating]]  # by name; the first axis counts images


class Engine(Protocol):
    """Pixels (B, size, size, 3) to outputs. Maps take several times as long as a score."""

    def __call__(self, pixels: Pixels, *, maps: bool = False) -> Outputs: ...


class FolderEngine:
    """The graphs in the folder of an export; the graph of the maps is opened when it is first needed."""

    def __init__(self, folder: Path, format: str, threads: int | None = None) -> None:
        self._paths, self._open, self._threads = graph_paths(folder, format), OPEN[format], threads
        self._score = self._open(self._paths[0], threads)

    @cached_property
    def _maps(self) -> Callable[[Pixels], Outputs]:
        return self._open(self._paths[1], self._threads)

    def __call__(self, pixels: Pixels, *, maps: bool = False) -> Outputs:
        return {**self._score(pixels), **(self._maps(pixels) if maps else {})}


def open_onnx(path: Path, threads: int | None) -> Callable[[Pixels], Outputs]:
    require("onnxruntime", "runtime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda pixels: dict(zip(names, session.run(names, {PIXELS: pixels}), strict=True))


def open_openvino(path: Path, threads: int | None) -> Callable[[Pixels], Outputs]:
    core = import_openvino().Core()
    # With half precision, the default where the processor has it, small differences between scores would be lost.
    options: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    model = core.compile_model(core.read_model(path), "CPU", options)
    names = [each.any_name for each in model.outputs]
    return lambda pixels: dict(zip(names, model(pixels).values(), strict=True))


OPEN = {"onnx": open_onnx, "openvino": open_openvino}


def import_openvino() -> Any:
    """The module openvino without its telemetry, which sends a message at import."""
    require("openvino", "openvino")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None prevents the import
    import openvino

    return openvino
