"""About ten seconds in which a detector is fitted, scores images, is saved, and is exported and compared."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from discopatch.doctor.machine import NO_TORCH, find_torch
from discopatch.errors import MissingExtraError, NormalImagesWarning
from discopatch.utils import temporary_folder

if TYPE_CHECKING:
    from discopatch.detector import Detector
    from discopatch.images import NamedImage
    from discopatch.model import Weights

Status = Literal["passed", "failed", "skipped"]

NOT_ASKED = "it was not asked for"
HEAD = "statistics"
SIZE, PATCH = 64, 32  # pixels: small, since what is tested is the installation
NORMAL, INCOMING = 60, 10  # images to fit on, and new ones
RATE = 0.1
MOST_FLAGGED = 4  # of the new ones, of which one is expected
FEWEST_FOUND = 8  # of the same once they are corrupted
CORRUPTIONS = ("gaussian_noise", "gaussian_blur")
SEVERITY = 5


class StepError(Exception):
    """A step ended with another result than it must have."""


class Trial:
    """The steps in their order; each returns what it found in a few words, or raises."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fitted: Detector | None = None

    @property
    def steps(self) -> dict[str, Callable[[], str]]:
        return {
            "fit": self.fit,
            "score": self.score,
            "corrupted": self.corrupted,
            "save": self.save,
            "export": self.export,
        }

    @property
    def detector(self) -> "Detector":
        if self._fitted is None:
            raise StepError("there is no fitted detector")
        return self._fitted

    def fit(self) -> str:
        from discopatch.detector import Detector

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NormalImagesWarning)
            fitted = Detector(small_weights(), head=HEAD, false_alarm_rate=RATE).fit(sample_images(NORMAL, seed=0))
        self._fitted = fitted
        return f"{fitted.guarantee_.n_fit} images, {fitted.guarantee_.n_calibration} to calibrate"

    def score(self) -> str:
        flagged = int(self.detector.predict(sample_images(INCOMING, seed=1)).is_ood.sum())
        if flagged > MOST_FLAGGED:
            raise StepError(f"{flagged} of {INCOMING} normal images are flagged, {MOST_FLAGGED} may be")
        return f"{flagged} of {INCOMING} normal images flagged"

    def corrupted(self) -> str:
        from discopatch.corruptions import corrupt
        from discopatch.images import NamedImage

        images = [
            NamedImage(each.name, corrupt(each.pixels, CORRUPTIONS[number % len(CORRUPTIONS)], SEVERITY, seed=number))
            for number, each in enumerate(sample_images(INCOMING, seed=1))
        ]
        flagged = int(self.detector.predict(images).is_ood.sum())
        if flagged < FEWEST_FOUND:
            raise StepError(f"{flagged} of {INCOMING} corrupted images are flagged, {FEWEST_FOUND} must be")
        return f"{flagged} of {INCOMING} corrupted images flagged"

    def save(self) -> str:
        import discopatch

        path, images = self._folder / "detector", sample_images(INCOMING, seed=1)
        self.detector.save(path)
        loaded = discopatch.load(path)
        if loaded.score(images).tolist() != self.detector.score(images).tolist():
            raise StepError("the detector that was saved and loaded has other scores")
        return f"{path.stat().st_size / 1e6:.1f} MB, the same scores once loaded"

    def export(self) -> str:
        return self.detector.export(self._folder / "export", reference=sample_images(INCOMING, seed=1)).parity.text


def run_self_test(progress: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
    """All steps with their status, seconds and a detail; what needs a package that is not installed is skipped."""
    if find_torch() is None:
        return skipped(NO_TORCH)
    steps: list[dict[str, Any]] = []
    began = time.perf_counter()
    with temporary_folder() as folder:
        for name, step in Trial(folder).steps.items():
            progress(f"self-test: {name}")
            steps.append(run_step(name, step, fitted=not steps or steps[0]["status"] == "passed"))
    status: Status = "failed" if any(each["status"] == "failed" for each in steps) else "passed"
    return {"status": status, "detail": "", "seconds": round(time.perf_counter() - began, 2), "steps": steps}


def run_step(name: str, step: Callable[[], str], *, fitted: bool) -> dict[str, Any]:
    """The step as JSON; without a fitted detector nothing is tried."""
    began = time.perf_counter()
    status: Status = "passed"
    try:
        if fitted:
            detail = step()
        else:
            status, detail = "skipped", "there is no fitted detector"
    except MissingExtraError as error:
        status, detail = "skipped", str(error)
    except StepError as error:
        status, detail = "failed", str(error)
    except Exception as error:  # whatever a broken installation raises
        status, detail = "failed", f"{type(error).__name__}: {error}"
    return {"name": name, "status": status, "seconds": round(time.perf_counter() - began, 2), "detail": detail}


def skipped(detail: str) -> dict[str, Any]:
    """A self-test of which nothing was run."""
    return {"status": "skipped", "detail": detail, "seconds": 0.0, "steps": []}


def small_weights() -> "Weights":
    """A random network, which tells strong changes too; the released ones are compared with their digests elsewhere."""
    from discopatch.images import Transform
    from discopatch.model import Architecture, Networks, Weights

    architecture = Architecture(patch_size=PATCH, hidden=(8,), latent=8, normalisation="batch")
    return Weights(Networks.from_seed(architecture, 0).discriminator, Transform(size=SIZE))


def sample_images(count: int, *, seed: int) -> "list[NamedImage]":
    """Clouds as one camera would show them, the same on every machine, and without any extra."""
    import numpy as np

    from discopatch.export.references import cloud_scene
    from discopatch.images import NamedImage

    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        scene = cloud_scene(SIZE, rng)
        light = 0.5 + 0.15 * (scene - scene.mean()) / scene.std() + rng.normal(0, 0.01, scene.shape)
        found.append(NamedImage(f"sample-{number}", np.rint(np.clip(light, 0, 1) * 255).astype(np.uint8)))
    return found
