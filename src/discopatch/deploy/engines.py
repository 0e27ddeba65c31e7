"""What runs an exported graph: onnxruntime or OpenVINO, on a CPU, without torch."""

import sys
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from discopatch.deploy.sidecar import AT_LEAST, HEAT, OUTPUTS, PIXELS, SCORE, WITH_HEAT
from discopatch.extras import check_installed
from discopatch.images import Pixels


class Answer(NamedTuple):
    """What the graph says about some pictures."""

    score: NDArray[np.float64]  # (B,)
    at_least: NDArray[np.int64]  # (B,): how many calibration scores are at least as high
    heat: NDArray[np.float32] | None  # (B, 64, 64), where it was asked for


class Engine(Protocol):
    """A graph that is loaded."""

    def __call__(self, pixels: Pixels, *, heat: bool = False) -> Answer:
        """(B, size, size, 3) -> the answer; the heatmap costs several times as much as the score."""


class OnnxEngine:
    """With onnxruntime."""

    def __init__(self, graph: Path, threads: int | None = None) -> None:
        check_installed("onnxruntime", "runtime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # or it warns that an input has a default
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(self, pixels: Pixels, *, heat: bool = False) -> Answer:
        """See `Engine`."""
        names = OUTPUTS if heat else (SCORE, AT_LEAST)
        found = self._session.run(list(names), {PIXELS: pixels, WITH_HEAT: np.array(heat)})
        return Answer(found[0], found[1], found[2] if heat else None)


class OpenvinoEngine:
    """With OpenVINO."""

    def __init__(self, graph: Path, threads: int | None = None) -> None:
        self._openvino = openvino_without_telemetry()
        # Where a processor has half precision it would be used, and lose the differences that scores are made of.
        self._options: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            self._options["INFERENCE_NUM_THREADS"] = threads
        self._core = self._openvino.Core()
        self._model = self._core.read_model(graph)

    def __call__(self, pixels: Pixels, *, heat: bool = False) -> Answer:
        """See `Engine`."""
        found = (self._with_heat if heat else self._without_heat)(pixels)
        return Answer(found[SCORE], found[AT_LEAST], found[HEAT] if heat else None)

    @cached_property
    def _without_heat(self) -> Any:
        model = self._model
        ends = [model.output(name) for name in (SCORE, AT_LEAST)]
        return self._core.compile_model(
            self._openvino.Model(ends, model.get_parameters(), "score"), "CPU", self._options
        )

    @cached_property
    def _with_heat(self) -> Any:
        return self._core.compile_model(self._model, "CPU", self._options)


ENGINES: dict[str, type[OnnxEngine] | type[OpenvinoEngine]] = {"onnx": OnnxEngine, "openvino": OpenvinoEngine}


def openvino_without_telemetry() -> Any:
    """The module; importing it plainly would send a message to its makers."""
    check_installed("openvino", "openvino")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: not to be found
    import openvino

    return openvino
