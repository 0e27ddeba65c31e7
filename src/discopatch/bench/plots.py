"""Plots of benchmark results for print, as PNG and PDF, in colours that the colour-blind can tell apart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.labels import (
    encoder_label,
    group_label,
    is_ours,
    patch_count,
    score_label,
    set_label,
    short_label,
    split_method,
)
from discopatch.bench.store import ScoreStore
from discopatch.bench.tables import (
    MEAN,
    Results,
    by_method,
    corruption_figures,
    group_names,
    method_names,
    protocol_names,
    results_frame,
    set_groups,
)
from discopatch.metrics import auroc
from discopatch.utils import require, write_atomically

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

TWO_COLUMNS = 7.0  # inches
GREY = "#7f7f7f"

# Okabe and Ito, 2008, without the yellow, which is too faint on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))

CHANCE = 0.5  # AUROC of a guess

# Metadata that would differ between runs is left out.
_KINDS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}

_SETTINGS: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text
    "figure.dpi": 200,
    "savefig.dpi": 200,
}

NORMAL = "test"  # the set of normal images
BINS = 40
TAIL = 0.5  # percent at each end that share the outermost bins
FURTHEST = 5.0  # beyond the middle 90 % of the normal images, in its width, from where scores share the last bin
GRID = np.linspace(0, 1, 501)  # shares of normal images flagged, on which ROC curves are averaged
PAPER, MATCHED, CONTROL = COLOURS[1], COLOURS[0], "#cfcfcf"
LARGEST, SMALLEST = 70.0, 9.0  # areas of circles, in square points


@contextmanager
def plot_style() -> Iterator[None]:
    """A context, or a decorator, in which everything is drawn in this style."""
    require("matplotlib", "bench")
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple["Figure", Sequence[Sequence["Axes"]]]:
    """An empty figure of that many inches, and its axes row by row; without pyplot, which keeps every figure alive."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def save_figure(figure: "Figure", path: Path) -> list[Path]:
    """Writes `path`.png and `path`.pdf; the same figure gives the same bytes."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in _KINDS]
    with plot_style():
        for place, (kind, metadata) in zip(paths, _KINDS.items(), strict=True):
            write_atomically(place, partial(figure.savefig, format=kind, metadata=metadata))
    return paths


def colour(place: int) -> str:
    """One of COLOURS, which begin again after the last."""
    return COLOURS[place % len(COLOURS)]


def shared_legend(figure: "Figure", axes: Iterable["Axes"], *, columns: int, **options: Any) -> None:
    """A legend below all panels, with everything that has a label once."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend([*found.values()], [*found], loc="outside lower center", ncols=columns, **options)


def percent_axis(axis: "Axes", *, x: bool = False) -> None:
    """Shows shares times 100, as the tables do, on the y axis or the x axis."""
    from matplotlib.ticker import FuncFormatter

    formatter = FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}")
    (axis.xaxis if x else axis.yaxis).set_major_formatter(formatter)


def write_plots(folder: Path, results: Results, scores: ScoreStore) -> list[Path]:
    """Writes each plot as PNG and PDF into the folder, and returns the paths."""
    return [path for name, figure in _plots(results, scores) for path in save_figure(figure, folder / name)]


def _plots(results: Results, scores: ScoreStore) -> Iterator[tuple[str, "Figure"]]:
    frame, chosen = results_frame(results), main_methods(results)
    protocols = protocol_names(frame)
    if len(protocols) > 1:
        yield "protocols", protocol_plot(frame, chosen[:3])
    for protocol in protocols:
        yield f"latency-{protocol}", latency_plot(frame, protocol)
        yield f"roc-{protocol}", roc_plot(frame, scores, protocol, chosen)
        yield f"histograms-{protocol}", histogram_plot(frame, scores, protocol, chosen[:3])
        yield f"corruptions-{protocol}", corruption_plot(frame, protocol, chosen)


def main_methods(results: Results, count: int = 4) -> list[str]:
    """The methods of a plot: the reference, the paper's score, then the best of each network."""
    frame = results_frame(results)
    names, protocol = method_names(frame), protocol_names(frame)[0]
    papers = [name for name in names if split_method(name)[1] == "logit" and patch_count(name)]
    papers.sort(key=lambda name: (patch_count(name) == 64, patch_count(name)))  # 64 patches, or else the most there are
    chosen = [name for name in (results["protocols"][protocol].get("reference"), *papers[-1:]) if name in names]
    means = frame[(frame["protocol"] == protocol) & (frame["set"] == MEAN) & (frame["metric"] == "auroc")]
    overall = means.groupby("method")["value"].mean().reindex(names).fillna(0.0)
    others = sorted((name for name in names if not is_ours(name)), key=lambda name: -overall[name])
    best = {split_method(name)[0]: name for name in reversed(others)}
    others.sort(key=lambda name: name not in best.values())
    return [*dict.fromkeys([*chosen, *others, *filter(is_ours, names)])][:count]


@plot_style()
def corruption_plot(frame: "pd.DataFrame", protocol: str, methods: Sequence[str]) -> "Figure":
    """AUROC of every corruption at every severity as a heatmap, methods side by side; last row and column are means."""
    own = corruption_figures(frame, protocol)
    names = [*own["corruption"].unique()]
    figure, (axes,) = new_figure(TWO_COLUMNS, 1.1 + 0.165 * len(names), columns=len(methods), sharey=True)
    for axis, method in zip(axes, methods, strict=True):
        cells = own[own["method"] == method].pivot(index="corruption", columns="severity", values="value").loc[names]
        cells[MEAN] = cells.mean(axis=1)
        cells.loc[MEAN] = cells.mean(axis=0)
        image = axis.imshow(cells, cmap="cividis", vmin=CHANCE, vmax=1.0, aspect="auto")
        for (row, column), cell in np.ndenumerate(cells.to_numpy()):
            ink = "white" if cell < 0.75 else "black"
            axis.text(column, row, f"{100 * cell:.0f}", ha="center", va="center", fontsize=6, color=ink)
        axis.set_xticks(range(cells.shape[1]), [*cells.columns])
        axis.set_title(short_label(method).replace(" (", "\n("), fontsize=7.5)
        axis.set_xlabel("severity")
        axis.tick_params(length=0)
    axes[0].set_yticks(range(len(names) + 1), [*map(set_label, names), MEAN])
    bar = figure.colorbar(image, ax=[*axes], location="bottom", shrink=0.5, aspect=40, pad=0.02, extend="min")
    bar.set_label("AUROC")
    return figure


@plot_style()
def protocol_plot(frame: "pd.DataFrame", methods: Sequence[str]) -> "Figure":
    """Effect of the preprocessing: for each set both protocols and the paper's control, a panel for each method."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sets = [(name, name, group, set_label(name)) for name, group in set_groups(frame, "near", "far").items()]
    if "covariate" in group_names(frame):
        sets.append((MEAN, f"{MEAN}/0", "covariate", "Corrupted (mean)"))
    places = range(len(sets))
    height = 0.95 + 0.21 * max(1, len(sets))
    figure, (axes,) = new_figure(TWO_COLUMNS, height, columns=len(methods), sharex=True, sharey=True)
    values = by_method(frame)["value"]
    dot: Any = {"linestyle": "", "marker": "o", "markersize": 4.5}
    for axis, method in zip(axes, methods, strict=True):
        matched, paper, control = (
            values.loc[method].reindex([(protocol, each[place], each[2], metric) for each in sets]).to_numpy()
            for protocol, place, metric in (("matched", 0, "auroc"), ("paper", 0, "auroc"), ("paper", 1, "control"))
        )
        axis.axvline(CHANCE, color=GREY, linewidth=0.8, zorder=1)
        axis.barh(places, control - CHANCE, left=CHANCE, height=0.62, color=CONTROL, zorder=0.5)
        axis.hlines(places, matched, paper, color=GREY, linewidth=0.9)
        axis.plot(paper, places, color=PAPER, markerfacecolor="white", markeredgewidth=1.2, **dot)
        axis.plot(matched, places, color=MATCHED, **dot)
        axis.grid(axis="x")
        percent_axis(axis, x=True)
        axis.set_title(short_label(method), fontsize=7.5)
        axis.set_xlabel("AUROC (%)")
    axes[0].set_yticks(places, [label for *_, label in sets])
    axes[0].set_ylim(len(sets) - 0.4, -0.6)
    handles = [
        Line2D([], [], color=PAPER, markerfacecolor="white", markeredgewidth=1.2, label="paper protocol", **dot),
        Line2D([], [], color=MATCHED, label="matched protocol", **dot),
        Patch(facecolor=CONTROL, label="control: normal images with the paper protocol's preprocessing"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


@plot_style()
def latency_plot(frame: "pd.DataFrame", protocol: str) -> "Figure":
    """AUROC against latency, a panel for each group and a circle for each method.

    The area of a circle is the number of parameters. The best method of each network has a label.
    """
    groups, values = group_names(frame), by_method(frame)["value"]
    milliseconds, parameters = (
        values.get(("", "", "cost", metric), default=np.nan * values.iloc[:, 0])
        for metric in ("milliseconds", "parameters")
    )
    encoders = [*dict.fromkeys(split_method(name)[0] for name in values.index)]
    figure, (axes,) = new_figure(TWO_COLUMNS, 3.4, columns=max(1, len(groups)))
    for axis, group in zip(axes, groups, strict=False):
        auroc_of = values[protocol, MEAN, group, "auroc"]
        for place, encoder in enumerate(encoders):
            own = [name for name in values.index if split_method(name)[0] == encoder]
            size = parameters.fillna(1)
            area = np.maximum(SMALLEST, LARGEST * size[own] / size.max())
            axis.scatter(
                milliseconds[own], auroc_of[own], s=area, color=colour(place), alpha=0.6, label=encoder_label(encoder)
            )
            best = auroc_of[own].idxmax()
            axis.annotate(
                score_label(split_method(best)[1]),
                (milliseconds[best], auroc_of[best]),
                (0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=6.5,
                color=colour(place),
            )
        axis.set_xscale("log")
        axis.margins(x=0.2, y=0.1)
        axis.grid()
        percent_axis(axis)
        axis.set_title(group_label(group))
        axis.set_xlabel("latency (ms per image)")
    axes[0].set_ylabel("AUROC (%)")
    shared_legend(figure, axes, columns=4)
    return figure


def first_seed_scores(sets: Iterable[Mapping[str, Array]], method: str) -> list[Array]:
    """The scores of a method with the first seed on each of the sets on which it was scored."""
    return [scores[f"0:{method}"] for scores in sets if f"0:{method}" in scores]


@plot_style()
def histogram_plot(frame: "pd.DataFrame", scores: ScoreStore, protocol: str, methods: Sequence[str]) -> "Figure":
    """A column for each method and a row for each set, normal images in grey behind; a column shares its bins."""
    rows = {label: [scores.read(protocol, name) for name in names] for label, names in _rows(frame, protocol).items()}
    normal = scores.read(protocol, NORMAL)
    figure, axes = new_figure(TWO_COLUMNS, 0.5 + 0.5 * len(rows), rows=len(rows), columns=len(methods))
    for column, method in enumerate(methods):
        (clean,) = first_seed_scores([normal], method)
        shown = {label: np.concatenate(first_seed_scores(sets, method)) for label, sets in rows.items()}
        edges = bin_edges([clean, *shown.values()])
        for axis, (label, other) in zip([line[column] for line in axes], shown.items(), strict=True):
            _draw_histograms(axis, clean, other, edges)
            if column == 0:
                axis.set_ylabel(label, rotation=0, ha="right", va="center")
        axes[0][column].set_title(short_label(method), fontsize=7.5)
        axes[-1][column].set_xlabel("score")
    shared_legend(figure, axes[0][:1], columns=2)
    return figure


def _rows(frame: "pd.DataFrame", protocol: str) -> dict[str, list[str]]:
    """The sets of each row: other images one by one, corrupted ones together at the mildest, middle, worst severity."""
    rows = {set_label(name): [name] for name in set_groups(frame, "near", "far")}
    corrupted = [*set_groups(frame[frame["protocol"] == protocol], "covariate")]
    levels = sorted({name.rpartition("/")[2] for name in corrupted}, key=int)
    for severity in dict.fromkeys(levels[place] for place in (0, len(levels) // 2, -1)):
        rows[f"Corrupted, severity {severity}"] = [name for name in corrupted if name.endswith(f"/{severity}")]
    return rows


def bin_edges(found: Sequence[Array]) -> Array:
    """Edges around the normal images, which come first, and the others that are not too far from them."""
    ranges = np.array([np.percentile(scores, [TAIL, 100 - TAIL]) for scores in found])
    left, right = np.percentile(found[0], [5, 95])
    reach = FURTHEST * (right - left) or 1.0
    low, high = max(ranges[:, 0].min(), left - reach), min(ranges[:, 1].max(), right + reach)
    return np.linspace(low, high if high > low else low + 1, BINS + 1)


def _draw_histograms(axis: "Axes", clean: Array, other: Array, edges: Array) -> None:
    axis.stairs(shares(clean, edges), edges, color="#bdbdbd", fill=True, label="normal images")
    axis.stairs(shares(other, edges), edges, color=COLOURS[1], linewidth=1.0, label="images of the row")
    text = f"AUROC {100 * auroc(clean, other):.1f}"
    axis.text(0.985, 0.93, text, transform=axis.transAxes, ha="right", va="top", fontsize=6.5)
    axis.set_yticks([])
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(0, 1.6 * axis.get_ylim()[1])  # room for the text in the corner


def shares(scores: Array, edges: Array) -> Array:
    """The share of the images in each bin; those beyond the ends are counted in the last."""
    return np.asarray(np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / len(scores))


@plot_style()
def roc_plot(frame: "pd.DataFrame", scores: ScoreStore, protocol: str, methods: Sequence[str]) -> "Figure":
    """A panel for each group and a line for each method: the area below it is the group's mean AUROC."""
    groups, normal = group_names(frame), scores.read(protocol, NORMAL)
    figure, (axes,) = new_figure(TWO_COLUMNS, 3.05, columns=max(1, len(groups)), sharey=True)
    for axis, group in zip(axes, groups, strict=False):
        sets = [scores.read(protocol, name) for name in set_groups(frame, group)]
        for place, method in enumerate(methods):
            (clean,), others = first_seed_scores([normal], method), first_seed_scores(sets, method)
            style, label = LINES[place % len(LINES)], short_label(method)
            axis.plot(GRID, mean_roc(clean, others), color=colour(place), linestyle=style, label=label)
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.6, linestyle=":", label="_chance")
        axis.axhline(0.95, color=GREY, linewidth=0.8, label="95 % flagged, where FPR95 is read")
        axis.set_title(group_label(group))
        axis.set_xlabel("normal images flagged (%)")
        axis.set(xlim=(0, 1), ylim=(0, 1.005), box_aspect=1)
        axis.grid()
        percent_axis(axis)
        percent_axis(axis, x=True)
    axes[0].set_ylabel("out-of-distribution images flagged (%)")
    shared_legend(figure, axes, columns=3, handlelength=2.8)
    return figure


def mean_roc(normal: Array, others: Iterable[Array]) -> Array:
    """(len(GRID),): the share of others flagged at each share of normal images flagged, mean over the sets."""
    return np.asarray(np.mean([np.interp(GRID, *roc_curve(normal, other)) for other in others], axis=0))


def roc_curve(normal: Array, other: Array) -> tuple[Array, Array]:
    """False and true positive rates, (thresholds,) each, from none flagged to all."""
    thresholds = np.unique(np.concatenate([normal, other]))[::-1]
    rates = [1 - np.searchsorted(np.sort(values), thresholds, side="left") / len(values) for values in (normal, other)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])
