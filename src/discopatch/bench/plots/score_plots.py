"""Plots of single images: histograms and ROC curves of their scores, a map of their features."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from discopatch.bench.labels import group_label, set_label, short_label
from discopatch.bench.plots.style import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    ONE_COLUMN,
    TWO_COLUMNS,
    colour,
    new_figure,
    percent_axis,
    plot_style,
    shared_legend,
)
from discopatch.bench.tables.frame import group_names, set_groups
from discopatch.metrics import auroc
from discopatch.utils import require

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Points = Mapping[str, NDArray[np.floating]]  # by set

NEIGHBOURS = 15  # of an image on the map
NORMAL = "test"  # the set of normal images
NORMAL_SHADE = "#bdbdbd"
BINS = 40
TAIL = 0.5  # percent at each end that share the outermost bins
FURTHEST = 5.0  # beyond the middle 90 % of the normal images, in its width; what lies further shares the last bin
GRID = np.linspace(0, 1, 501)


class Scores(Protocol):
    """Where the scores behind the results are kept, such as `ScoreStore`."""

    def read(self, protocol: str, name: str) -> Mapping[str, Array]:
        """The scores of a set, each (images,), by `seed:method`; empty where the set was not scored."""


def first_seed_scores(sets: Iterable[Mapping[str, Array]], method: str) -> list[Array]:
    """The scores of a method with its first seed on each of the sets on which it was scored."""
    found = []
    for scores in sets:
        seeds = {int(key.partition(":")[0]): key for key in scores if key.partition(":")[2] == method}
        if seeds:
            found.append(scores[seeds[min(seeds)]])
    return found


@plot_style()
def histogram_plot(frame: "pd.DataFrame", scores: Scores, protocol: str, methods: Sequence[str]) -> "Figure":
    """A column for each method and a row for each set, normal images in grey behind; a column shares its bins."""
    rows = {label: [scores.read(protocol, name) for name in names] for label, names in _rows(frame, protocol).items()}
    normal = scores.read(protocol, NORMAL)
    height = 0.5 + 0.5 * max(1, len(rows))
    figure, axes = new_figure(TWO_COLUMNS, height, rows=max(1, len(rows)), columns=len(methods))
    for column, method in enumerate(methods):
        clean = first_seed_scores([normal], method)
        others = {label: first_seed_scores(sets, method) for label, sets in rows.items()}
        shown = {label: np.concatenate(each) for label, each in others.items() if each}
        edges = _bin_edges([*clean, *shown.values()])
        for axis, label in zip([line[column] for line in axes], rows, strict=False):
            _draw_histograms(axis, clean[0] if clean else None, shown.get(label), edges)
            if column == 0:
                axis.set_ylabel(label, rotation=0, ha="right", va="center")
        for line in axes[:-1]:
            line[column].tick_params(labelbottom=False)
        axes[0][column].set_title(short_label(method), fontsize=7.5)
        axes[-1][column].set_xlabel("score")
    _add_histogram_legend(figure)
    return figure


def _rows(frame: "pd.DataFrame", protocol: str) -> dict[str, list[str]]:
    """The sets of each row: other images one by one, corrupted ones together at the mildest, middle, worst severity."""
    rows = {set_label(name): [name] for name in set_groups(frame, "near", "far")}
    corrupted = [*set_groups(frame[frame["protocol"] == protocol], "covariate")]
    levels = sorted({name.rpartition("/")[2] for name in corrupted}, key=int)
    for severity in dict.fromkeys(levels[place] for place in (0, len(levels) // 2, -1) if levels):
        rows[f"Corrupted, severity {severity}"] = [name for name in corrupted if name.endswith(f"/{severity}")]
    return rows


def _bin_edges(found: Sequence[Array]) -> Array:
    """Edges around the normal images, which come first, and what is not too far off to show them at a useful scale."""
    if not found:
        return np.linspace(0, 1, BINS + 1)
    ranges = np.array([np.percentile(scores, [TAIL, 100 - TAIL]) for scores in found])
    left, right = np.percentile(found[0], [5, 95])
    reach = FURTHEST * (right - left) or 1.0
    low, high = max(ranges[:, 0].min(), left - reach), min(ranges[:, 1].max(), right + reach)
    return np.linspace(low, high if high > low else low + 1, BINS + 1)


def _draw_histograms(axis: "Axes", clean: Array | None, other: Array | None, edges: Array) -> None:
    if clean is not None:
        axis.stairs(_shares(clean, edges), edges, color=NORMAL_SHADE, fill=True)
    if other is not None:
        axis.stairs(_shares(other, edges), edges, color=COLOURS[1], linewidth=1.0)
    if clean is not None and other is not None:
        text = f"AUROC {100 * auroc(clean, other):.1f}"
        axis.text(0.985, 0.93, text, transform=axis.transAxes, ha="right", va="top", fontsize=6.5)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(0, 1.6 * axis.get_ylim()[1])  # room for the figure in the corner


def _shares(scores: Array, edges: Array) -> Array:
    """The share of the images in each bin; those beyond the ends are counted in the last."""
    return np.asarray(np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / len(scores))


def _add_histogram_legend(figure: "Figure") -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=NORMAL_SHADE, edgecolor=GREY, linewidth=0, label="normal images"),
        Patch(facecolor="none", edgecolor=COLOURS[1], label="images of the row"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)


@plot_style()
def roc_plot(frame: "pd.DataFrame", scores: Scores, protocol: str, methods: Sequence[str]) -> "Figure":
    """A panel for each group and a line for each method: the area below it is the group's mean AUROC."""
    groups, normal = group_names(frame), scores.read(protocol, NORMAL)
    width = TWO_COLUMNS if len(groups) > 1 else ONE_COLUMN
    figure, (axes,) = new_figure(width, 3.05, columns=max(1, len(groups)), sharey=True)
    for axis, group in zip(axes, groups, strict=False):
        sets = [scores.read(protocol, name) for name in set_groups(frame, group)]
        for place, method in enumerate(methods):
            clean, others = first_seed_scores([normal], method), first_seed_scores(sets, method)
            if clean and others:
                style, label = LINES[place % len(LINES)], short_label(method)
                axis.plot(GRID, mean_roc(clean[0], others), color=colour(place), linestyle=style, label=label)
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.6, linestyle=":", label="_chance")
        axis.axhline(0.95, color=GREY, linewidth=0.8, label="95 % flagged, where FPR95 is read")
        axis.set_title(group_label(group))
        axis.set_xlabel("normal images flagged (%)")
        axis.set(xlim=(0, 1), ylim=(0, 1.005), box_aspect=1)
        axis.grid()
        percent_axis(axis)
        percent_axis(axis, x=True)
    axes[0].set_ylabel("out-of-distribution images flagged (%)")
    shared_legend(figure, axes, columns=int(width / 2), handlelength=2.8)
    return figure


def mean_roc(normal: Array, others: Iterable[Array]) -> Array:
    """(len(GRID),): the share of others flagged at each share of normal images flagged, mean over the sets."""
    return np.asarray(np.mean([np.interp(GRID, *roc_curve(normal, other)) for other in others], axis=0))


def roc_curve(normal: Array, other: Array) -> tuple[Array, Array]:
    """False and true positive rates, (thresholds,) each, from none flagged to all."""
    thresholds = np.unique(np.concatenate([normal, other]))[::-1]
    rates = [1 - np.searchsorted(np.sort(values), thresholds, side="left") / len(values) for values in (normal, other)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def umap_points(features: Points, *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """(images, channels) -> (images, 2) for each set, all on one map; the same seed gives the same map."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # of TensorFlow, for a kind of UMAP that is not used here
        require("umap", "bench")
        from umap import UMAP

    images = np.concatenate([*features.values()]).astype(np.float32)
    neighbours = min(NEIGHBOURS, len(images) - 1)
    model = UMAP(n_neighbors=neighbours, init="pca", random_state=seed, n_jobs=1)  # spectral needs one connected graph
    ends = np.cumsum([len(each) for each in features.values()])[:-1]
    parts = np.split(np.asarray(model.fit_transform(images), np.float32), ends)
    return dict(zip(features, parts, strict=True))


@plot_style()
def umap_plot(points: Points) -> "Figure":
    """Normal images in grey below, every other set, (images, 2), in a colour and shape of its own."""
    figure, ((axis,),) = new_figure(TWO_COLUMNS, 4.0)
    names = sorted(points, key=lambda name: name != NORMAL)
    others = [name for name in names if name != NORMAL]
    for name in names:
        place = others.index(name) if name in others else 0
        axis.scatter(
            points[name][:, 0],
            points[name][:, 1],
            s=7,
            marker="o" if name == NORMAL else MARKERS[(place + place // len(COLOURS)) % len(MARKERS)],
            color="#9e9e9e" if name == NORMAL else colour(place),
            alpha=0.7,
            linewidth=0,
            label="normal images" if name == NORMAL else set_label(name),
        )
    axis.set(xticks=[], yticks=[], xlabel="UMAP 1", ylabel="UMAP 2")
    figure.legend(loc="outside right center", markerscale=2)
    return figure
