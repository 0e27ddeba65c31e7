"""Plots of benchmark results for print, as PNG and PDF, in colours that the colour-blind can tell apart."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from discopatch.bench.tables import MEAN, Results, method_label, set_label, split_method
from discopatch.utils import require, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.0  # inches, of two columns
BLUE, VERMILION, GREY, LIGHT_GREY = "#0072B2", "#D55E00", "#7f7f7f", "#cfcfcf"
CHANCE = 0.5  # AUROC of a guess
# So that the files of two runs are the same.
METADATA: dict[str, Any] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}
STYLE: Any = {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 200,
}


def write_plots(folder: Path, results: Results) -> None:
    """Writes each plot as PNG and PDF into the folder."""
    require("matplotlib", "bench")
    import matplotlib

    with matplotlib.rc_context(STYLE):
        methods, protocols = main_methods(results), results["protocols"]
        figures = {
            f"corruptions-{name}": corruption_plot(each["corruptions"], methods) for name, each in protocols.items()
        }
        if len(protocols) > 1:
            figures["protocols"] = protocol_plot(protocols["matched"], protocols["paper"], methods[:3])
        for name, figure in figures.items():
            for kind, metadata in METADATA.items():
                write = partial(figure.savefig, format=kind, metadata=metadata)
                write_atomically(folder / f"{name}.{kind}", write)


def main_methods(results: Results, count: int = 4) -> list[str]:
    """The methods of a plot: the reference, then the best of each other encoder, the best of these first."""
    found = next(iter(results["protocols"].values()))

    def overall(name: str) -> float:
        return float(np.mean([methods[name]["auroc"][0] for methods in found["means"].values()]))

    best = {split_method(found["reference"])[0]: found["reference"]}
    for name in sorted(results["methods"], key=overall, reverse=True):
        best.setdefault(split_method(name)[0], name)
    return [*best.values()][:count]


def new_figure(height: float, columns: int, **options: Any) -> tuple["Figure", Sequence["Axes"]]:
    """An empty figure and its axes; without pyplot, which keeps every figure alive."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    return figure, axes


def title(method: str) -> str:
    """The label of a method in lines that fit above a panel."""
    return fill(method_label(method), 34)


def corruption_plot(corruptions: Results, methods: Sequence[str]) -> "Figure":
    """AUROC of every corruption at every severity as a heatmap, methods side by side; last row and column are means."""
    names, severities = [*corruptions], sorted({level for each in corruptions.values() for level in each})
    figure, axes = new_figure(1.1 + 0.165 * len(names), len(methods), sharey=True)
    for axis, method in zip(axes, methods, strict=True):
        cells = np.array(
            [
                [each[level][method]["auroc"][0] if level in each else np.nan for level in severities]
                for each in corruptions.values()
            ]
        )
        cells = np.column_stack([cells, np.nanmean(cells, axis=1)])
        cells = np.vstack([cells, np.nanmean(cells, axis=0)])
        image = axis.imshow(cells, cmap="cividis", vmin=CHANCE, vmax=1.0, aspect="auto")
        for (row, column), cell in np.ndenumerate(cells):
            ink = "white" if cell < 0.75 else "black"
            axis.text(column, row, f"{100 * cell:.0f}", ha="center", va="center", fontsize=6, color=ink)
        axis.set_xticks(range(cells.shape[1]), [*severities, MEAN])
        axis.set(title=title(method), xlabel="severity")
        axis.tick_params(length=0)
    axes[0].set_yticks(range(len(names) + 1), [*map(set_label, names), MEAN])
    bar = figure.colorbar(image, ax=[*axes], location="bottom", shrink=0.5, aspect=40, pad=0.02, extend="min")
    bar.set_label("AUROC")
    return figure


def protocol_plot(matched: Results, paper: Results, methods: Sequence[str]) -> "Figure":
    """Effect of the preprocessing: for each set both protocols and the paper's control, a panel for each method."""
    sets = [name for name, each in paper["sets"].items() if each["group"] != "control"]
    places = range(len(sets) + 1)  # the last is the mean over corrupted images
    figure, axes = new_figure(0.95 + 0.21 * len(places), len(methods), sharex=True, sharey=True)
    dot: Any = {"linestyle": "", "marker": "o", "markersize": 4.5}
    for axis, method in zip(axes, methods, strict=True):
        ours, theirs = (
            [found["sets"][name]["methods"][method]["auroc"][0] for name in sets]
            + [found["means"]["covariate"][method]["auroc"][0]]
            for found in (matched, paper)
        )
        control = [paper["sets"][name]["methods"][method]["control"][0] for name in sets]
        shift = np.array([*control, paper["control"][method][0]]) - CHANCE
        label = "control: normal images with the paper protocol's preprocessing"
        axis.axvline(CHANCE, color=GREY, linewidth=0.8, zorder=1)
        axis.barh(places, shift, left=CHANCE, height=0.62, color=LIGHT_GREY, zorder=0.5, label=label)
        axis.hlines(places, ours, theirs, color=GREY, linewidth=0.9)
        axis.plot(theirs, places, color=VERMILION, markerfacecolor="white", label="paper protocol", **dot)
        axis.plot(ours, places, color=BLUE, label="matched protocol", **dot)
        axis.grid(axis="x")
        axis.xaxis.set_major_formatter(lambda share, _: f"{round(100 * share, 6):g}")
        axis.set(title=title(method), xlabel="AUROC (%)")
    axes[0].set_yticks(places, [*map(set_label, sets), "Corrupted (mean)"])
    axes[0].set_ylim(len(places) - 0.4, -0.6)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
