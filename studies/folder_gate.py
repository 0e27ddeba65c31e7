"""How often `score --fail-on folder` fails: folders of normal images, and folders in which some or all are off.

python studies/folder_gate.py                # docs/results/folder-gate.json, docs/images/folder-gate.png and the tables
python studies/folder_gate.py --no-real      # without the scores of a real detector, which take a minute

Scores are drawn from a normal distribution; the test sees their order alone, so that any other gives the same shares
of normal folders. Each folder comes with calibration scores of its own. The real scores are those of a detector fitted
on crops of a sample photo, for other crops of it, some with noise; calibration images and folders are drawn from them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from discopatch.bench.plots.style import TWO_COLUMNS, colour, new_figure, percent_axis, plot_style, save_figure
from discopatch.bench.tables.writers import markdown_table
from discopatch.calibration import alarms_allowed, p_values
from discopatch.gate import FAIL_RATE, FolderCounts, tail_probabilities
from discopatch.utils import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Scores]

CALIBRATED = (9, 19, 99, 199, 999)
FOLDERS = (1, 10, 100, 1000)
RATES = {9: 0.1, 19: 0.05}  # of false alarms; 1 % where there are enough images for it
TESTS = ("folder", "flagged alone", "Benjamini-Hochberg", "any")
DRAWN = 199  # calibration images of the figure
FOLDERS_OF_ONE = 50  # that one detector gets


def shifted(by: float, *, one_in: int = 1) -> Draw:
    """Scores of which all, or one in so many, are that many standard deviations higher."""
    return lambda rng, images: rng.normal(size=images) + by * (np.arange(images) % one_in == 0)


KINDS: Mapping[str, Draw] = {
    "normal": shifted(0),
    "one in ten far off": shifted(30, one_in=10),
    "one in ten 3 sd off": shifted(3, one_in=10),
    "all 0.5 sd off": shifted(0.5),
    "all 1 sd off": shifted(1),
    "a single one far off": shifted(30, one_in=10**9),
}


def main(
    out: Path = Path("docs/results/folder-gate.json"),
    figure: Annotated[Path, typer.Option(help="The figure, without its ending.")] = Path("docs/images/folder-gate"),
    folders: Annotated[
        int, typer.Option(help="Simulated folders of each kind; of normal ones ten times.", min=1)
    ] = 1000,
    real: Annotated[bool, typer.Option("--real/--no-real", help="Whether to score real images too.")] = True,
    seed: int = 0,
) -> None:
    """Simulates, writes the shares of folders that fail as JSON and as a figure, and prints tables."""
    results: dict[str, Any] = {"fail_rate": FAIL_RATE, "folders": folders, "seed": seed}
    if real:
        results["real"] = real_shares(folders, seed)
    results["shares"] = list(simulate(folders, seed))
    results["detectors"] = list(single_detectors(folders, seed))
    write_json(out, results)
    save_figure(power_figure(results["shares"]), figure, ["png"])
    for name, table in tables(results).items():
        print(f"\n{name}\n\n{table}")


def failing(calibration: Scores, scores: Scores, rate: float) -> dict[str, bool]:
    """Which tests a folder with these scores fails."""
    n, images = len(calibration), len(scores)
    alarms = alarms_allowed(n, rate)
    p = p_values(scores, calibration)
    ranks = np.bincount(np.rint(p * (n + 1)).astype(int) - 1, minlength=n + 1)
    found, allowed = FolderCounts(ranks, alarms), FAIL_RATE * (1 + 1e-9)
    flagged = int(ranks[:alarms].sum())
    return {
        "folder": found.p_value <= allowed,
        "flagged alone": bool(tail_probabilities(images, alarms, n)[flagged] <= allowed),
        "Benjamini-Hochberg": bool((np.sort(p) <= allowed * np.arange(1, images + 1) / images).any()),
        "any": flagged > 0,
    }


def share_failing(outcomes: Sequence[Mapping[str, bool]]) -> dict[str, float]:
    return {test: float(np.mean([each[test] for each in outcomes])) for test in TESTS}


def simulate(folders: int, seed: int) -> Iterator[dict[str, Any]]:
    """The share of folders of each kind that fail, by calibration images and size."""
    for n in CALIBRATED:
        for images in FOLDERS:
            for kind, draw in KINDS.items():
                rng = np.random.default_rng([seed, n, images])
                count = folders * (10 if kind == "normal" else 1)
                outcomes = [failing(rng.normal(size=n), draw(rng, images), RATES.get(n, 0.01)) for _ in range(count)]
                yield {"n": n, "images": images, "kind": kind, **share_failing(outcomes)}


def single_detectors(detectors: int, seed: int) -> Iterator[dict[str, Any]]:
    """How the share of normal folders that fail differs between detectors, each with its own calibration images."""
    for n in CALIBRATED:
        for images in FOLDERS[1:]:
            rng = np.random.default_rng([seed, n, images, detectors])
            shares = []
            for _ in range(detectors):
                calibration = rng.normal(size=n)
                outcomes = [
                    failing(calibration, rng.normal(size=images), RATES.get(n, 0.01))["folder"]
                    for _ in range(FOLDERS_OF_ONE)
                ]
                shares.append(float(np.mean(outcomes)))
            above = float(np.mean(np.array(shares) > 0.05))
            yield {"n": n, "images": images, "mean": float(np.mean(shares)), "above 5 %": above}


def real_shares(folders: int, seed: int) -> list[dict[str, Any]]:
    """The same with 99 calibration images and folders of 100, drawn from the scores of real images."""
    from discopatch import Detector
    from discopatch.corruptions import corrupt
    from discopatch.images import NamedImage
    from discopatch.images.samples import crops, sample_photos
    from discopatch.pretrained import SMALL_WEIGHTS

    squares = crops(sample_photos(["temple"]), 800, size=256, seed=seed)
    detector = Detector(SMALL_WEIGHTS, false_alarm_rate=0.1, seed=seed).fit(squares[:100])
    noisy = [
        NamedImage(each.name, corrupt(each.pixels, "gaussian_noise", 1, seed=place))
        for place, each in enumerate(squares[-100:])
    ]
    normal, off = detector.score(squares[100:]), detector.score(noisy)
    found = []
    for kind, share in {"normal": 0.0, "one in ten noisy": 0.1, "all noisy": 1.0}.items():
        rng, outcomes = np.random.default_rng([seed, 1]), []
        for _ in range(folders):
            drawn = rng.permutation(normal)[:199]
            count = round(100 * share)
            scores = np.concatenate([drawn[99 : 199 - count], rng.choice(off, count, replace=False)])
            outcomes.append(failing(drawn[:99], scores, 0.01))
        found.append({"n": 99, "images": 100, "kind": kind, **share_failing(outcomes)})
    return found


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Markdown tables by title."""
    shares = results["shares"]
    titles = {"folder": "--fail-on folder", "any": "--fail-on any"}
    found = {}
    for kind in KINDS:
        for test, title in titles.items():
            rows = [
                [str(n)] + [percent(pick(shares, n=n, images=images, kind=kind)[test]) for images in FOLDERS]
                for n in CALIBRATED
            ]
            found[f"{kind}, {title}"] = markdown_table(
                ["calibration images", *(f"folders of {each:,}" for each in FOLDERS)], rows
            )
    rows = [[kind, *(percent(pick(shares, n=DRAWN, images=100, kind=kind)[test]) for test in TESTS)] for kind in KINDS]
    found[f"{DRAWN} calibration images, folders of 100"] = markdown_table(["folders", *TESTS], rows)
    rows = [
        [str(each["n"]), f"{each['images']:,}", percent(each["mean"]), percent(each["above 5 %"])]
        for each in results["detectors"]
    ]
    headings = ["calibration images", "images a folder", "normal folders that fail", "detectors with over 5 %"]
    found["one detector, many folders"] = markdown_table(headings, rows)
    if "real" in results:
        rows = [[each["kind"], *(percent(each[test]) for test in TESTS)] for each in results["real"]]
        found["real scores, 99 calibration images, folders of 100"] = markdown_table(["folders", *TESTS], rows)
    return found


def pick(shares: Sequence[Mapping[str, Any]], **wanted: Any) -> Mapping[str, Any]:
    return next(each for each in shares if wanted.items() <= each.items())


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@plot_style()
def power_figure(shares: Sequence[Mapping[str, Any]]) -> "Figure":
    """A panel for each kind of folder: the share that fails by the number of images, a line for each test."""
    kinds = [kind for kind in KINDS if kind != "one in ten far off"]
    figure, (axes,) = new_figure(TWO_COLUMNS, 2.4, columns=len(kinds), sharey=True)
    for axis, kind in zip(axes, kinds, strict=True):
        for place, test in enumerate(TESTS):
            values = [pick(shares, n=DRAWN, images=images, kind=kind)[test] for images in FOLDERS]
            axis.plot(FOLDERS, values, marker="o", markersize=3, color=colour(place), label=test)
        axis.set_xscale("log")
        axis.set_xticks(FOLDERS, [str(each) for each in FOLDERS])
        axis.minorticks_off()
        axis.set_title(kind, fontsize=8)
        axis.set_xlabel("images a folder")
        percent_axis(axis)
    axes[0].set_ylabel(f"folders that fail (%), {DRAWN} calibration images")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(TESTS), frameon=False)
    return figure


if __name__ == "__main__":
    typer.run(main)
