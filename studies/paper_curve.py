"""How far the paper's recipe comes with its steps: a table and a figure of docs/results.md.

discopatch train PHOTOS --preset paper --keep-every 200 --out RUN
python studies/paper_curve.py run RUN --data ROOT --out FOLDER       # continues where it was stopped
python studies/paper_curve.py page docs/results/paper-curve.json     # the table and docs/images/paper-curve.png

The extrapolation is drawn twice, since few points cannot tell which curve they lie on: a straight line over the
logarithm of the steps, which never ends, and a power law that comes to rest. Both are fitted to the last points alone.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from common import interval_text
from discopatch.bench.labels import group_label
from discopatch.bench.methods import choose_methods
from discopatch.bench.pool import CorruptionPool
from discopatch.bench.runner import run_bench
from discopatch.bench.suites import get_suite
from discopatch.bench.tables.writers import markdown_table
from discopatch.model import Weights
from discopatch.training.checkpoint import RunFolder
from discopatch.utils import write_json
from slips import FewSets

STEPS = (1000, 1600, 2000, 4000, 8000, 16000)  # 1,600 is a fifth of 8,000: what the epochs of the authors' code see
PAPERS_STEPS = 573_657  # 30 epochs of ImageNet
METHODS = {
    "discopatch-64/sigmoid": "the paper's score, 64 patches",
    "discopatch-64/logit": "mean logit, 64 patches",
    "discopatch/statistics": "statistics head, dense",
    "discopatch/combined": "combined head, dense",
}
GROUPS = ("near", "far", "covariate")
FITTED = 4  # points that an extrapolation is fitted to, at most
FEWEST = 3  # with fewer, there is none

app = typer.Typer(no_args_is_help=True, help=__doc__, add_completion=False)


@app.command()
def run(
    training: Annotated[Path, typer.Argument(help="The folder of a run with kept discriminators.")],
    data: Annotated[Path, typer.Option(help="The root of the suite natural.")],
    out: Annotated[Path, typer.Option(help="Where paper-curve.json and a folder for each step go.")],
    steps: Annotated[list[int] | None, typer.Option("--step", help="Steps. Default: those that are kept.")] = None,
    test: Annotated[int | None, typer.Option(help="Test photos. Default: all.")] = None,
    keep_images: Annotated[Path | None, typer.Option(help="A folder to keep prepared images in.")] = None,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    tf32: Annotated[bool, typer.Option(help="Whether a GPU may round products to TF32.")] = True,
    workers: Annotated[int, typer.Option(help="Processes that prepare images.")] = os.cpu_count() or 1,
) -> None:
    """Measures the discriminators of these steps, corruptions at severity 3, preprocessing matched."""
    folder = RunFolder(training)
    paths = {step: folder.kept(step) for step in steps or STEPS if folder.kept(step).exists()}
    if not paths:
        raise typer.BadParameter(f"{training} keeps no discriminator of these steps: train with --keep-every")
    suite, methods = get_suite("natural", data=data), choose_methods([*METHODS])
    curve: dict[str, Any] = {}
    with CorruptionPool(workers) as pool:
        for step, path in paths.items():
            weights = Weights.load(path)
            plan = FewSets(suite, weights.transform, ("matched",), fit=600, test=test, severities=(3,))
            tell = partial(print, f"step {step:,}:", flush=True)
            results = run_bench(
                plan,
                methods,
                out / f"step-{step}",
                weights,
                pool,
                keep_images=keep_images,
                device=device,
                tf32=tf32,
                progress=tell,
            )
            means = results["protocols"]["matched"]["means"]
            figures = {group: {name: means[group][name]["auroc"] for name in METHODS} for group in GROUPS}
            curve[str(step)] = {"weights digest": weights.digest, "auroc": figures}
    made = {key: results["made"][key] for key in ("discopatch", "torch", "device", "tf32", "transform digest")}
    config = folder.read()["config"]
    write_json(out / "paper-curve.json", {"made": made, "sizes": results["sizes"], "config": config, "steps": curve})
    print(curve_table(curve))


@app.command()
def page(
    results: Annotated[Path, typer.Argument(help="paper-curve.json.")],
    figure: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("docs/images/paper-curve.png"),
) -> None:
    """Prints the table and draws the figure."""
    from discopatch.bench.plots.style import save_figure

    curve = json.loads(results.read_text(encoding="utf-8"))["steps"]
    print(curve_table(curve))
    save_figure(draw(curve), figure.with_suffix(""), ["png"])


def curve_table(curve: Mapping[str, Any]) -> str:
    """A row for each score and group: AUROC at each step, and what the two extrapolations say."""
    rows = []
    for method, label in METHODS.items():
        for group in GROUPS:
            found = [interval_text(each, scale=100, digits=1) for each in points(curve, method, group)]
            ends = []
            if len(curve) >= FEWEST:
                ends = [f"{100 * value:.0f}" for value in extrapolated(curve, method, group, [PAPERS_STEPS])[:, 0]]
            rows.append([label, group_label(group), *found, " to ".join(sorted(ends, key=float))])
    headings = ["score", "sets", *(f"{int(step):,}" for step in curve), f"{PAPERS_STEPS:,}, extrapolated"]
    return markdown_table(headings, rows)


def points(curve: Mapping[str, Any], method: str, group: str) -> list[Sequence[float]]:
    return [each["auroc"][group][method] for each in curve.values()]


def extrapolated(curve: Mapping[str, Any], method: str, group: str, steps: Sequence[float]) -> NDArray[np.float64]:
    """(2, steps): AUROC by a straight line over log steps, and by a power law that comes to rest."""
    known = np.log2([int(step) for step in curve])[-FITTED:]
    values = np.array([each[0] for each in points(curve, method, group)])[-FITTED:]
    wanted = np.log2(steps)
    line = np.polyval(np.polyfit(known, values, 1), wanted)
    both: NDArray[np.float64] = np.clip([line, at_rest(known, values, wanted)], 0, 1)
    return both


def at_rest(
    known: NDArray[np.float64], values: NDArray[np.float64], wanted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """limit + span x 2 ** (-rate x log2 steps), of many rates the one that fits best."""
    best: tuple[float, NDArray[np.float64]] = (np.inf, np.full_like(wanted, np.nan))
    for rate in np.geomspace(0.05, 3, 60):
        shape = np.stack([np.ones_like(known), 2.0 ** (-rate * (known - known[0]))], 1)
        solution, *_ = np.linalg.lstsq(shape, values, rcond=None)
        error = float(np.square(shape @ solution - values).sum())
        if error < best[0]:
            best = error, solution[0] + solution[1] * 2.0 ** (-rate * (wanted - known[0]))
    return best[1]


def draw(curve: Mapping[str, Any]) -> Any:
    """A panel for each group; dotted and dashed are the extrapolations of the paper's score."""
    from discopatch.bench.plots.style import COLOURS, TWO_COLUMNS, new_figure, percent_axis, plot_style, shared_legend

    with plot_style():
        figure, (axes,) = new_figure(TWO_COLUMNS, 2.8, columns=len(GROUPS), sharey=True)
        steps = [int(step) for step in curve]
        ahead = np.geomspace(steps[-1], PAPERS_STEPS, 40)
        for axis, group in zip(axes, GROUPS, strict=True):
            for colour, (method, label) in zip(COLOURS, METHODS.items(), strict=False):
                middle, low, high = np.array(points(curve, method, group)).T
                axis.plot(steps, middle, "o-", color=colour, markersize=3, label=label)
                axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
                if method == next(iter(METHODS)) and len(curve) >= FEWEST:
                    for style, line in zip((":", "--"), extrapolated(curve, method, group, [*ahead]), strict=True):
                        axis.plot(ahead, line, style, color=colour, linewidth=1)
            axis.set_xscale("log")
            axis.axvline(PAPERS_STEPS, color="#bbbbbb", linewidth=0.8)
            axis.set_title(group_label(group))
            axis.set_xlabel("steps of 3,216 patches")
            percent_axis(axis)
        axes[0].set_ylabel("AUROC (%)")
        shared_legend(figure, axes, columns=len(METHODS))
    return figure


if __name__ == "__main__":
    app()
