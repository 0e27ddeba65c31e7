"""Reports to look at: real photos, some of them spoilt in one place, with heat where they were."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from discopatch.decision import Explanation
from discopatch.decision.prediction import Prediction
from discopatch.images.picture import Pixels
from discopatch.images.samples import TRAINING, crops, sample_photos
from discopatch.report import ReportContent

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


def realistic(*, images: int = 120, looked_at: int = 12) -> ReportContent:
    """Most images like the normal ones, some not, three refused; one name is hostile, one outlier is far away."""
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
        close_ups=close_ups(predictions[:looked_at]),
    )


def close_ups(predictions: Sequence[Prediction]) -> list[Explanation]:
    photos = crops(sample_photos(TRAINING), -(-len(predictions) // len(TRAINING)), size=256, seed=0)
    kinds = [("less fine detail than normal",), ("more noise than normal", "patches that differ among themselves")]
    found = []
    for place, prediction in enumerate(predictions):
        photo = photos[place * 5 % len(photos)].pixels
        spoilt = spoil(photo, seed=place, noisy=bool(place % 2))
        found.append(Explanation(prediction, spoilt, difference(photo, spoilt), kinds[place % 2]))
    return found


def spoil(photo: Pixels, *, seed: int, noisy: bool) -> Pixels:
    """A soft disc of noise or blur somewhere."""
    rng = np.random.default_rng(seed)
    rows, columns = np.ogrid[: photo.shape[0], : photo.shape[1]]
    top, left = rng.integers(60, 190, 2)
    disc = np.clip(2 - np.hypot(rows - top, columns - left) / 35, 0, 1)[..., None]
    blurred = np.asarray(Image.fromarray(photo).filter(ImageFilter.GaussianBlur(4)), dtype=np.float64)
    other = photo + rng.normal(0, 60, photo.shape) if noisy else blurred
    mixed: Pixels = np.clip(photo * (1 - disc) + other * disc, 0, 255).astype(np.uint8)
    return mixed


def difference(photo: Pixels, spoilt: Pixels) -> np.ndarray[Any, np.dtype[np.float32]]:
    """How much each square of 16 pixels changed."""
    change = np.abs(photo.astype(np.float32) - spoilt.astype(np.float32)).mean(axis=2)
    squares: np.ndarray[Any, np.dtype[np.float32]] = change.reshape(16, 16, 16, 16).mean(axis=(1, 3))
    return squares
