"""Tables, JSON and the plot of the comparison with peers, from the scores that their scripts stored.

python studies/peers/read.py SUITES SCORES --docs docs

docs/results/peers.json gets all figures, docs/images/peers.png the plot, and docs/peers.md its tables, each below the
heading of its name. Every cell is computed by the same code from the scores of one method.
"""

import json
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.bench.tables import markdown_table
from discopatch.calibration import images_needed, threshold
from discopatch.evaluation import Measure, pixel_measures, resized
from discopatch.metrics import auroc, count_pixels, draw_resamples, middle, resample

Floats = NDArray[np.float64]
Cells = dict[str, dict[str, str]]  # method -> column -> text
RATE = 0.05
OURS = "discopatch"
SUITES = {"castings": "castings", "kolektor": "KolektorSDD", "tiles": "magnetic tiles", "solar": "solar cells"}
CORRUPTED = {"photos": "photos", "x-rays": "chest x-rays"}
NAMES = {
    "discopatch": "discopatch",
    "discopatch-resnet50": "discopatch, ResNet-50",
    "patchcore-1": "anomalib PatchCore, coreset 1 %",
    "patchcore-10": "anomalib PatchCore, coreset 10 %",
    "padim": "anomalib PaDiM",
    "dfm": "anomalib DFM",
    "supersimplenet": "anomalib SuperSimpleNet, short",
}


class Scored:
    """The stored scores of one method on one suite."""

    def __init__(self, file: Path) -> None:
        self.stored = json.loads(file.read_text())
        self.file, self.method = file, file.stem
        self.scores: dict[str, float] = self.stored["scores"]

    def of(self, part: str) -> Floats:
        return np.array([score for name, score in sorted(self.scores.items()) if name.startswith(f"{part}/")])

    def groups(self, severity: str = "") -> list[str]:
        """The folders that stand against the normal images: the defects, or each corruption at the severity."""
        if not severity:
            return ["defects"]
        found = {str(Path(name).parent) for name in self.scores if name.startswith("corrupted/")}
        return sorted(each for each in found if each.endswith(f"-{severity}"))

    @cache  # noqa: B019  # as few as there are files
    def area(self, severity: str = "") -> tuple[float, Floats]:
        """AUROC, of corruptions their mean, and its resamples; those of all methods draw the same images."""
        normal, others = self.of("normal"), [self.of(each) for each in self.groups(severity)]
        drawn = (
            draw_resamples(len(normal), seed=0, name="normal"),
            draw_resamples(len(others[0]), seed=0, name="defects"),
        )
        samples = [resample(normal, each, drawn)[0] for each in others]
        return mean(auroc(normal, each) for each in others), np.mean(samples, axis=0)

    def shares(self, level: float, severity: str = "") -> str:
        """Found and false alarms above a level, in per cent, such as "88 (5)"."""
        others = np.concatenate([self.of(each) for each in self.groups(severity)])
        return f"{100 * np.mean(others > level):.1f} ({100 * np.mean(self.of('normal') > level):.1f})"

    def flagged(self, severity: str = "") -> str:
        """The same by its own decision."""
        if self.stored["flagged"] is None:
            return ""
        flags = {name: float(flag) for name, flag in self.stored["flagged"].items()}
        wrong = [flag for name, flag in flags.items() if str(Path(name).parent) in self.groups(severity)]
        usual = [flag for name, flag in flags.items() if name.startswith("normal/")]
        return f"{100 * mean(wrong):.1f} ({100 * mean(usual):.1f})" if usual else ""

    def promised(self, severity: str = "") -> str:
        """Shares above the threshold of split conformal prediction on the images that nobody fitted."""
        held_out = self.of("held_out")
        return self.shares(threshold(held_out, RATE), severity) if len(held_out) >= images_needed(RATE) else ""

    def at(self, rate: float, severity: str = "") -> str:
        """The share found where that share of the tested normal images is flagged."""
        normal = np.sort(self.of("normal"))
        return self.shares(normal[-1 - int(rate * len(normal))], severity).split()[0]

    def places(self, suite: Path) -> str:
        """AUPRO of its maps on the pixels of the original images."""
        if not self.stored["pixel"]:
            return ""
        maps, normal, defects = np.load(self.file.with_name(self.stored["pixel"])), [], []
        for name in maps:
            shape = Image.open(suite / name).size[::-1]
            places = resized(np.float32(maps[name]), shape)
            mask = suite / "masks" / Path(name).name
            if name.startswith("normal/"):
                normal.append(count_pixels(places))
            elif mask.exists():
                defects.append(count_pixels(places, np.asarray(Image.open(mask)) > 0))
        return in_points(pixel_measures(normal, defects, seed=0)[0])


def in_points(measure: Measure) -> str:
    return f"{100 * measure.value:.1f} [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"


def with_interval(value: float, samples: Floats) -> str:
    return in_points(Measure(value, *middle(samples)))


def compared(scores: Path) -> Iterator[tuple[str, str, str, dict[str, Scored]]]:
    """Suite, severity, heading of the column, and methods by name."""
    for name, title in {**SUITES, **CORRUPTED}.items():
        files = sorted((scores / name).glob("*.json"))
        found = {NAMES.get(file.stem, file.stem): Scored(file) for file in files}
        order = {each: number for number, each in enumerate(NAMES.values())}
        found = {each: found[each] for each in sorted(found, key=lambda each: (order.get(each, len(order)), each))}
        for severity in ("1", "3") if name in CORRUPTED else ("",):
            yield name, severity, f"{title}, severity {severity}" if severity else title, found


def fill(suites: Path, scores: Path) -> dict[str, Cells]:
    """All tables by their heading."""
    tables: dict[str, Cells] = {}

    def put(table: str, method: str, column: str, text: str) -> None:
        if text:
            tables.setdefault(table, {}).setdefault(method, {})[column] = text

    for suite, severity, title, methods in compared(scores):
        kind = "Corruptions" if severity else "Defects"
        for name, each in methods.items():
            if not len(each.of("normal")):
                continue
            put(kind, name, title, with_interval(*each.area(severity)))
            if not severity:
                put(kind, name, "AUPRO, tiles", each.places(suites / suite))
            put(f"{kind} found with one rule", name, title, each.promised(severity))
            put(f"{kind} found by each tool's own decision", name, title, each.flagged(severity))
            for rate in () if severity else (0.01, RATE):
                put(f"{kind} found at {100 * rate:g} % of the normal images", name, title, each.at(rate, severity))
            if OURS in methods and name != OURS:
                one, other = methods[OURS].area(severity), each.area(severity)
                put(f"{kind}, ours minus theirs", name, title, with_interval(one[0] - other[0], one[1] - other[1]))
    costs: dict[str, list[Scored]] = {}
    for suite, severity, _, methods in compared(scores):
        for name, each in methods.items() if suite in SUITES and not severity else ():
            costs.setdefault(name, []).append(each)
    units = {
        "fit_seconds": "fit, s",
        "image_seconds": "image, ms",
        "peak_mib": "peak, MiB",
        "saved_mb": "saved, MB",
        "lines": "lines",
    }
    for name, runs in costs.items():
        for key, column in units.items():
            values = [float(each.stored[key]) for each in runs if each.stored.get(key) is not None]
            factor = 1000 if key == "image_seconds" else 1
            put("Cost", name, column, f"{factor * float(np.median(values)):.3g}" if values else "")
    columns = {
        table: list(dict.fromkeys(column for row in cells.values() for column in row))
        for table, cells in tables.items()
    }
    return {
        table: {method: {column: row.get(column, "") for column in columns[table]} for method, row in cells.items()}
        for table, cells in tables.items()
    }


def plot(tables: dict[str, Cells], path: Path) -> None:
    """The share of defects found against CPU seconds an image, for methods that have all suites of defects."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    for name, cells in tables["Defects found with one rule"].items():
        if all(cells.get(each) for each in SUITES.values()):
            seconds = float(tables["Cost"][name]["image, ms"]) / 1000
            found = mean(float(cells[each].split()[0]) for each in SUITES.values())
            ours = name.startswith(OURS)
            axes.scatter(seconds, found, s=60, color="#c0392b" if ours else "#34495e", zorder=3)
            axes.annotate(name, (seconds, found), xytext=(7, 4), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.margins(x=0.25, y=0.12)
    axes.grid(alpha=0.3)
    axes.set_xlabel("CPU seconds an image (one thread)")
    axes.set_ylabel("defects found at a promised 5 %, mean of four sets, %")
    figure.savefig(path, dpi=150)


def write_page(page: Path, tables: dict[str, Cells]) -> None:
    """Replaces the table that follows each heading of its name."""
    text = page.read_text()
    for name, cells in tables.items():
        table = markdown_table(
            ["", *next(iter(cells.values()))], [[method, *row.values()] for method, row in cells.items()]
        )
        pattern = re.compile(rf"(^#+ {re.escape(name)}\n(?:(?!^#).*\n)*?)\|.*\n(?:\|.*\n)+", re.MULTILINE)
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}\n", text, count=1)  # type: ignore[misc]
    page.write_text(text)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--docs", type=Path, required=True)
    options = parser.parse_args()
    tables = fill(options.suites, options.scores)
    runs: dict[str, Any] = {}
    for suite, _, _, methods in compared(options.scores):
        for name, each in methods.items():
            kept = (
                "version",
                "threads",
                "threshold",
                "notes",
                "suite_digest",
                "weights_digest",
                *("fit_seconds", "image_seconds"),
            )
            runs.setdefault(suite, {})[name] = {key: each.stored.get(key) for key in kept}
    (options.docs / "results" / "peers.json").write_text(json.dumps({"tables": tables, "runs": runs}, indent=1) + "\n")
    plot(tables, options.docs / "images" / "peers.png")
    if (options.docs / "peers.md").exists():
        write_page(options.docs / "peers.md", tables)
    for name, cells in tables.items():
        print(f"\n{name}", *(f"  {method}: {row}" for method, row in cells.items()), sep="\n")


if __name__ == "__main__":
    main()
