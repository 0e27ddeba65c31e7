"""Reports on real photos, degraded in one half, with an anomaly map of where."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from discopatch.demo import TRAINING, crops, sample_photos
from discopatch.report import ReportContent
from discopatch.results import Explanation, Prediction, Reason

HOSTILE = "<img src=x onerror=alert(1)>.png"
SETTINGS = {
    "weights": "discriminator.safetensors, sha256 6f1c0d52a1b94e0f8f2be4f3b1e37c55",
    "transform": "256 x 256, crop, bicubic (3a7bd3e2360a3d29)",
    "patches": "64, at random places, seed 0",
    "discopatch": "0.1.0",
}


def scored(name: str, score: float, *, p_value: float = 0.5, is_ood: bool = False) -> Prediction:
    return Prediction(name, score, p_value, is_ood)


def refused(name: str, error: str = "truncated: the file ends early") -> Prediction:
    return Prediction(name, None, None, None, error)


def content(predictions: Sequence[Prediction] = (), **changes: Any) -> ReportContent:
    fields: dict[str, Any] = {
        "title": "Camera 3",
        "predictions": predictions,
        "calibration_scores": np.linspace(0, 1, 199),
        "threshold": 0.99,
        "false_alarm_rate": 0.01,
        "close_ups": (),
        "settings": SETTINGS,
        "created": "2025-03-14T09:26:53+00:00",
    }
    return ReportContent(**(fields | changes))


def realistic(*, images: int = 120, explained: int = 12) -> ReportContent:
    """Most images normal, seven flagged, three refused; one name is hostile, one outlier is far away."""
    rng = np.random.default_rng(0)
    calibration = np.sort(rng.normal(-2.1, 0.4, 499))
    threshold = float(calibration[-5])
    scores = np.sort(np.concatenate([rng.normal(-2.1, 0.4, images - 7), [0.2, 0.8, 1.1, 1.9, 2.2, 2.6, 840.0]]))[::-1]
    names = [HOSTILE if place == 3 else f"line-3/night/frame_{rng.integers(10**6):06d}.png" for place in range(images)]
    predictions = [
        Prediction(name, float(score), (1 + int((calibration >= score).sum())) / 500, bool(score > threshold))
        for name, score in zip(names, scores, strict=True)
    ]
    bad = [
        refused("line-3/night/frame_000017.png"),
        refused("line-3/night/Thumbs.db", "not_an_image: the file is none that Pillow knows"),
        refused("line-3/night/caf\udce9.png", "empty: the file has no bytes; was the disk full?"),
    ]
    return content(
        predictions + bad,
        title="Camera 3, night shift",
        calibration_scores=calibration,
        threshold=threshold,
        close_ups=close_ups(predictions[:explained]),
    )


def close_ups(predictions: Sequence[Prediction]) -> list[Explanation]:
    """Photos with noise in their upper half, which their anomaly maps show."""
    rng, photos = np.random.default_rng(0), crops(sample_photos(TRAINING), 4, size=256, seed=0)
    blurred = (Reason("blur", 8.25, "less fine detail than normal"),)
    noisy = (Reason("noise", 12.0, "more noise than normal"), Reason("grain", 6.5, "coarser grain than normal"))
    anomaly_map = np.repeat(np.linspace(20, 0, 16, dtype=np.float32), 16).reshape(16, 16)
    found = []
    for place, prediction in enumerate(predictions):
        pixels = photos[place * 5 % len(photos)].pixels.copy()
        pixels[:128] = np.clip(pixels[:128] + rng.normal(0, 30, (128, 256, 3)), 0, 255)
        found.append(Explanation(prediction, pixels, anomaly_map, noisy if place % 2 else blurred))
    return found
