"""Other detectors of a change on the same streams: ADWIN and Page-Hinkley of the package river, and a KS window.

All have the calibration scores in hand: ADWIN, which wants numbers from 0 to 1, gets the share of calibration scores
below each score, Page-Hinkley gets scores standardised by them, and both are fed with them first; the KS test compares
each window with them. Each is run as it comes, and once more with a threshold at which as many simulated normal streams
raise an alarm as the monitor's rate says.
"""

from collections.abc import Callable, Sequence
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.utils import require
from monitored.streams import Floats, Row, Streams, summary

WINDOW, EVERY = 100, 10  # images of the KS window, and after how many it is looked at
DELTAS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001)  # of ADWIN; tuned is the largest that will do
NOMINAL_THRESHOLD = 50.0  # of Page-Hinkley in river, which has no rate
SUITED = {"delta": 0.25, "alpha": 1.0}  # half of the smallest shift that is looked for, and no forgetting


def ranks_of(calibration: Floats, scores: Floats) -> Floats:
    """The share of calibration scores (R, n) below each score (R, T) of the same stream."""
    found = [np.searchsorted(np.sort(known), given) for known, given in zip(calibration, scores, strict=True)]
    return np.asarray(np.array(found) / calibration.shape[1], np.float64)


def adwin_alarms(calibration: Floats, scores: Floats, delta: float) -> Floats:
    """(R,): after how many images the first change is told; inf where none is."""
    require("river")
    from river.drift import ADWIN

    found = np.full(len(scores), np.inf)
    warm_up = ranks_of(calibration, calibration)
    for stream, values in enumerate(ranks_of(calibration, scores)):
        detector = ADWIN(delta=delta)
        for value in warm_up[stream].tolist():
            detector.update(value)
        for image, value in enumerate(values.tolist(), start=1):
            detector.update(value)
            if detector.drift_detected:
                found[stream] = image
                break
    return found


def page_hinkley_statistics(calibration: Floats, scores: Floats, **settings: float) -> Floats:
    """(R, T): what the test of river, with these settings, compares with its threshold after each image."""
    require("river")
    from river.drift import PageHinkley

    mean, spread = calibration.mean(1, keepdims=True), calibration.std(1, keepdims=True)
    found = np.zeros(scores.shape)
    known = ((calibration - mean) / spread).tolist()
    for stream, values in enumerate(((scores - mean) / spread).tolist()):
        detector: Any = PageHinkley(threshold=float("inf"), **settings)
        for value in known[stream]:
            detector.update(value)
        for image, value in enumerate(values):
            detector.update(value)
            higher = detector._sum_increase - detector._min_increase
            found[stream, image] = max(higher, detector._max_decrease - detector._sum_decrease)
    return found


def ks_statistics(calibration: Floats, scores: Floats) -> Floats:
    """(R, T): the distance of the last window from the calibration scores, 0 where it is not looked at."""
    ranks, found = ranks_of(calibration, scores), np.zeros(scores.shape)
    steps = np.arange(1, WINDOW + 1) / WINDOW
    for end in range(WINDOW, scores.shape[1] + 1, EVERY):
        window = np.sort(ranks[:, end - WINDOW : end], 1)
        distance = np.maximum((steps - window).max(1), (window - steps + 1 / WINDOW).max(1))
        found[:, end - 1] = distance
    return found


def first_above(statistics: Floats, threshold: float) -> Floats:
    """(R,): after how many images the statistic is above the threshold for the first time, or inf."""
    above = statistics > threshold
    return np.where(above.any(1), above.argmax(1) + 1.0, np.inf)


def monitor_alarms(calibration: Floats, scores: Floats, rate: float) -> Floats:
    watched, alarm = Streams(calibration, np.random.default_rng(3)), np.full(len(scores), np.inf)
    for image in range(scores.shape[1]):
        reached = watched.add(scores[:, image]) >= -log(rate)
        alarm = np.where(reached & np.isinf(alarm), image + 1, alarm)
    return alarm


Alarms = Callable[[Floats, Floats], Floats]  # calibration scores, streams -> images until the alarm


def make_rivals(calibration: Floats, normal: Floats, rate: float, note: Callable[[str], object]) -> dict[str, Alarms]:
    """All methods by name; tuned ones have their thresholds from these normal streams."""
    n = calibration.shape[1]
    level = sqrt(-log(rate / 2) / 2 * (n + WINDOW) / (n * WINDOW))
    found: dict[str, Alarms] = {
        "monitor": lambda known, given: monitor_alarms(known, given, rate),
        f"ADWIN, delta {rate:g}": lambda known, given: adwin_alarms(known, given, rate),
        "Page-Hinkley, as it comes": lambda known, given: first_above(
            page_hinkley_statistics(known, given), NOMINAL_THRESHOLD
        ),
        f"KS window, {rate:.0%} a test": lambda known, given: first_above(ks_statistics(known, given), level),
    }
    for delta in DELTAS:
        share = float(np.isfinite(adwin_alarms(calibration, normal, delta)).mean())
        note(f"ADWIN, delta {delta:g}: {share:.1%} of normal streams")
        if share <= rate:
            break
    tuned_delta = delta
    suited = float(np.quantile(page_hinkley_statistics(calibration, normal, **SUITED).max(1), 1 - rate))
    as_it_is = float(np.quantile(page_hinkley_statistics(calibration, normal).max(1), 1 - rate))
    distance = float(np.quantile(ks_statistics(calibration, normal).max(1), 1 - rate))
    note(f"Page-Hinkley tuned to {as_it_is:.1f} and {suited:.1f}, KS to {distance:.3f}")
    found[f"ADWIN, tuned (delta {tuned_delta:g})"] = lambda known, given: adwin_alarms(known, given, tuned_delta)
    found[f"Page-Hinkley, tuned (threshold {as_it_is:.0f})"] = lambda known, given: first_above(
        page_hinkley_statistics(known, given), as_it_is
    )
    found[f"Page-Hinkley, tuned (delta 0.25, alpha 1, threshold {suited:.1f})"] = lambda known, given: first_above(
        page_hinkley_statistics(known, given, **SUITED), suited
    )
    found[f"KS window, tuned (D > {distance:.2f})"] = lambda known, given: first_above(
        ks_statistics(known, given), distance
    )
    return found


def compare(
    rivals: dict[str, Alarms],
    calibration: Floats,
    normal: Floats,
    *,
    shifts: Sequence[float],
    afters: Sequence[int],
    most: int,
    delayed: int,
    note: Callable[[str], object],
) -> dict[str, Row]:
    """For each method the share of normal streams with an alarm, and its delays on the first `delayed` of them."""
    rng, results = np.random.default_rng(9), {}
    later: NDArray[np.float64] = rng.normal(size=(delayed, most))
    for name, alarms in rivals.items():
        found = alarms(calibration, normal)
        row: Row = {"false": int(np.isfinite(found).sum()), "streams": len(normal)}
        for after in afters:
            for shift in shifts:
                given = np.concatenate([normal[:delayed, :after], later + shift], 1)
                delay = alarms(calibration[:delayed], given) - after
                row[f"{shift:g} sd after {after}"] = summary(delay[delay > 0])
        results[name] = row
        note(f"{name}: {row['false']} of {len(normal)} normal streams")
    return results
