"""A tiny fitted detector, images of its camera, and an interpreter without torch."""

import subprocess
import sys
from functools import cache

from discopatch import Detector
from discopatch.images import Pixels
from tests import samples
from tests.samples import new_detector, one_camera

SIZE = 64  # of the images that the tiny weights take

# An interpreter that cannot import anything but what a runtime needs.
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
    return samples.camera_pixels(count, seed=seed)


@cache
def tiny_detector() -> Detector:
    """Fitted once for all tests, which only read it."""
    return new_detector().fit(one_camera(60), workers=1)


def run_without_torch(code: str, *more: str) -> str:
    """What an interpreter prints that has neither torch nor `more` packages."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(more=more) + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
