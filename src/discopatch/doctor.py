"""A report about the installation: versions, devices, extras and a self-test."""

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discopatch.errors import NormalImagesWarning
from discopatch.hub import load
from discopatch.images import DEFAULT_WORKERS
from discopatch.utils import counted, temporary_folder, threads_setting
from discopatch.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "discopatch"
FOR_DEVELOPERS = ("dev", "docs", "test")  # extras
NO_TORCH = "not installed: exports can be run, detectors cannot be fitted"
SIZE, NORMAL, NEW, RATE = 256, 36, 6, 0.1  # of the self-test: pixels, images to fit on, new images, false-alarm rate


def examine(*, test: bool = True, progress: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
    """The report, ready for JSON: ok, versions, devices, defaults, extras, and the steps of the self-test.

    `ok` is False where a step of the self-test failed.
    """
    steps: list[dict[str, Any]] = []
    with redirect_stdout(sys.stderr):  # some libraries print at import
        found = {"versions": versions(), "devices": devices(), "defaults": defaults(), "extras": extras()}
        if test:
            steps = self_test(progress)
    return {"ok": all(step["status"] != "failed" for step in steps), **found, "self_test": steps}


def versions() -> dict[str, str]:
    """Versions of discopatch, Python, the platform and the packages that users install for it."""
    names = {each.name for extra in ("", *users_extras()) for each in requirements(extra)} - {PACKAGE}
    packages = {name: version for name in sorted(names, key=str.lower) if (version := version_of(name))}
    return {PACKAGE: __version__, "python": platform.python_version(), "platform": platform.platform(), **packages}


def devices() -> dict[str, str]:
    found = {"cpu": f"{platform.machine()}, {counted(usable_cores(), 'core')}"}
    try:
        import torch
    except ModuleNotFoundError:
        return {**found, "torch": NO_TORCH}
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found[f"cuda:{number}"] = f"{properties.name}, {properties.total_memory / 1e9:.1f} GB"
    return found


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def defaults() -> dict[str, str]:
    """The settings that a command takes on this machine unless it is given others, each as "value: reason"."""
    device, together = "cpu: no GPU is found", "1: exports take images one by one"
    with suppress(ModuleNotFoundError):
        import torch

        from discopatch.encoders import default_batch_size, resolve_device

        found = resolve_device("auto")
        why = "images that are read together; a CPU scores them one by one"
        if found.type == "cuda":
            device = f"cuda: {torch.cuda.get_device_name(found)} is found; exports run on the CPU"
            why = f"images of {SIZE} x {SIZE} pixels, as the free memory of the GPU allows"
        together = f"{default_batch_size(found, SIZE**2)}: {why}"
    threads = threads_setting()
    return {
        "device": device,
        "threads": f"{usable_cores()}: all cores" if threads is None else f"{threads}: OMP_NUM_THREADS or --threads",
        "batch-size": together,
        "workers": f"{DEFAULT_WORKERS}: threads that decode images, one per core up to 8",
        "decoder": "pillow: any file of any size; fit --decoder scaled is faster for large JPEG files",
        "precision": "float32: the same scores on all devices but for rounding; export --int8 is faster on a CPU",
    }


def extras() -> dict[str, dict[str, Any]]:
    """The missing packages of each extra that users install, and the command that installs them."""
    found = {}
    for extra in users_extras():
        missing = [
            f"{each.name}{each.specifier}"
            for each in requirements(extra)
            if each.marker
            and not ((version := version_of(each.name)) and each.specifier.contains(version, prereleases=True))
        ]
        install = f"pip install '{PACKAGE}[{extra}]'" if missing else None
        found[extra] = {"missing": missing, "install": install}
    return found


def requirements(extra: str) -> "list[Requirement]":
    """The packages that are always needed, and those of the extra, which have a marker."""
    from packaging.requirements import Requirement

    found = [Requirement(text) for text in metadata.requires(PACKAGE) or []]
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]


def users_extras() -> list[str]:
    return sorted({*(metadata.metadata(PACKAGE).get_all("Provides-Extra") or [])} - {*FOR_DEVELOPERS})


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def self_test(progress: Callable[[str], object] = lambda text: None) -> list[dict[str, Any]]:
    """Fits, scores, saves and exports a detector; one entry for each step.

    A step that needs a missing package is skipped. The steps end with the first that fails.
    """
    found: list[dict[str, Any]] = []
    with temporary_folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormalImagesWarning)
        steps = trial(folder)
        for name in ("fit", "score", "save", "export"):
            progress(f"self-test: {name}")
            began = time.perf_counter()
            try:
                status, detail = "passed", next(steps)
            except ModuleNotFoundError as error:  # also MissingExtraError
                status, detail = "skipped", str(error)
            except Exception as error:  # a broken installation may raise anything
                status, detail = "failed", f"{type(error).__name__}: {error}"
            seconds = round(time.perf_counter() - began, 2)
            found.append({"step": name, "status": status, "seconds": seconds, "detail": detail})
            if status != "passed":
                break
    return found


def trial(folder: Path) -> Iterator[str]:
    """The steps of the self-test. Each yields its result in a few words, or raises an error."""
    from discopatch.corruptions import corrupt
    from discopatch.detector import Detector
    from discopatch.export import export_detector
    from discopatch.export.parity import cloud_scene, to_pixels
    from discopatch.pretrained import SMALL_WEIGHTS

    rng = np.random.default_rng(0)
    scenes = (cloud_scene((SIZE, SIZE), rng) for _ in range(NORMAL + NEW))
    images = [to_pixels(scene, rng, level=0.5, contrast=0.15, noise=0.01) for scene in scenes]
    normal, new = images[:NORMAL], images[NORMAL:]
    detector = Detector(SMALL_WEIGHTS, head="statistics", false_alarm_rate=RATE, reason_images=0, detection_images=0)
    detector.fit(normal)
    yield f"{detector.guarantee_.n_fit} images, {detector.guarantee_.n_calibration} to calibrate"

    corrupted = [corrupt(image, "gaussian_noise", 5, seed=number) for number, image in enumerate(new)]
    flagged, changed = (int(detector.predict(each).is_ood.sum()) for each in (new, corrupted))
    detail = f"{flagged} of {NEW} normal and {changed} of {NEW} corrupted images flagged"
    if flagged > NEW / 2 or changed < NEW:
        raise AssertionError(detail)
    yield detail

    detector.save(folder / "detector")
    if load(folder / "detector").score(new).tolist() != detector.score(new).tolist():
        raise AssertionError("the loaded detector has other scores")
    yield "the loaded detector has the same scores"
    yield export_detector(detector, folder / "export", reference=normal[:8]).parity.text
