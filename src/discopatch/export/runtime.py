"""An exported detector at work on a CPU, with onnxruntime or OpenVINO and without torch."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from copy import copy
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch.calibration import Guarantee, alarms_allowed, check_calibration, threshold
from discopatch.errors import DiscopatchError, ExportError, ParameterError
from discopatch.export.engines import ENGINES, Engine, GraphOutput
from discopatch.export.guard import REMEDY, GuardedEngine, check_self_contained
from discopatch.export.metadata import GRAPH_FILES, Metadata
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Limits,
    NamedImage,
    Pixels,
    Refusal,
    Transform,
    Workers,
    check_single,
    read_batches,
    read_images,
    single,
)
from discopatch.results import (
    ComponentScore,
    Explanation,
    PredictedImage,
    Prediction,
    Predictor,
    check_finite,
    component_scores,
    explain_components,
)

_TOGETHER = 8  # images of a batch, for those who take batches


class Runtime(Predictor):
    """A folder that `discopatch export` wrote, with the methods of a fitted `Detector` for new images.

    Each image passes the graph alone: together they are not faster on a CPU, and their last digits would differ.
    """

    def __init__(self, metadata: Metadata, engine: Engine, limits: Limits = DEFAULT_LIMITS) -> None:
        self.metadata, self._engine = metadata, engine
        self.transform: Transform = metadata.transform
        self.max_pixels, self.max_bytes = limits.max_pixels, limits.max_bytes
        self.false_alarm_rate: float = metadata.false_alarm_rate
        self._calibration_scores = metadata.calibration_scores

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        threads: int | None = None,
        max_pixels: int = DEFAULT_LIMITS.max_pixels,
        max_bytes: int = DEFAULT_LIMITS.max_bytes,
    ) -> Self:
        """Reads an export whose files are whole and unchanged; without `threads` all cores are used.

        Images with more pixels than `max_pixels`, and encoded ones of more bytes than `max_bytes`, are refused unread.
        """
        limits = Limits(max_pixels=max_pixels, max_bytes=max_bytes)
        if threads is not None and threads < 1:
            raise ParameterError(f"threads is {threads}: give at least 1, or None for all")
        folder = Path(folder)
        metadata = Metadata.read(folder)
        path = folder / GRAPH_FILES[metadata.graph_format][0]
        if metadata.graph_format not in ENGINES:
            raise ExportError(
                f"{folder} was exported for torch: load it with torch.export.load('{path}').module(), "
                "or export to onnx or openvino"
            )
        if metadata.graph_format == "onnx":
            check_self_contained(path)
        try:
            engine = ENGINES[metadata.graph_format](path, threads)
        except DiscopatchError:
            raise
        except Exception as error:  # whatever an engine raises
            raise ExportError(f"{path} cannot be loaded ({type(error).__name__}: {error}): {REMEDY}") from error
        calibrated, components = len(metadata.calibration_scores), metadata.component_names
        return cls(metadata, GuardedEngine(path, engine, calibrated=calibrated, components=components), limits)

    @property
    def limits(self) -> Limits:
        """What images are refused unread."""
        return Limits(max_pixels=self.max_pixels, max_bytes=self.max_bytes)

    @property
    def component_names(self) -> tuple[str, ...]:
        return self.metadata.component_names

    @property
    def false_alarm_rate_(self) -> float:
        return self.false_alarm_rate

    @property
    def calibration_scores_(self) -> NDArray[np.float64]:
        """The ascending scores of the normal images that were held out."""
        return self._calibration_scores

    @property
    def guarantee_(self) -> Guarantee:
        """The false-alarm rate, and how many images it rests on."""
        content = self.metadata.content
        return Guarantee(content["images"], len(self._calibration_scores), self.false_alarm_rate, content["n_groups"])

    @property
    def threshold_(self) -> float:
        """Images with a score above it are out-of-distribution; infinite where no p-value can be that small."""
        return threshold(self._calibration_scores, self.false_alarm_rate)

    def with_rate(self, false_alarm_rate: float) -> Self:
        """The same export at another false-alarm rate; scores and p-values stay, `threshold_` and `is_ood` change."""
        check_calibration(len(self._calibration_scores), false_alarm_rate)
        other = copy(self)
        other.false_alarm_rate = false_alarm_rate
        return other

    def score_pixels(self, pixels: Pixels) -> NDArray[np.float64]:
        """(B, size, size, 3) uint8, as the transform leaves them -> scores (B,)."""
        size = self.transform.size
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (size, size, 3):
            raise ParameterError(
                f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (B, {size}, {size}, 3), "
                "through runtime.transform; nothing is rescaled here"
            )
        return np.array([self._engine(image[None]).score[0] for image in pixels], np.float64)

    def predict_images(self, images: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[PredictedImage]:
        """A prediction for each image of the source, in its order, with the image as the graph receives it."""
        with closing(read_images(images, transform=self.transform, workers=workers, limits=self.limits)) as stream:
            yield from map(self._predict, stream)

    def predict_batches(
        self, sources: Iterable[object], *, workers: Workers = DEFAULT_WORKERS
    ) -> Iterator[tuple[list[PredictedImage], bool]]:
        """One source after another, some images at a time, and whether a source ends with them."""
        with closing(
            read_batches(sources, transform=self.transform, size=_TOGETHER, workers=workers, limits=self.limits)
        ) as stream:
            for batch in stream:
                yield [self._predict(item) for item in batch.items], batch.ends

    def _predict(self, item: NamedImage | Refusal) -> PredictedImage:
        if isinstance(item, Refusal):
            return PredictedImage.refused(item)
        output = self._engine(item.pixels[None])
        return PredictedImage.scored(
            item, float(output.score[0]), partial(self._decide, output), self._components(output)
        )

    def explain(self, image: object) -> Explanation:
        """The prediction for one image with its anomaly map, and the components that stand out.

        Reasons need the detector itself: there are none.
        """
        check_single(image)
        with closing(read_images(image, transform=self.transform, workers=1, limits=self.limits)) as stream:
            item = single(stream)
        output = self._engine(item.pixels[None], anomaly_map=True)
        assert output.anomaly_map is not None
        score = float(output.score[0])
        check_finite(item.name, score)
        prediction = self._decide(output, item.name, score, self._components(output))
        place_map = None if output.place_map is None else output.place_map[0]
        components = explain_components(prediction, (), place_map)
        return Explanation(prediction, item.pixels, output.anomaly_map[0], reasons=(), components=components)

    def _components(self, output: GraphOutput) -> tuple[ComponentScore, ...]:
        if output.components is None:
            return ()
        return component_scores(self.component_names, output.components[0].tolist(), self.metadata.significance_level)

    def _decide(
        self, output: GraphOutput, name: str, score: float, components: tuple[ComponentScore, ...]
    ) -> Prediction:
        """Both p-value and decision from the graph's count, so that rounding cannot make them disagree."""
        n, at_least = len(self._calibration_scores), int(output.at_least[0])
        is_ood = at_least < alarms_allowed(n, self.false_alarm_rate)
        return Prediction(name, score, (1 + at_least) / (1 + n), is_ood, components=components)
