"""Engines: exported graphs, loaded and ready to run on a CPU, without torch."""

import sys
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from discopatch.export.metadata import ANOMALY_MAP, AT_LEAST, OUTPUTS, PIXELS, SCORE, WITH_ANOMALY_MAP
from discopatch.images import Pixels
from discopatch.utils import require


class GraphOutput(NamedTuple):
    """What a graph returns for B images."""

    score: NDArray[np.float64]  # (B,)
    at_least: NDArray[np.int64]  # (B,): how many calibration scores are at least as high
    anomaly_map: NDArray[np.float32] | None  # (B, 64, 64), where it was asked for


class Engine(Protocol):
    """A loaded graph: pixels (B, size, size, 3) -> outputs; an anomaly map takes several times as long as a score."""

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput: ...


class OnnxEngine:
    """Runs `detector.onnx` with onnxruntime."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        require("onnxruntime", "runtime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # or it warns that an input has a default
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        names = OUTPUTS if anomaly_map else (SCORE, AT_LEAST)
        found = self._session.run(list(names), {PIXELS: pixels, WITH_ANOMALY_MAP: np.array(anomaly_map)})
        return GraphOutput(found[0], found[1], found[2] if anomaly_map else None)


class OpenvinoEngine:
    """Runs `detector.xml` with OpenVINO."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        self._openvino = import_openvino()
        # Where a processor has half precision it would be used, and lose the small differences between scores.
        self._options: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            self._options["INFERENCE_NUM_THREADS"] = threads
        self._core = self._openvino.Core()
        self._model = self._core.read_model(path)

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        found = (self._full if anomaly_map else self._without_anomaly_map)(pixels)
        return GraphOutput(found[SCORE], found[AT_LEAST], found[ANOMALY_MAP] if anomaly_map else None)

    @cached_property
    def _full(self) -> Any:
        return self._core.compile_model(self._model, "CPU", self._options)

    @cached_property
    def _without_anomaly_map(self) -> Any:
        outputs = [self._model.output(name) for name in (SCORE, AT_LEAST)]
        part = self._openvino.Model(outputs, self._model.get_parameters(), SCORE)
        return self._core.compile_model(part, "CPU", self._options)


ENGINES: dict[str, type[OnnxEngine] | type[OpenvinoEngine]] = {"onnx": OnnxEngine, "openvino": OpenvinoEngine}


def import_openvino() -> Any:
    """The module openvino, without its telemetry: a plain import would send a message to its makers."""
    require("openvino", "openvino")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: it cannot be imported
    import openvino

    return openvino
