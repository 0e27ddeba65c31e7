"""An exported detector at work, without torch."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from discopatch import images
from discopatch.decision import Explanation, Judgement, Judging, Prediction
from discopatch.decision.conformal import alarms_allowed
from discopatch.deploy.engines import ENGINES, Answer, Engine
from discopatch.deploy.sidecar import FILES, ExportError, Sidecar
from discopatch.images import Pixels, Refusal, Transform, single
from discopatch.images.workers import DEFAULT_WORKERS, Workers


class Runtime(Judging):
    """What `discopatch export` wrote, with the questions that one asks a `Detector`.

    Each picture passes the graph alone: together they are not faster on a CPU, and their last digits would differ.
    """

    def __init__(self, sidecar: Sidecar, engine: Engine) -> None:
        self.sidecar, self._engine = sidecar, engine
        self.transform: Transform = sidecar.transform
        self.threshold: float = sidecar.threshold
        self.false_alarm_rate: float = sidecar.false_alarm_rate
        self._calibrated = sidecar.calibration_scores
        self._allowed = alarms_allowed(self._calibrated, self.false_alarm_rate)

    @classmethod
    def load(cls, folder: Path | str, *, threads: int | None = None) -> Self:
        """The folder that `discopatch export` wrote, whole and unchanged; all threads that there are unless told."""
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}: give at least 1, or None for all")
        folder = Path(folder)
        sidecar = Sidecar.read(folder)
        if sidecar.graph not in ENGINES:
            raise ExportError(
                f"{folder} was exported for torch: load it with torch.export.load('{folder / FILES[sidecar.graph][0]}')"
                ".module(), or export to onnx or openvino"
            )
        return cls(sidecar, ENGINES[sidecar.graph](folder / FILES[sidecar.graph][0], threads))

    def score_pixels(self, pixels: Pixels) -> NDArray[np.float64]:
        """(B, size, size, 3) in uint8, already through the transform -> (B,)."""
        self._check(pixels)
        return np.array([self._engine(each[None]).score[0] for each in pixels], np.float64)

    def judge(self, source: object, *, workers: Workers = DEFAULT_WORKERS) -> Iterator[Judgement]:
        """Predictions with what they are about, for those who want to show it."""
        with closing(images.open(source, transform=self.transform, workers=workers)) as stream:
            for item in stream:
                if isinstance(item, Refusal):
                    yield Judgement.refused(item)
                else:
                    prediction = self._decide(item.name, self._engine(item.pixels[None]))
                    yield Judgement(prediction, item.pixels, None)

    def explain(self, image: object) -> Explanation:
        """Where one image differs from normal ones; the words for it need the detector itself."""
        with closing(images.open(image, transform=self.transform, workers=1)) as stream:
            item = single(stream)
        answer = self._engine(item.pixels[None], heat=True)
        assert answer.heat is not None
        return Explanation(self._decide(item.name, answer), item.pixels, answer.heat[0], reasons=())

    def _decide(self, name: str, answer: Answer) -> Prediction:
        """From the count alone, so that verdict and p-value cannot disagree by rounding."""
        at_least = int(answer.at_least[0])
        p_value = (1 + at_least) / (1 + self._calibrated)
        return Prediction(name, float(answer.score[0]), p_value, at_least < self._allowed)

    def _check(self, pixels: Pixels) -> None:
        size = self.transform.size
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != (size, size, 3):
            raise ValueError(
                f"{pixels.dtype} of shape {pixels.shape}: give uint8 of shape (B, {size}, {size}, 3), "
                "through runtime.transform; nothing is rescaled here"
            )
