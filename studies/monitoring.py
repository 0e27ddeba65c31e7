"""Simulated and real streams of a monitor: how often it is wrong, and how soon it is right.

python studies/monitoring.py simulate               # false alarms and delays of simulated streams
python studies/monitoring.py images --data FOLDER   # solar cells and photos, whose quality falls midway
python studies/monitoring.py tables                 # the tables of docs/serving.md

Results that are missing in docs/results/monitoring.json are added, so that a stopped command can be continued. FOLDER
holds natural/train-0000.tar; the solar cells are those of the package elpv-dataset. The scores of the images are stored
in `--scores`, and computed where they are missing.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import beta

from discopatch import Detector
from discopatch.bench.suites import NORMAL_CELL, labelled_cells, solar_folder
from discopatch.bench.tables import markdown_table
from discopatch.corruptions import corrupt
from discopatch.errors import TooFewImagesError
from discopatch.images import NamedImage, read_images
from discopatch.monitor.evidence import Evidence, Ranking
from discopatch.pretrained import DEFAULT_WEIGHTS, load_pretrained
from discopatch.utils import write_atomically, write_json

Floats = NDArray[np.float64]
Row = dict[str, Any]

AT_ONCE = 250  # streams that are simulated together
RATES = (0.01, 0.05)
JUMP, SLOPES = 0.01, np.array([-1.0, 0.0, 1.0])  # of the textbook martingale


# Normal scores (R,), and the first of them after the change -> scores.
CHANGES: dict[str, Callable[[Floats, Floats, np.random.Generator], Floats]] = {
    "0.5 sd higher": lambda scores, first, rng: scores + 0.5,
    "1 sd higher": lambda scores, first, rng: scores + 1,
    "2 sd higher": lambda scores, first, rng: scores + 2,
    "1 sd lower": lambda scores, first, rng: scores - 1,
    "5 % far off": lambda scores, first, rng: np.where(rng.random(len(scores)) < 0.05, scores + 30, scores),
    "frozen": lambda scores, first, rng: first,
}


class Streams:
    """R streams with n calibration scores of their own each, and what the monitor makes of them."""

    def __init__(self, calibration: Floats, rng: np.random.Generator) -> None:
        streams, n = calibration.shape
        self.rng, self.evidence = rng, Evidence(n, streams)
        self.below = np.zeros(streams, np.int64)  # calibration scores below the last score
        self.ranking = Ranking(calibration, rng.random(calibration.shape), self.evidence.alternatives.highest)

    def add(self, scores: Floats) -> Floats:
        """The log-evidence (R,) after the next score of each stream."""
        self.below, record = self.ranking.add(scores, self.rng.random(len(scores)))
        self.evidence.update(self.evidence.alternatives.band_of_gap[self.below], record)
        return self.evidence.log_evidence


class Jumper:
    """The textbook conformal martingale, simple jumper, which takes p-values for independent."""

    def __init__(self, n: int, streams: int, rng: np.random.Generator) -> None:
        self.n, self.rng = n, rng
        self.capital = np.full((streams, len(SLOPES)), 1 / len(SLOPES))

    def add(self, below: NDArray[np.int64]) -> Floats:
        """The same after the next scores, which are above so many calibration scores."""
        p = (self.n - below + self.rng.random(len(below))) / (self.n + 1)
        self.capital = (1 - JUMP) * self.capital + JUMP * self.capital.mean(1, keepdims=True)
        self.capital *= 1 + SLOPES * (p[:, None] - 0.5)
        return np.asarray(np.log(self.capital.sum(1)))


def highest_evidence(n: int, images: int, chunk: int) -> dict[str, Floats]:
    """The highest log-evidence of each of some normal streams, by the monitor and by the textbook martingale."""
    rng = np.random.default_rng([0, n, chunk, 0])
    watched, textbook = Streams(rng.normal(size=(AT_ONCE, n)), rng), Jumper(n, AT_ONCE, rng)
    highest = {"monitor": np.zeros(AT_ONCE), "textbook": np.zeros(AT_ONCE)}
    for _ in range(images):
        highest["monitor"] = np.maximum(highest["monitor"], watched.add(rng.normal(size=AT_ONCE)))
        highest["textbook"] = np.maximum(highest["textbook"], textbook.add(watched.below))
    return highest


def delays(n: int, after: int, *, streams: int, most: int, rate: float, seed: int = 0) -> Iterator[tuple[str, Row]]:
    """For each kind of change: the median number of images until the alarm, and the share of streams with one.

    All changes follow the same normal images; streams that raised an alarm before are left out and counted.
    """
    rng = np.random.default_rng([seed, n, after])
    before = Streams(rng.normal(size=(streams, n)), rng)
    level, early = -np.log(rate), np.zeros(streams, np.bool_)
    for _ in range(after):
        early |= before.add(rng.normal(size=streams)) >= level
    for kind, change in CHANGES.items():
        watched, alarm, first = deepcopy(before), np.full(streams, np.inf), np.zeros(0)
        watched.rng = np.random.default_rng([seed, n, after, len(kind)])
        for since in range(most):
            scores = watched.rng.normal(size=streams)
            first = scores if since == 0 else first
            found = watched.add(change(scores, first, watched.rng)) >= level
            alarm = np.where(found & np.isinf(alarm), since + 1, alarm)
            if np.isfinite(alarm).all():
                break
        kept = alarm[~early]
        yield kind, {"false": int(early.sum()), **summary(kept)}


def summary(delay: Floats) -> Row:
    """The median, None where fewer than half are found, and the share that is found."""
    if not len(delay):
        return {"median": None, "found": 0.0, "streams": 0}
    middle = np.quantile(delay, 0.5, method="inverted_cdf")
    return {
        "median": float(middle) if np.isfinite(middle) else None,
        "found": float(np.isfinite(delay).mean()),
        "streams": len(delay),
    }


FITTED, NORMAL, CORRUPTED = 600, 400, 100  # images; 199 of the first are held out
CORRUPTIONS = ("gaussian_noise", "defocus_blur", "brightness", "jpeg_compression")
SEVERITIES = (1, 2, 3)
BEFORE, AFTER = 300, 600  # normal images, and images after the change
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
    found: dict[str, NDArray[Any]] = {"calibration": detector.calibration_scores_}

    def score(name: str, given: Iterable[NamedImage]) -> None:
        found[name] = detector.score(list(given))
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


def drawn_streams(scores: Scores, name: str, streams: int) -> Row:
    """Delays over many streams: calibration and normal images are one pool, split at random, which is exchangeable."""
    rng = np.random.default_rng([0, AFTER])
    pool, n = np.concatenate([scores["calibration"], scores["normal"]]), len(scores["calibration"])
    order = rng.permuted(np.tile(pool, (streams, 1)), axis=1)
    watched, level = Streams(order[:, :n], rng), -np.log(RATES[0])
    early, alarm, flagged = np.zeros(streams, np.bool_), np.full(streams, np.inf), np.zeros(streams)
    for image in range(BEFORE):
        early |= watched.add(order[:, n + image]) >= level
    limits = np.sort(order[:, :n], 1)[:, -max(1, round(0.01 * (n + 1)))]
    for since in range(AFTER):
        given = scores[name][rng.integers(len(scores[name]), size=streams)]
        alarm = np.where((watched.add(given) >= level) & np.isinf(alarm), since + 1, alarm)
        flagged += given > limits
    return {"false": int(early.sum()), "flagged": float(flagged.mean() / AFTER), **summary(alarm[~early])}


RESULTS = Path("docs/results/monitoring.json")
CALIBRATED, AFTERS = (99, 199, 999), (0, 10_000, 50_000)
COMPARED = 199  # calibration scores of the longest streams
MOST = 2000  # images after a change
SUITES = ("solar", "natural")

app = typer.Typer(help=__doc__, add_completion=False)


class Stored:
    """Results by name in a JSON file, each written once it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Row = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, make: Callable[..., Any], *arguments: Any) -> None:
        """Calls `make` with the arguments, unless its result is known."""
        if name not in self.content:
            self.content[name] = make(*arguments)
            write_json(self.path, self.content)
            print(name, json.dumps(self.content[name])[:200], flush=True)


@app.command()
def simulate(out: Path = RESULTS, streams: int = 2000, delayed: int = 400, images: int = 10_000) -> None:
    """Normal streams with new calibration scores each, and changes of several kinds, early and late."""
    stored = Stored(out)
    for n in CALIBRATED:
        for chunk in range(streams // AT_ONCE):
            stored.add(f"false/{n}/continuous/{chunk}", chunk_counts, n, images, chunk)
    for after, n in product(AFTERS, CALIBRATED):
        if after <= images or (n == COMPARED and images >= AFTERS[1]):
            stored.add(f"delays/{n}/{after}", delay_rows, n, after, delayed)


def delay_rows(n: int, after: int, streams: int) -> dict[str, Row]:
    return dict(delays(n, after, streams=streams, most=MOST, rate=RATES[0]))


def chunk_counts(n: int, images: int, chunk: int) -> Row:
    highest = highest_evidence(n, images, chunk).items()
    counts = {f"{name} {rate:g}": int((found >= -np.log(rate)).sum()) for name, found in highest for rate in RATES}
    return {"streams": AT_ONCE, **counts}


@app.command()
def images(
    data: Annotated[Path, typer.Option(help="Folder with natural/train-0000.tar.")],
    out: Path = RESULTS,
    scores: Annotated[Path, typer.Option(help="Folder for the scores.")] = Path("runs/monitoring"),
    streams: int = 400,
) -> None:
    """Corruptions of severity 1 to 3 that set in after 300 normal images."""
    stored = Stored(out)
    for suite in SUITES:
        path = scores / f"{suite}.npz"
        if not path.exists():
            score_images(suite, data, path)
        with np.load(path) as file:
            found = dict(file)
        for corruption, severity in product(CORRUPTIONS, SEVERITIES):
            name = f"images/{suite}/{corruption}, severity {severity}"
            stored.add(name, drawn_streams, found, f"{corruption}/{severity}", streams)


@app.command()
def tables(out: Path = RESULTS) -> None:
    """Prints all tables as Markdown."""
    content = Stored(out).content
    found = {"false alarms": false_table(content), "delays": delay_table(content)}
    for suite in SUITES:
        found[suite] = image_table(content, suite)
    for title, table in found.items():
        print(f"\n{title}\n\n{table}")


def false_alarms(content: Row, n: int, method: str, rate: float) -> tuple[int, int]:
    """Streams with an alarm, and all streams."""
    chunks = [each for name, each in content.items() if name.startswith(f"false/{n}/continuous/")]
    return sum(each[f"{method} {rate:g}"] for each in chunks), sum(each["streams"] for each in chunks)


def binomial_text(count: int, total: int) -> str:
    """The share with its interval of 95 % (Clopper and Pearson)."""
    low = beta.ppf(0.025, count, total - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, total - count) if count < total else 1.0
    return f"{count / total:.2%} ({low:.2%} to {high:.2%})"


def false_table(content: Row) -> str:
    columns = list(product(("monitor", "textbook"), RATES))
    rows = [[str(n), *(binomial_text(*false_alarms(content, n, *each)) for each in columns)] for n in CALIBRATED]
    return markdown_table(["calibration images", *(f"{method}, {rate:.0%}" for method, rate in columns)], rows)


def delay_text(found: Row | None) -> str:
    if found is None:
        return ""
    if not found["streams"]:
        return "alarm before"
    if found["median"] is None:
        return f"found in {found['found']:.0%}"
    share = f" ({found['found']:.0%})" if found["found"] < 0.995 else ""
    return f"{found['median']:.0f}{share}"


def delay_table(content: Row) -> str:
    columns = [(n, after) for n in CALIBRATED for after in AFTERS if f"delays/{n}/{after}" in content]
    rows = [[kind, *(delay_text(content[f"delays/{n}/{after}"].get(kind)) for n, after in columns)] for kind in CHANGES]
    return markdown_table(["change", *(f"n = {n}, after {after:,}" for n, after in columns)], rows)


def image_table(content: Row, suite: str) -> str:
    rows = []
    for name, row in content.items():
        if name.startswith(f"images/{suite}/"):
            change = name.removeprefix(f"images/{suite}/").replace("_", " ")
            rows.append([change, f"{row['flagged']:.0%}", delay_text(row)])
    return markdown_table(["change", "images flagged", "images until the alarm"], rows)


if __name__ == "__main__":
    app()
