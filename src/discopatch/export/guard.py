"""A graph from anyone at work: what it may refer to, and what may come out of it."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discopatch.errors import DiscopatchError, ExportError
from discopatch.export.engines import Engine, GraphOutput
from discopatch.export.metadata import PLACE
from discopatch.images import Pixels
from discopatch.utils import file_contains

REMEDY = "copy the folder again, or export again"
OUTSIDE = b"location"  # how ONNX names a file beside the graph, which no digest covers


def check_self_contained(path: Path) -> None:
    """Raises ExportError where an ONNX graph takes numbers from other files, wherever they are."""
    if file_contains(path, OUTSIDE):
        raise ExportError(f"{path} refers to other files: {REMEDY}")


class GuardedEngine:
    """An engine whose failures are an ExportError, as are outputs that no export has.

    calibrated: how many calibration scores there are; components: the names of those that the graph tells of.
    """

    def __init__(self, path: Path, engine: Engine, *, calibrated: int, components: tuple[str, ...] = ()) -> None:
        self._path, self._engine, self._calibrated, self._components = path, engine, calibrated, components

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
        score, count, anomaly_map, components, place_map = output
        return (
            score.shape == (images,)
            and score.dtype == np.float64
            and count.shape == (images,)
            and count.dtype == np.int64
            and bool(((count >= 0) & (count <= self._calibrated)).all())
            and (anomaly_map is None or is_map(anomaly_map, images))
            and (components is not None) == bool(self._components)
            and (components is None or self._are_components(components, score))
            and (place_map is not None) == (anomaly_map is not None and PLACE in self._components)
            and (place_map is None or (is_map(place_map, images) and place_map.shape[1] == place_map.shape[2]))
        )

    def _are_components(self, components: NDArray[np.float64], score: NDArray[np.float64]) -> bool:
        """Whether there is one for each name, and a finite number wherever the score is one."""
        return (
            components.shape == (len(score), len(self._components))
            and components.dtype == np.float64
            and bool(np.isfinite(components[np.isfinite(score)]).all())
        )


def is_map(values: NDArray[np.floating], images: int) -> bool:
    """Whether these are finite numbers (images, rows, columns), and some."""
    return values.ndim == 3 and len(values) == images and values.size > 0 and bool(np.isfinite(values).all())
