"""A tiny fitted detector, images of its camera, and an engine that is off by a known amount."""

import subprocess
import sys
from functools import cache

import numpy as np

from discopatch import Detector
from discopatch.export.engines import GraphOutput
from discopatch.images import Pixels
from tests.samples import one_camera, tiny_weights

SIZE = 64  # of the images that the tiny weights take

# An interpreter in which nothing can be imported but what a runtime is said to need.
WITHOUT = """
import sys

ABSENT = ("torch", "scipy", "safetensors", "lightning_fabric", "onnx", "onnxscript", "skimage", "sklearn", *{more!r})

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def camera_pixels(count: int, *, seed: int = 1) -> Pixels:
    """New images of the same camera, (count, size, size, 3)."""
    return np.stack([image.pixels for image in one_camera(count, seed=seed)])


@cache
def tiny_detector() -> Detector:
    """Fitted once for all tests, which only read it; of a head without components, whose graph is small."""
    return Detector(tiny_weights(), head="combined", false_alarm_rate=0.1, device="cpu").fit(one_camera(60), workers=1)


def run_without_torch(code: str, *more: str) -> str:
    """What an interpreter prints that has neither torch nor `more` packages."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(more=more) + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class ShiftedEngine:
    """The detector itself, its scores shifted by so many standard deviations of its calibration scores."""

    def __init__(self, detector: Detector, by: float, sign: int = 1) -> None:
        self.detector, self.by, self.sign = detector, by, sign

    def __call__(self, pixels: Pixels, *, anomaly_map: bool = False) -> GraphOutput:
        calibration, images = self.detector.calibration_scores_, list(pixels)
        score = self.sign * self.detector.score(images, workers=1) + self.by * calibration.std()
        at_least = (calibration >= score[:, None]).sum(1)
        maps = np.stack([self.detector.explain(image).anomaly_map for image in images]) if anomaly_map else None
        return GraphOutput(score, at_least, maps)
