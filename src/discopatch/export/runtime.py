"""Runtime: an exported detector on a CPU, with onnxruntime or OpenVINO and without torch."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import Calibration
from discopatch.errors import DiscopatchError, ExportError, ParameterError
from discopatch.explain.anomaly_map import enlarge
from discopatch.export.metadata import (
    COMPONENTS,
    GRAPH_FILES,
    NUMBER,
    PIXELS,
    PLACE_MAP,
    REMEDY,
    SCORE,
    Metadata,
)
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    Transform,
    Workers,
    read_batches,
    read_images,
    single,
)
from discopatch.results import (
    ComponentScore,
    Explanation,
    FittedDetector,
    PredictedBatch,
    PredictedImage,
    Prediction,
    check_finite,
    component_scores,
    explain_components,
    image_caution,
)
from discopatch.utils import file_contains, require, threads_setting

NDIM = {SCORE: 1, COMPONENTS: 2, PLACE_MAP: 3, NUMBER: 1}  # axes of each output, with that of images
EXTERNAL_DATA = b"location"  # the key by which an ONNX graph names another file

Outputs = dict[str, NDArray[np.floating]]  # by name; the first axis counts images
Engine = Callable[[Pixels], Outputs]


def open_onnx(path: Path, threads: int | None) -> Engine:
    require("onnxruntime", "runtime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    # Idle threads would use a third of the CPU.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda pixels: dict(zip(names, session.run(names, {PIXELS: pixels}), strict=True))


def open_openvino(path: Path, threads: int | None) -> Engine:
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


class Runtime(FittedDetector):
    """An export in a folder, as `discopatch export` writes it.

    Each image passes the graph alone: on a CPU batches are not faster, and batching changes the last digits.
    """

    def __init__(self, metadata: Metadata, engine: Engine, limits: Limits = DEFAULT_LIMITS) -> None:
        self.metadata, self._engine = metadata, engine
        self._transform, self._calibration = metadata.fitted.transform, metadata.calibration
        self._aspects = metadata.fitted.aspects
        self.max_pixels, self.max_bytes = limits.max_pixels, limits.max_bytes

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        threads: int | None = None,
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> Self:
        """The export in a folder, whose files must be complete and unchanged.

        threads: number of threads; without it that of OMP_NUM_THREADS, or all cores.
        max_pixels, max_bytes: images with more pixels and encoded images of more bytes are refused unread.
        """
        limits = Limits(max_pixels=max_pixels, max_bytes=max_bytes)
        if threads is not None and threads < 1:
            raise ParameterError(f"threads is {threads}: give at least 1, or None for all cores")
        threads = threads or threads_setting()
        folder = Path(folder)
        metadata = Metadata.read(folder)
        for name in metadata.files if metadata.graph == "onnx" else ():
            if file_contains(folder / name, EXTERNAL_DATA):
                raise ExportError(f"{folder / name} refers to other files, which no digest covers: {REMEDY}")
        with engine_errors():
            return cls(metadata, OPEN[metadata.graph](folder / GRAPH_FILES[metadata.graph][0], threads), limits)

    @property
    def component_names(self) -> tuple[str, ...]:
        return self.metadata.components

    @property
    def transform_(self) -> Transform:
        return self._transform

    @property
    def calibration_(self) -> Calibration:
        return self._calibration

    @property
    def digest_(self) -> str:
        parts = (self._transform.digest, *(self.metadata.files[name] for name in sorted(self.metadata.files)))
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]

    def settings(self) -> dict[str, Any]:
        """The settings of the detector, the graph and its calibration."""
        own: dict[str, Any] = {name: getattr(self.metadata, name) for name in ("graph", "int8", "calibrated_by")}
        if (rate := self.calibration_.rate) != self.metadata.settings["false_alarm_rate"]:
            own |= {"false_alarm_rate": rate, "detection_rates": [], "confidence": None, "promised_rate": None}
        return {**self.metadata.settings, **own}

    def with_rate(self, false_alarm_rate: float) -> Self:
        other = copy(self)
        other._calibration = self._calibration.with_rate(false_alarm_rate)
        return other

    def predict_batches(
        self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[PredictedBatch]:
        options: dict[str, Any] = {"transform": self._transform, "workers": workers, "limits": self.limits}
        with closing(read_batches(sources, size=1, **options)) as stream:
            for batch in stream:
                yield PredictedBatch([self._predict(item) for item in batch.items], batch.ends)

    def explain(self, image: object) -> Explanation:
        """The prediction of one image with its anomaly map and significant components. Exports have no reasons."""
        with closing(read_images(image, transform=self._transform, workers=1, limits=self.limits)) as stream:
            item = single(stream)
        output = self._run(item.pixels)
        score = float(output[SCORE])
        check_finite(item.name, score)
        check_finite(item.name, float(output[PLACE_MAP].sum()))
        caution = image_caution(item, self._aspects)
        found = self._components(output), caution, self._number(output)
        prediction = Prediction.make(item.name, score, self._calibration, *found)
        anomaly_map = enlarge(output[PLACE_MAP], self.metadata.place_level, item.pixels.shape[:2])
        components = explain_components(prediction, (), anomaly_map)
        return Explanation(prediction, item.pixels, anomaly_map, (), components, item.size)

    def _predict(self, item: NamedImage | Refusal) -> PredictedImage:
        if isinstance(item, Refusal):
            return PredictedImage.refused(item)
        output = self._run(item.pixels)
        components = self._components(output)
        found = item, float(output[SCORE]), self._calibration, components, self._aspects
        return PredictedImage.scored(*found, self._number(output))

    def _components(self, output: Outputs) -> tuple[ComponentScore, ...]:
        z = output[COMPONENTS].tolist() if self.component_names else []
        return component_scores(self.component_names, z, self.metadata.significance_level)

    def _number(self, output: Outputs) -> int:
        return int(output[NUMBER]) if self._calibration.classes else 0

    def _run(self, pixels: Pixels) -> Outputs:
        """The outputs for one image (H, W, 3), or ExportError where they do not fit the metadata."""
        with engine_errors():
            output = self._engine(pixels[None])
        names = {SCORE, PLACE_MAP, *[COMPONENTS] * bool(self.component_names)}
        names |= {NUMBER} if self._calibration.classes else set()
        sound = output.keys() == names and all(
            len(values) == 1 and values.ndim == NDIM[name] and values.size for name, values in output.items()
        )
        if not sound or output.get(COMPONENTS, np.empty((1, 0))).size != len(self.component_names):
            shapes = {name: values.shape for name, values in output.items()}
            raise ExportError(f"the graph gives outputs of the shapes {shapes}: {REMEDY}")
        return {name: values[0] for name, values in output.items()}


@contextmanager
def engine_errors() -> Iterator[None]:
    """Makes ExportError of the errors of an engine, which have no common class."""
    try:
        yield
    except DiscopatchError:
        raise
    except Exception as error:
        raise ExportError(f"the graph cannot be run ({type(error).__name__}: {error}): {REMEDY}") from error
