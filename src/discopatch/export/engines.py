"""Engines: exported graphs, loaded and ready to run on a CPU, without torch."""

import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.export.metadata import ANOMALY_MAP, AT_LEAST, COMPONENTS, PIXELS, PLACE_MAP, SCORE, WITH_ANOMALY_MAP
from discopatch.images import Pixels
from discopatch.utils import require


class GraphOutput(NamedTuple):
    """What a graph returns for B images."""

    score: NDArray[np.float64]  # (B,)
    at_least: NDArray[np.int64]  # (B,): how many calibration scores are at least as high
    anomaly_map: NDArray[np.float32] | None  # (B, 64, 64), where it was asked for
    components: NDArray[np.float64] | None = None  # (B, components): z-scores of a head of components
    place_map: NDArray[np.float32] | None = None  # (B, side, side), with the anomaly map, where places count

    @classmethod
    def of(cls, found: Mapping[str, NDArray[Any]]) -> Self:
        """From outputs by name."""
        names = (SCORE, AT_LEAST, ANOMALY_MAP, COMPONENTS, PLACE_MAP)
        return cls(*(found.get(name) for name in names))  # type: ignore[arg-type]  # the first two are always there


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
        self._names = wanted_outputs({each.name for each in self._session.get_outputs()})

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        names = self._names[anomaly_map]
        found = self._session.run(names, {PIXELS: pixels, WITH_ANOMALY_MAP: np.array(anomaly_map)})
        return GraphOutput.of(dict(zip(names, found, strict=True)))


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
        self._names = wanted_outputs({name for each in self._model.outputs for name in each.names})

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        found = (self._full if anomaly_map else self._without_anomaly_map)(pixels)
        return GraphOutput.of({name: found[name] for name in self._names[anomaly_map]})

    @cached_property
    def _full(self) -> Any:
        return self._core.compile_model(self._model, "CPU", self._options)

    @cached_property
    def _without_anomaly_map(self) -> Any:
        outputs = [self._model.output(name) for name in self._names[False]]
        part = self._openvino.Model(outputs, self._model.get_parameters(), SCORE)
        return self._core.compile_model(part, "CPU", self._options)


ENGINES: dict[str, type[OnnxEngine] | type[OpenvinoEngine]] = {"onnx": OnnxEngine, "openvino": OpenvinoEngine}


def wanted_outputs(there: set[str]) -> tuple[list[str], list[str]]:
    """What is asked of a graph that has these outputs: without an anomaly map, and with one."""
    basic = [SCORE, AT_LEAST, *(name for name in (COMPONENTS,) if name in there)]
    return basic, [*basic, ANOMALY_MAP, *(name for name in (PLACE_MAP,) if name in there)]


def import_openvino() -> Any:
    """The module openvino, without its telemetry: a plain import would send a message to its makers."""
    require("openvino", "openvino")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: it cannot be imported
    import openvino

    return openvino
