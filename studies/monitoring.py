"""How often the monitor is wrong, how soon it is right, and beside other detectors of a change.

python studies/monitoring.py simulate               # false alarms and delays of simulated streams
python studies/monitoring.py compare                # beside ADWIN, Page-Hinkley and a KS window; pip install river
python studies/monitoring.py images --data FOLDER   # solar cells and photos, whose quality falls midway
python studies/monitoring.py plot                   # docs/images/monitoring-*.png
python studies/monitoring.py tables --page docs/monitoring.md

All write into docs/results/monitoring.json what is not there yet, so that a command that was stopped goes on. FOLDER
holds natural/train-0000.tar; the solar cells are those of the package elpv-dataset. The scores of the images are kept
beside the results of other commands in `--scores`, and computed where they are missing.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import beta

from common import write_between
from discopatch.bench.tables.writers import markdown_table
from discopatch.utils import write_json
from monitored.streams import AT_ONCE, CHANGES, RATES, Row, alarms_of_detectors, delays, highest_evidence

RESULTS, FIGURES = Path("docs/results/monitoring.json"), Path("docs/images")
CALIBRATED, AFTERS = (99, 199, 999), (0, 10_000, 50_000)
IMAGES, SHIFTS = 10_000, (0.5, 1.0, 2.0)
MOST = 2000  # images after a change
LEVELS = (0.0, 0.05, 0.2)  # shares of the streams of one detector with an alarm
TIED = 0  # decimals of scores with many ties
COMPARED = 199  # calibration scores, beside the others
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
def simulate(out: Path = RESULTS, streams: int = 2000, delayed: int = 400, images: int = IMAGES) -> None:
    """Normal streams with new calibration scores each, and changes of several kinds, early and late."""
    stored = Stored(out)
    for decimals in (None, TIED):
        for n in CALIBRATED:
            name = f"false/{n}/{'continuous' if decimals is None else 'tied'}"
            for chunk in range(streams // AT_ONCE):
                stored.add(f"{name}/{chunk}", chunk_counts, n, images, chunk, decimals)
    for after in AFTERS:
        for n in CALIBRATED:
            if after <= images or n == COMPARED:
                stored.add(f"delays/{n}/{after}", delay_rows, n, after, delayed)
    stored.add(f"detectors/{COMPARED}", detector_shares, COMPARED)


def delay_rows(n: int, after: int, streams: int) -> dict[str, Row]:
    return dict(delays(n, after, streams=streams, most=MOST, rate=RATES[0]))


def detector_shares(n: int) -> Row:
    """How the share of normal streams of 1,000 images with an alarm differs between 200 detectors."""
    shares = alarms_of_detectors(n, detectors=200, streams=50, images=1000, rate=RATES[0])
    return {"mean": float(shares.mean()), **{f"above {level:g}": float((shares > level).mean()) for level in LEVELS}}


def chunk_counts(n: int, images: int, chunk: int, decimals: int | None) -> Row:
    highest = highest_evidence(n, images, chunk, decimals=decimals)
    return {
        "streams": AT_ONCE,
        **{
            f"{name} {rate:g}": int((found >= -np.log(rate)).sum()) for name, found in highest.items() for rate in RATES
        },
    }


@app.command()
def compare(out: Path = RESULTS, streams: int = 500, delayed: int = 200, images: int = IMAGES) -> None:
    """The same streams for all: false alarms among normal ones, delays, and both with tuned thresholds."""
    from monitored import rivals

    def measure() -> dict[str, Row]:
        tuning, testing = np.random.default_rng(21), np.random.default_rng(22)
        known, normal = tuning.normal(size=(streams, COMPARED)), tuning.normal(size=(streams, images))
        methods = rivals.make_rivals(known, normal, RATES[0], print)
        return rivals.compare(
            methods,
            testing.normal(size=(streams, COMPARED)),
            testing.normal(size=(streams, images)),
            shifts=SHIFTS,
            afters=(0, images),
            most=MOST,
            delayed=delayed,
            note=print,
        )

    Stored(out).add("compare", measure)


@app.command()
def images(
    data: Annotated[Path, typer.Option(help="Folder with natural/train-0000.tar.")],
    out: Path = RESULTS,
    scores: Annotated[Path, typer.Option(help="Folder for the scores.")] = Path("runs/monitoring"),
    streams: int = 400,
) -> None:
    """Corruptions of severity 1 to 3 that set in after 300 normal images, and slow ramps."""
    from monitored import real

    stored = Stored(out)
    for suite in SUITES:
        path = scores / f"{suite}.npz"
        if not path.exists():
            real.score_images(suite, data, path)
        with np.load(path) as file:
            found = dict(file)
        for name, names in real.changes(found):
            stored.add(f"images/{suite}/{name}", real_row, real, found, names, streams)
        stored.add(f"trace/{suite}", real_trace, real, found)


def real_row(real: Any, scores: Mapping[str, Any], names: list[str], streams: int) -> Row:
    row: Row = real.drawn_streams(scores, names, streams, RATES[0], seed=0)
    told = [real.watch_once(scores, names[:200], RATES[0], seed)[0].status for seed in range(10)]
    late = [each for each in told if each.since is not None and (each.alarm_at or 0) > real.BEFORE]
    components = [each.component or "none" for each in late]
    return {
        **row,
        "component": max(set(components), key=components.count) if components else None,
        "directions": sorted({str(each.direction) for each in late}),
        "inside": sum(each.since.earliest <= real.BEFORE + 1 <= each.since.latest for each in late),
        "told": len(late),
    }


def real_trace(real: Any, scores: Mapping[str, Any]) -> dict[str, Row]:
    """One stream of each kind as a monitor sees it, for the figure."""
    found = {}
    for name, names in real.changes(scores):
        if name.startswith("defocus_blur"):
            monitor, trace = real.watch_once(scores, names[:300], RATES[0], seed=1)
            found[name] = {"log10": np.round(trace, 3).tolist(), "status": monitor.status.as_dict()}
    return found


@app.command()
def plot(out: Path = RESULTS, folder: Path = FIGURES) -> None:
    """Writes the figures."""
    from discopatch.bench.plots.style import save_figure
    from monitored import figures

    content = Stored(out).content
    for name, figure in figures.draw(content).items():
        save_figure(figure, folder / f"monitoring-{name}", ["png"])


@app.command()
def tables(out: Path = RESULTS, page: Path | None = None) -> None:
    """Prints all tables as Markdown, or writes them to their places on the page."""
    for title, table in make_tables(Stored(out).content).items():
        if page is None:
            print(f"\n{title}\n\n{table}")
        else:
            write_between(page, title, table)


def make_tables(content: Row) -> dict[str, str]:
    found = {"false alarms": false_table(content), "delays": delay_table(content)}
    if "compare" in content:
        found["beside others"] = compare_table(content["compare"])
    for suite in SUITES:
        found[suite] = image_table(content, suite)
    return found


def false_alarms(content: Row, n: int, kind: str, method: str, rate: float) -> tuple[int, int]:
    """Streams with an alarm, and all streams."""
    chunks = [each for name, each in content.items() if name.startswith(f"false/{n}/{kind}/")]
    return sum(each[f"{method} {rate:g}"] for each in chunks), sum(each["streams"] for each in chunks)


def binomial_text(count: int, total: int) -> str:
    """The share with its interval of 95 % (Clopper and Pearson)."""
    low = beta.ppf(0.025, count, total - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, total - count) if count < total else 1.0
    return f"{count / total:.2%} ({low:.2%} to {high:.2%})"


def false_table(content: Row) -> str:
    rows = []
    for n in CALIBRATED:
        for kind in ("continuous", "tied"):
            cells = [
                binomial_text(*false_alarms(content, n, kind, method, rate))
                for method in ("monitor", "textbook")
                for rate in RATES
                if false_alarms(content, n, kind, method, rate)[1]
            ]
            rows.append([str(n), kind, *cells])
    heads = [f"{name}, {rate:.0%}" for name in ("monitor", "textbook martingale") for rate in RATES]
    return markdown_table(["calibration images", "scores", *heads], rows)


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


def compare_table(content: Mapping[str, Row]) -> str:
    columns = [name for name in next(iter(content.values())) if "after" in name]
    rows = [
        [name, binomial_text(row["false"], row["streams"]), *(delay_text(row[column]) for column in columns)]
        for name, row in content.items()
    ]
    return markdown_table(["method", "normal streams with an alarm", *columns], rows)


def image_table(content: Row, suite: str) -> str:
    rows = []
    for name, row in content.items():
        if name.startswith(f"images/{suite}/"):
            change = name.removeprefix(f"images/{suite}/").replace("_", " ")
            told = f"{row['inside']} of {row['told']}"
            rows.append([change, f"{row['flagged']:.0%}", delay_text(row), told, str(row["component"] or "")])
    heads = ["change", "images flagged", "images until the alarm", "beginning inside the interval", "component"]
    return markdown_table(heads, rows)


if __name__ == "__main__":
    app()
