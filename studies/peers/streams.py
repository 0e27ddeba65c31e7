"""Alarms in streams of scores: our monitor and, on the same streams, nonconform, river and alibi-detect.

python studies/peers/streams.py discopatch      # where discopatch is installed
python studies/peers/streams.py river           # in an environment that is made for it; also alibi-detect
python3.12 studies/peers/streams.py nonconform  # it needs Python 3.12
python studies/peers/streams.py table

    ranks = SequentialRankConformalizer().prime_many(calibration_scores)
    martingale = SimpleJumperMartingale(alarm_config=AlarmConfig(restarted_ville_threshold=1 / 0.01))
    alarm = bool(martingale.update(ranks.update(score)).triggered_alarms)

    detector = drift.ADWIN()    # first all calibration scores, whose alarms do not count, then the stream
    detector.update(score)
    alarm = detector.drift_detected

    detector = CVMDriftOnline(calibration_scores, ert=20000, window_sizes=[20, 40], n_bootstraps=200000)
    alarm = bool(detector.predict(score)["data"]["is_drift"])

Each stream has 199 calibration scores of its own. Scores are normally distributed; a change adds a constant. The
promised rate is 1 %; river's detectors promise none and run with their defaults. alibi-detect is given the mean number
of images until a false alarm, and should simulate ten times as many streams. Its thresholds depend on the number of
calibration scores alone: one simulation is for all streams. The windows are those of its documentation. The run of
nonconform also compares its p-values and its selection with ours, on scores with and without ties.
"""

import json
import logging
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from peer import continue_in_environment

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "studies")]

Floats = NDArray[np.float64]
Start = Callable[[Floats, int], Callable[[float], bool]]  # calibration scores, stream's number -> is a score an alarm?

CALIBRATED, RATE, NORMAL, MOST = 199, 0.01, 2000, 2000
CHANGES = {f"{by:g} sd after {after}": (by, after) for after in (0, NORMAL) for by in (0.5, 1.0)}
RUN = 20_000  # ten times the images: a tenth of normal streams have an alarm, if runs are geometric
ALIBI_DETECT = [
    *("torch==2.13.0", "alibi-detect==0.13.0", "numpy==1.26.4", "scipy==1.17.1", "numba==0.59.1"),
    "scikit-learn==1.9.1",
]
PACKAGES = {
    "river": ["river==0.26.1", "numpy==2.4.6"],
    "nonconform": ["nonconform==2.0.0", "msgspec==0.22.0"],
    "alibi-detect": ALIBI_DETECT,
}
RESULTS = ROOT / "docs/results/peers-streams.json"


def drawn(number: int, images: int) -> tuple[Floats, Floats]:
    """The calibration scores and the normal scores of a stream."""
    scores = np.random.default_rng([3, number]).normal(size=CALIBRATED + images)
    return scores[:CALIBRATED], scores[CALIBRATED:]


def nonconform() -> Start:
    from nonconform.martingales import AlarmConfig, SimpleJumperMartingale
    from nonconform.monitoring import SequentialRankConformalizer

    def start(calibration: Floats, number: int) -> Callable[[float], bool]:
        ranks = SequentialRankConformalizer(seed=number).prime_many(calibration)
        martingale = SimpleJumperMartingale(alarm_config=AlarmConfig(restarted_ville_threshold=1 / RATE))
        return lambda score: bool(martingale.update(ranks.update(score)).triggered_alarms)

    return start


def river(name: str) -> Start:
    from river import drift

    def start(calibration: Floats, number: int) -> Callable[[float], bool]:
        detector = getattr(drift, name)()

        def add(score: float) -> bool:
            detector.update(score)
            return bool(detector.drift_detected)

        for score in calibration.tolist():
            add(score)
        return add

    return start


def alibi_detect() -> Start:
    from alibi_detect.cd import CVMDriftOnline

    np.random.seed(0)  # noqa: NPY002  # of its simulation
    options: dict[str, Any] = {"window_sizes": [20, 40], "n_bootstraps": 10 * RUN, "verbose": False}
    detector = CVMDriftOnline(np.zeros((CALIBRATED, 1)), ert=RUN, **options)

    def start(calibration: Floats, number: int) -> Callable[[float], bool]:
        detector.x_ref = calibration[:, None]
        detector._configure_ref()
        detector.reset_state()
        return lambda score: bool(detector.predict(score)["data"]["is_drift"])

    return start


def first_alarms(start: Start, streams: int, images: int, by: float, after: int) -> Floats:
    """Images until the alarm of each stream, infinite where there is none."""
    found = np.full(streams, np.inf)
    for number in range(streams):
        calibration, scores = drawn(number, images)
        scores[after:] += by
        add = start(calibration, number)
        found[number] = next((image for image, each in enumerate(scores.tolist(), 1) if add(each)), np.inf)
    return found


def our_first_alarms(streams: int, images: int, by: float, after: int) -> Floats:
    from monitoring import Streams

    calibration, scores = map(np.stack, zip(*(drawn(number, images) for number in range(streams)), strict=True))
    scores[:, after:] += by
    watched, found = Streams(calibration, np.random.default_rng(5)), np.full(streams, np.inf)
    for image, each in enumerate(scores.T, 1):
        found[(watched.add(each) >= -np.log(RATE)) & np.isinf(found)] = image
    return found


class GivenScores:
    """A detector of nonconform whose scores are the only column."""

    def fit(self, x: Floats, y: object = None) -> Self:
        return self

    def decision_function(self, x: Floats) -> Floats:
        return x[:, 0]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}

    def set_params(self, **given: Any) -> Self:
        return self


def promises(draws: int) -> dict[str, int]:
    """How often the p-values of all scores of a draw, and what is selected of them, are the same as ours."""
    from nonconform import ConformalDetector, Split

    from discopatch.calibration import p_values, select

    logging.disable(logging.WARNING)  # that too few images can be selected, once for each draw
    found = {"draws": draws, "same p-values": 0, "same selection": 0, "selected": 0}
    for draw in range(draws):
        rng = np.random.default_rng([7, draw])
        given, new = rng.normal(size=(CALIBRATED + 1, 1)), rng.normal(size=(200, 1))
        new[: (0, 10, 40)[draw % 3]] += 4
        if draw % 2:
            given, new = given.round(1), new.round(1)
        split, polarity = Split(n_calib=CALIBRATED), "higher_is_anomalous"
        detector = ConformalDetector(GivenScores(), split, score_polarity=polarity, seed=draw)
        selected = np.flatnonzero(detector.fit(given).select(new, alpha=0.1))
        theirs, ours = detector.last_result.p_values, p_values(new[:, 0], detector.calibration_set)
        found["same p-values"] += bool(np.array_equal(theirs, ours))
        found["same selection"] += bool(np.array_equal(selected, np.sort(select(ours, 0.1))))
        found["selected"] += len(selected)
    return found


def measured(peer: str) -> Iterator[tuple[str, Callable[..., Floats]]]:
    """The methods of a peer, and what returns their first alarms."""
    if peer == "discopatch":
        yield "monitor", our_first_alarms
        return
    kinds: dict[str, Start] = {}
    if peer == "river":
        kinds = {"ADWIN": river("ADWIN"), "Page-Hinkley": river("PageHinkley")}
    elif peer == "nonconform":
        kinds["simple jumper"] = nonconform()
    else:
        kinds["online CVM"] = alibi_detect()
    for name, start in kinds.items():
        yield name, lambda *given, start=start: first_alarms(start, *given)


def measure(peer: str, streams: int, changed: int, images: int, out: Path) -> None:
    content = json.loads(out.read_text()) if out.exists() else {}
    if peer == "nonconform" and peer not in content:
        content[peer] = {"version": version(peer), **promises(3 * changed)}
    for name, first in measured(peer):
        row = content.setdefault("streams", {}).setdefault(f"{peer}, {name}", {"version": version(peer)})
        cases = {"normal": (streams, images, 0.0, 0)}
        cases |= {kind: (changed, after + MOST, by, after) for kind, (by, after) in CHANGES.items() if after <= images}
        for kind, given in cases.items():
            if kind in row:
                continue
            clock, after = process_time(), given[-1]
            # The streams begin alike: where each of the normal ones had an alarm, none is left to change.
            alarms = np.zeros(changed) if after and row["normal"]["alarms"] == streams else first(*given)
            if kind == "normal":
                found = int(np.isfinite(alarms).sum())
                row[kind] = {"streams": streams, "alarms": found, "share": found / streams}
            else:
                late = alarms[alarms > after] - after
                middle = float(np.quantile(late, 0.5, method="inverted_cdf")) if len(late) else np.inf
                row[kind] = {"streams": len(late), "found": float(np.isfinite(late).mean()) if len(late) else None}
                row[kind]["median"] = middle if np.isfinite(middle) else None
            print(peer, name, kind, row[kind], f"{process_time() - clock:.0f} s", flush=True)
            out.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def table(out: Path) -> None:
    for name, row in json.loads(out.read_text())["streams"].items():
        cells = [f"{100 * row['normal']['share']:.1f} %"]
        for each in (row[kind] for kind in CHANGES if kind in row):
            share = "" if each["found"] in (1, None) else f" ({100 * each['found']:.0f} %)"
            cells.append("" if each["median"] is None else f"{each['median']:.0f}{share}")
        print("|", " | ".join([name, *cells]), "|")


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("discopatch", *PACKAGES, "table"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument("--images", type=int, default=NORMAL)
    options = parser.parse_args()
    if options.peer == "table":
        table(options.out)
        return
    if options.peer in PACKAGES:
        continue_in_environment(options.peer, PACKAGES[options.peer])
    measure(options.peer, options.streams, options.changed, options.images, options.out)


if __name__ == "__main__":
    main()
