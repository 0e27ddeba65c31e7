"""Reports on real photos, some of them degraded in one place, with an anomaly map of where."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from discopatch.demo import TRAINING, crops, sample_photos
from discopatch.images import Pixels
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
    photos = crops(sample_photos(TRAINING), -(-len(predictions) // len(TRAINING)), size=256, seed=0)
    blurred = (Reason("blur", 8.25, "less fine detail than normal"),)
    noisy = (Reason("noise", 12.0, "more noise than normal"), Reason("grain", 6.5, "coarser grain than normal"))
    found = []
    for place, prediction in enumerate(predictions):
        photo = photos[place * 5 % len(photos)].pixels
        degraded = degrade_disc(photo, seed=place, noise=bool(place % 2))
        reasons = noisy if place % 2 else blurred
        found.append(Explanation(prediction, degraded, block_differences(photo, degraded), reasons))
    return found


def degrade_disc(photo: Pixels, *, seed: int, noise: bool) -> Pixels:
    """The photo with noise or blur in a soft disc somewhere."""
    rng = np.random.default_rng(seed)
    rows, columns = np.ogrid[: photo.shape[0], : photo.shape[1]]
    top, left = rng.integers(60, 190, 2)
    disc = np.clip(2 - np.hypot(rows - top, columns - left) / 35, 0, 1)[..., None]
    blurred = np.asarray(Image.fromarray(photo).filter(ImageFilter.GaussianBlur(4)), dtype=np.float64)
    other = photo + rng.normal(0, 60, photo.shape) if noise else blurred
    mixed: Pixels = np.clip(photo * (1 - disc) + other * disc, 0, 255).astype(np.uint8)
    return mixed


def block_differences(photo: Pixels, degraded: Pixels) -> NDArray[np.float32]:
    """The mean change of each block of 16 x 16 pixels."""
    change = np.abs(photo.astype(np.float32) - degraded.astype(np.float32)).mean(axis=2)
    blocks: NDArray[np.float32] = change.reshape(16, 16, 16, 16).mean(axis=(1, 3))
    return blocks
