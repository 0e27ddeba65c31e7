"""Real images whose quality falls midway: scores of the default detector, and streams that are drawn from them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch import ComponentScore, Detector, Monitor, Prediction
from discopatch.bench.suites.solar import NORMAL_CELL, labelled_cells, solar_folder
from discopatch.calibration import p_values
from discopatch.corruptions import corrupt
from discopatch.errors import TooFewImagesError
from discopatch.images import NamedImage, read_images
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.utils import write_atomically
from monitored.streams import Row, Streams, summary

FITTED, NORMAL, CORRUPTED = 600, 400, 100  # images; 199 of the first are held out
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "brightness", "jpeg_compression")
SEVERITIES = (1, 2, 3)
BEFORE, RAMP, MOST = 300, 300, 600  # normal images, images until severity 3 is reached, images after the change
Scores = Mapping[str, NDArray[Any]]


def suite_images(suite: str, data: Path) -> list[NamedImage]:
    """Normal images in random order, as many as are needed."""
    needed = FITTED + NORMAL + CORRUPTED
    rng = np.random.default_rng(7)
    transform = load_pretrained(DEFAULT_WEIGHTS).transform
    if suite == "solar":
        cells = labelled_cells(solar_folder())[NORMAL_CELL]
        source: Any = [str(cells[place].path) for place in rng.permutation(len(cells))[:needed]]
    else:
        source = str(data / "natural" / "train-0000.tar")
    images = [each for each in islice(read_images(source, transform=transform), needed) if isinstance(each, NamedImage)]
    if len(images) < needed:
        raise TooFewImagesError(f"{suite}: {len(images)} images that can be read, and {needed} are needed: add images")
    return [images[place] for place in rng.permutation(len(images))]


def score_images(suite: str, data: Path, path: Path, log: Any = print) -> None:
    """Fits the default detector, and writes its scores of normal and corrupted images, on which nothing was fitted."""
    images = suite_images(suite, data)
    log(f"{suite}: fitting on {FITTED} images")
    detector = Detector(false_alarm_rate=0.01).fit(images[:FITTED])
    found: dict[str, NDArray[Any]] = {
        "calibration": detector.calibration_scores_,
        "components": np.array(detector.component_names),
    }

    def score(name: str, given: Iterable[NamedImage]) -> None:
        predictions = detector.predict(list(given))
        found[name] = predictions.scores
        found[f"{name}/z"] = np.array([[part.z for part in each.components] for each in predictions])
        log(f"{suite}: {name}")

    score("normal", images[FITTED : FITTED + NORMAL])
    changed = images[FITTED + NORMAL :]
    for corruption in CORRUPTIONS:
        for severity in SEVERITIES:
            made = (
                NamedImage(each.name, corrupt(each.pixels, corruption, severity, seed=place))
                for place, each in enumerate(changed)
            )
            score(f"{corruption}/{severity}", made)
    write_atomically(path, lambda beside: np.savez_compressed(beside.open("wb"), **found))  # type: ignore[arg-type]


def changes(scores: Scores) -> Iterator[tuple[str, list[str]]]:
    """The name of each change, and which scores its images have, one name an image."""
    for corruption in CORRUPTIONS:
        for severity in SEVERITIES:
            yield f"{corruption}, severity {severity}", [f"{corruption}/{severity}"] * MOST
        yield f"{corruption}, slow ramp", ramp(corruption)


def ramp(corruption: str) -> list[str]:
    """Severity 0 to 3 over RAMP images, between two severities by chance, then 3."""
    rng, names = np.random.default_rng(11), []
    for image in range(MOST):
        level = min(3.0, 3 * image / RAMP)
        severity = int(level) + int(rng.random() < level - int(level))
        names.append(f"{corruption}/{severity}" if severity else "normal")
    return names


def drawn_streams(scores: Scores, names: list[str], streams: int, rate: float, seed: int) -> Row:
    """Delays over many streams: calibration and normal images are one pool, split at random, which is exchangeable."""
    rng = np.random.default_rng([seed, len(names)])
    pool, n = np.concatenate([scores["calibration"], scores["normal"]]), len(scores["calibration"])
    order = rng.permuted(np.tile(pool, (streams, 1)), axis=1)
    watched, level = Streams(order[:, :n], rng), -np.log(rate)
    early, alarm, flagged = np.zeros(streams, np.bool_), np.full(streams, np.inf), np.zeros(streams)
    for image in range(BEFORE):
        early |= watched.add(order[:, n + image]) >= level
    limits = np.sort(order[:, :n], 1)[:, -max(1, round(0.01 * (n + 1)))]
    for since, name in enumerate(names):
        left = order[:, n + BEFORE :] if name == "normal" else np.tile(scores[name], (streams, 1))
        given = left[np.arange(streams), rng.integers(left.shape[1], size=streams)]
        alarm = np.where((watched.add(given) >= level) & np.isinf(alarm), since + 1, alarm)
        flagged += given > limits
    return {"false": int(early.sum()), "flagged": float(flagged.mean() / len(names)), **summary(alarm[~early])}


def watch_once(scores: Scores, names: list[str], rate: float, seed: int) -> tuple[Monitor, list[float]]:
    """One stream through a `Monitor` itself, with components, and its log10 evidence after each image."""
    rng, n = np.random.default_rng([seed, 1]), len(scores["calibration"])
    normal = rng.permutation(len(scores["normal"]))
    parts = scores["components"].tolist()
    calibration = np.sort(scores["calibration"])
    detector: Any = SimpleNamespace(
        calibration_scores_=calibration, component_names=tuple(parts), settings=lambda: {"groups": None}
    )
    monitor, trace = Monitor(detector, rate, seed=seed), []
    places = [("normal", place) for place in normal[:BEFORE].tolist()]
    for name in names:
        left = normal[BEFORE:].tolist() if name == "normal" else range(len(scores[name]))
        places.append((name, left[rng.integers(len(left))]))
    for name, place in places:
        score = float(scores[name][place])
        p_value = float(p_values([score], calibration)[0])
        z = scores[f"{name}/z"][place].tolist()
        components = tuple(ComponentScore(part, value, False) for part, value in zip(parts, z, strict=True))
        prediction = Prediction(f"{name}/{place}", score, p_value, p_value <= 2 / (n + 1), components=components)
        trace.append(monitor.update(prediction).log10_evidence)
    return monitor, trace
