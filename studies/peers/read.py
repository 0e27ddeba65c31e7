"""Tables, JSON and the plot of the comparison with peers, from the scores that their scripts stored.

python studies/peers/read.py SUITES SCORES --docs docs

docs/results/peers.json gets all figures, docs/images/peers.png the plot, and docs/peers.md and README.md their tables,
each below the heading of its name. Every cell is computed by the same code from the scores of one method.
"""

import json
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.bench.tables import markdown_table
from discopatch.calibration import images_needed, threshold
from discopatch.evaluation import Measure, pixel_measures, resized
from discopatch.metrics import auroc, count_pixels, draw_resamples, middle, resample

Floats = NDArray[np.float64]
Tables = dict[str, dict[str, dict[str, str]]]  # heading -> method -> column -> text
RATE = 0.05
SPLITS = 500  # of unseen normal images into those that choose the threshold and those that are tested
ONE_RULE = "found with one rule"
SUITES = {"castings": "castings", "kolektor": "KolektorSDD", "tiles": "magnetic tiles", "solar": "solar cells"}
CORRUPTED = {"photos": "photos", "x-rays": "chest x-rays"}
COSTS = {"fit_seconds": "fit, s", "image_seconds": "image, s", "peak_mib": "peak, MiB", "saved_mb": "saved, MB"}
LOGITS = tuple(f"pytorch-ood-{each}" for each in ("ash-b", "ash-s", "energy", "maxlogit", "msp", "scale"))
NAMES = {  # of the methods that the legend of the plot names
    "discopatch": "discopatch",
    "discopatch-resnet50": "discopatch, ResNet-50",
    "patchcore-1": "anomalib PatchCore, coreset 1 %",
    "patchcore-10": "anomalib PatchCore, coreset 10 %",
    "padim": "anomalib PaDiM",
    "dfm": "anomalib DFM",
    "supersimplenet": "anomalib SuperSimpleNet",
    "pytorch-ood-vim": "pytorch-ood ViM",
    "pytorch-ood-knn-1": "pytorch-ood kNN, k = 1",
    "pyod-knn": "PyOD KNN",
    "cleanvision": "cleanvision",
}
WORDS = {
    "pyod": "PyOD",
    "mahalanobis": "Mahalanobis",
    "nnguide": "NNGuide",
    "knn": "kNN",
    "iforest": "IForest",
    "energy": "Energy",
    "maxlogit": "MaxLogit",
}
SHORT = (  # in the README
    *("discopatch", "discopatch-resnet50", "patchcore-1", "padim", "dfm"),
    *("pytorch-ood-vim", "pytorch-ood-knn-1", "pyod-knn"),
)


class Scored:
    """The stored scores of one method on one suite; of corruptions those of one severity."""

    def __init__(self, file: Path, suite: Path, severity: str) -> None:
        self.file, self.suite = file, suite
        self.stored = json.loads(file.read_text())
        self.by_folder: dict[str, list[float]] = {}
        for name, score in sorted(self.stored["scores"].items()):
            self.by_folder.setdefault(str(Path(name).parent), []).append(score)
        self.groups = [
            each for each in sorted(self.by_folder) if each == "defects" or (severity and each.endswith(f"-{severity}"))
        ]

    def of(self, *folders: str) -> Floats:
        return np.array([score for each in folders for score in self.by_folder.get(each, ())])

    @cache  # noqa: B019  # as few as there are files
    def area(self) -> tuple[float, Floats]:
        """AUROC, of corruptions their mean, and its resamples; the same images are drawn for all methods."""
        normal, others = self.of("normal"), [self.of(each) for each in self.groups]
        counts = ("normal", len(normal)), ("defects", len(others[0]))
        drawn = [draw_resamples(count, seed=0, name=name) for name, count in counts]
        samples = [resample(normal, each, (drawn[0], drawn[1]))[0] for each in others]
        return mean(auroc(normal, each) for each in others), np.mean(samples, axis=0)

    def shares(self) -> str:
        """The mean of what is found and falsely flagged over random splits of held-out and tested normal images."""
        normal, others = self.of("held_out", "normal"), np.sort(self.of(*self.groups))
        held_out, rng, found = len(self.of("held_out")), np.random.default_rng(0), []
        for _ in range(SPLITS):
            drawn = rng.permutation(normal)
            level = threshold(drawn[:held_out], RATE)
            found.append((1 - np.searchsorted(others, level, "right") / len(others), (drawn[held_out:] > level).mean()))
        return "{:.1f} ({:.1f})".format(*(100 * np.mean(found, axis=0)))

    def cells(self, ours: "Scored | None") -> Iterator[tuple[str, str]]:
        """The heading of each table, and the cell in it."""
        kind = "Defects" if self.groups == ["defects"] else "Corruptions"
        normal, held_out, (area, samples) = np.sort(self.of("normal")), self.of("held_out"), self.area()
        yield kind, in_points(Measure(area, *middle(samples)))
        if ours is not None and ours.file != self.file:
            gain = ours.area()[0] - area, *middle(ours.area()[1] - samples)
            yield f"{kind}, ours minus theirs", in_points(Measure(*gain))
        if len(held_out) >= images_needed(RATE):
            yield f"{kind} {ONE_RULE}", self.shares()
        if flagged := self.stored["flagged"]:
            parts = [[flag for name, flag in flagged.items() if str(Path(name).parent) in self.groups]]
            parts += [[flag for name, flag in flagged.items() if name.startswith("normal/")]]
            yield f"{kind} found by each tool's own decision", "{:.1f} ({:.1f})".format(*(100 * mean(x) for x in parts))
        for rate in (0.01, RATE) if kind == "Defects" else ():
            level = normal[-1 - int(rate * len(normal))]
            found = 100 * (self.of(*self.groups) > level).mean()
            yield f"Defects found at {100 * rate:g} % of the normal images", f"{found:.1f}"

    def places(self) -> str:
        """AUPRO of its maps on the pixels of the original images."""
        maps, normal, defects = np.load(self.file.with_name(self.stored["pixel"])), [], []
        for name in maps:
            mask = self.suite / "masks" / Path(name).name
            places = resized(maps[name].astype(np.float32), Image.open(self.suite / name).size[::-1])
            if name.startswith("normal/"):
                normal.append(count_pixels(places))
            elif mask.exists():
                defects.append(count_pixels(places, np.asarray(Image.open(mask)) > 0))
        return in_points(pixel_measures(normal, defects, seed=0)[0])


def name_of(stem: str) -> str:
    """The name of a method, from that of its file."""
    package, _, method = stem.removeprefix("pytorch-").partition("-")
    words = f"{'pytorch-' if package == 'ood' else ''}{WORDS.get(package, package)}", WORDS.get(method, method.upper())
    return NAMES.get(stem) or " ".join(words)


def in_points(measure: Measure) -> str:
    return f"{100 * measure.value:.1f} [{100 * measure.low:.1f}, {100 * measure.high:.1f}]"


def read(suites: Path, scores: Path) -> tuple[Tables, dict[str, dict[str, object]]]:
    """All tables by their headings, and what else was stored of each run."""
    parts = "", ", ours minus theirs", f" {ONE_RULE}", " found by each tool's own decision"
    tables: Tables = {"Maps": {}, **{kind + part: {} for kind in ("Defects", "Corruptions") for part in parts}}
    runs, costs = dict[str, dict[str, object]](), dict[str, list[Scored]]()
    for suite, severity in [*((name, "") for name in SUITES), *((name, each) for name in CORRUPTED for each in "13")]:
        order = {name: number for number, name in enumerate(NAMES)}
        files = sorted((scores / suite).glob("*.json"), key=lambda file: (order.get(file.stem, len(order)), file.stem))
        methods = {file.stem: Scored(file, suites / suite, severity) for file in files}
        column = {**SUITES, **CORRUPTED}[suite] + (f", severity {severity}" if severity else "")
        for stem, each in methods.items():
            name = name_of(stem)
            for table, text in each.cells(methods.get("discopatch")):
                if stem not in LOGITS or table == "Defects":  # where these are near chance
                    tables.setdefault(table, {}).setdefault(name, {})[column] = text
            if each.stored["pixel"]:
                tables.setdefault("Maps", {}).setdefault(name, {})[column] = each.places()
            if not severity and stem not in LOGITS:
                costs.setdefault(name, []).append(each)
            kept = "version", "threads", "threshold", "notes", "suite_digest", "weights_digest", *COSTS
            runs.setdefault(suite, {})[name] = {key: each.stored.get(key) for key in kept}
    for name, all_runs in costs.items():
        for key, column in {**COSTS, "lines": "lines"}.items():
            values = [each.stored[key] for each in all_runs if each.stored.get(key) is not None]
            typical = median(values) if values else 0
            text = f"{typical:.{0 if typical >= 100 or typical == int(typical) else 1 if typical >= 1 else 3}f}"
            tables.setdefault("Cost", {}).setdefault(name, {})[column] = text if values else ""
    for name in (NAMES[each] for each in SHORT if NAMES[each] in tables["Defects"]):
        both = tables["Defects"][name] | tables["Corruptions"].get(name, {})
        row = {column: text.split(" [")[0] for column, text in both.items() if not column.endswith("3")}
        found = [text.split(" ")[0] for text in tables[f"Defects {ONE_RULE}"][name].values()]
        mean_found = f"{mean(map(float, found)):.1f}" if len(found) == len(SUITES) else ""
        first = {"seconds": tables["Cost"][name]["image, s"], "found, %": mean_found}
        tables.setdefault("Beside other packages", {})[name] = {**first, **row}
    sets = [*SUITES.values(), *CORRUPTED.values()]
    for rows in tables.values():  # all rows have all columns
        there = dict.fromkeys(column for row in rows.values() for column in row)
        columns = sorted(
            there, key=lambda each: max((at for at, set_ in enumerate(sets) if each.startswith(set_)), default=-1)
        )
        rows.update({name: {column: row.get(column, "") for column in columns} for name, row in rows.items()})
    return tables, runs


def plot(tables: Tables, path: Path) -> None:
    """The share of defects found against CPU seconds an image, of methods that were run on the same sets."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
    rows = tables[f"Defects {ONE_RULE}"]
    sets = [each for each in SUITES.values() if rows["discopatch"].get(each)]
    places = {
        name: (float(tables["Cost"][name]["image, s"]), mean(float(cells[each].split()[0]) for each in sets))
        for name, cells in rows.items()
        if tables["Cost"][name]["image, s"] and all(cells[each] for each in sets)
    }
    shapes = dict(zip(NAMES.values(), "o*sDPXv^<>dph", strict=False))
    for name, (x, y) in sorted(places.items(), key=lambda item: -item[1][1]):
        if name in shapes:
            colour = "#c0392b" if name.startswith("discopatch") else "#34495e"
            axes.scatter(x, y, s=70, color=colour, marker=shapes[name], label=name, zorder=3)
        else:
            axes.scatter(x, y, s=12, color="#95a5a6")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    axes.set_xscale("log")
    axes.set(xlim=(0.005, 2), ylim=(0, 100), xlabel="CPU seconds an image, one thread")
    axes.set_xticks(ticks := [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2], [f"{each:g}" for each in ticks])
    axes.grid(alpha=0.3)
    axes.set_ylabel("defects found at a promised 5 %, in %")
    axes.set_title(f"Mean of {', '.join(sets)}", fontsize=9)
    figure.savefig(path, dpi=150)


def write_page(page: Path, tables: Tables) -> None:
    """Replaces the first table below each heading."""
    text = page.read_text()
    for heading, rows in ((heading, rows) for heading, rows in tables.items() if rows):
        table = markdown_table(["", *next(iter(rows.values()))], [[name, *row.values()] for name, row in rows.items()])
        below = rf"(^#+ {re.escape(heading)}\n(?:(?![#|]).*\n)*)(?:\|.*\n)+"
        text = re.sub(below, lambda found, table=table: f"{found[1]}{table}\n", text, count=1, flags=re.MULTILINE)  # type: ignore[misc]
    page.write_text(text)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--docs", type=Path, required=True)
    options = parser.parse_args()
    tables, runs = read(options.suites, options.scores)
    content = json.dumps({"tables": tables, "runs": runs}, indent=1)
    (options.docs / "results" / "peers.json").write_text(f"{content}\n")
    plot(tables, options.docs / "images" / "peers.png")
    for page in (options.docs / "peers.md", options.docs.parent / "README.md"):
        write_page(page, tables)


if __name__ == "__main__":
    main()
