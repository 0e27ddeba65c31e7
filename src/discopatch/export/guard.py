"""A graph from anyone at work: what it may refer to, and what may come out of it."""

from pathlib import Path

import numpy as np

from discopatch.errors import DiscopatchError, ExportError
from discopatch.export.engines import Engine, GraphOutput
from discopatch.images import Pixels
from discopatch.utils import file_contains

REMEDY = "copy the folder again, or export again"
OUTSIDE = b"location"  # how ONNX names a file beside the graph, which no digest covers


def check_self_contained(path: Path) -> None:
    """Raises ExportError where an ONNX graph takes numbers from other files, wherever they are."""
    if file_contains(path, OUTSIDE):
        raise ExportError(f"{path} refers to other files: {REMEDY}")


class GuardedEngine:
    """An engine whose failures are an ExportError, as are outputs that no export has."""

    def __init__(self, path: Path, engine: Engine, *, calibrated: int) -> None:
        self._path, self._engine, self._calibrated = path, engine, calibrated

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        try:
            output = self._engine(pixels, anomaly_map=anomaly_map)
        except DiscopatchError:
            raise
        except Exception as error:  # whatever an engine raises
            raise ExportError(f"{self._path} cannot be run ({type(error).__name__}: {error}): {REMEDY}") from error
        if not self._is_sound(output, len(pixels)):
            raise ExportError(f"{self._path} has other outputs than an export: {REMEDY}")
        return output

    def _is_sound(self, output: GraphOutput, images: int) -> bool:
        score, count, anomaly_map = output
        return (
            score.shape == (images,)
            and score.dtype == np.float64
            and count.shape == (images,)
            and count.dtype == np.int64
            and bool(((count >= 0) & (count <= self._calibrated)).all())
            and (anomaly_map is None or (anomaly_map.ndim == 3 and bool(np.isfinite(anomaly_map).all())))
        )
