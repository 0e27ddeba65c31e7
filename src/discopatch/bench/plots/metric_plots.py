"""Plots of the figures themselves: corruptions by severity, both protocols with the control, numbers of patches."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from discopatch.bench.labels import (
    corruption_label,
    group_label,
    set_label,
    short_label,
    split_discriminator,
    split_method,
)
from discopatch.bench.plots.style import (
    CHANCE,
    COLOURS,
    GREY,
    ONE_COLUMN,
    TWO_COLUMNS,
    doubling_axis,
    interval_line,
    new_figure,
    percent_axis,
    plot_style,
    shared_legend,
    text_colour,
)
from discopatch.bench.tables.frame import MEAN, by_method, corruption_figures, group_names, set_groups

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Counts = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # by group, head, patches: value, low, high

COLOUR_MAP = "cividis"  # the same to the colour-blind, and lighter for more
FAR = 0.04  # AUROC between two dots from which there is room for an arrow
PAPER, MATCHED, CONTROL = COLOURS[1], COLOURS[0], "#cfcfcf"
ARROW = {"arrowstyle": "-|>", "color": GREY, "linewidth": 0.9, "shrinkA": 2.5, "shrinkB": 3, "mutation_scale": 6}


@plot_style()
def corruption_plot(frame: "pd.DataFrame", protocol: str, methods: Sequence[str]) -> "Figure":
    """AUROC of every corruption at every severity as a heatmap, methods side by side; last row and column are means."""
    figures = corruption_figures(frame, protocol)["auroc"]
    names = [*figures.index.unique("corruption").categories]
    figure, (axes,) = new_figure(TWO_COLUMNS, 0.95 + 0.165 * len(names), columns=len(methods), sharey=True)
    for axis, method in zip(axes, methods, strict=True):
        _draw_heatmap(axis, figures.xs(method).reindex(names).to_numpy())
        axis.set_xticks(range(figures.shape[1]), [level or "mean" for level in figures])
        axis.set_title(short_label(method).replace(" (", "\n("), fontsize=7.5)
        axis.set_xlabel("severity")
    axes[0].set_yticks(range(len(names)), [name if name == MEAN else corruption_label(name) for name in names])
    image = axes[0].get_images()[0]
    bar = figure.colorbar(image, ax=[*axes], location="bottom", shrink=0.5, aspect=40, pad=0.02, extend="min")
    bar.set_ticks([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], labels=["50", "60", "70", "80", "90", "100"])
    bar.set_label("AUROC (%)")
    bar.outline.set_visible(False)
    return figure


def _draw_heatmap(axis: "Axes", cells: Any) -> None:
    """Colours with figures in them, a thin line before the means; what was not measured stays white."""
    image = axis.imshow(cells, cmap=COLOUR_MAP, vmin=CHANCE, vmax=1.0, aspect="auto")
    for (row, column), cell in np.ndenumerate(cells):
        if np.isfinite(cell):
            ink = text_colour(image.to_rgba(np.asarray(cell)))
            axis.text(column, row, f"{100 * cell:.0f}", ha="center", va="center", fontsize=6, color=ink)
    axis.axhline(cells.shape[0] - 1.5, color="white", linewidth=1.5)
    axis.axvline(cells.shape[1] - 1.5, color="white", linewidth=1.5)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


@plot_style()
def protocol_plot(frame: "pd.DataFrame", methods: Sequence[str]) -> "Figure":
    """What the preprocessing explains: for each set both protocols and the paper's control, a panel for each method."""
    sets = [(name, name, group, set_label(name)) for name, group in set_groups(frame, "near", "far").items()]
    if "covariate" in group_names(frame):
        sets.append((MEAN, f"{MEAN}/0", "covariate", "Corrupted (mean)"))
    places = range(len(sets))
    height = 0.95 + 0.21 * max(1, len(sets))
    figure, (axes,) = new_figure(TWO_COLUMNS, height, columns=len(methods), sharex=True, sharey=True)
    values = by_method(frame)["value"]
    for axis, method in zip(axes, methods, strict=True):
        matched, paper, control = (
            values.loc[method].reindex([(protocol, each[place], each[2], metric) for each in sets]).to_numpy()
            for protocol, place, metric in (("matched", 0, "auroc"), ("paper", 0, "auroc"), ("paper", 1, "control"))
        )
        axis.axvline(CHANCE, color=GREY, linewidth=0.8, zorder=1)
        axis.barh(places, control - CHANCE, left=CHANCE, height=0.62, color=CONTROL, zorder=0.5)
        for place in np.flatnonzero(np.abs(matched - paper) > FAR):
            axis.annotate("", (matched[place], place), (paper[place], place), arrowprops=ARROW)
        axis.plot(paper, places, "o", color=PAPER, markerfacecolor="white", markersize=4.5, markeredgewidth=1.2)
        axis.plot(matched, places, "o", color=MATCHED, markersize=4.5)
        axis.margins(x=0.06)
        axis.grid(axis="x")
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        percent_axis(axis, x=True)
        axis.set_title(short_label(method), fontsize=7.5)
        axis.set_xlabel("AUROC (%)")
    axes[0].set_yticks(places, [label for *_, label in sets])
    axes[0].set_ylim(len(sets) - 0.4, -0.6)
    _add_protocol_legend(figure)
    return figure


def _add_protocol_legend(figure: "Figure") -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dot: Any = {"linestyle": "", "marker": "o", "markersize": 4.5}
    handles = [
        Line2D([], [], color=PAPER, markerfacecolor="white", markeredgewidth=1.2, label="paper protocol", **dot),
        Line2D([], [], color=MATCHED, label="matched protocol", **dot),
        Patch(facecolor=CONTROL, label="control: normal images with the paper protocol's preprocessing"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)


def patch_counts(frame: "pd.DataFrame", protocol: str) -> Counts:
    """AUROC of the heads that were measured with several numbers of patches; empty where there are none."""
    means = frame[(frame["protocol"] == protocol) & (frame["set"] == MEAN) & (frame["metric"] == "auroc")]
    found: dict[str, dict[str, dict[str, Sequence[float]]]] = {}
    for row in means.itertuples():
        encoder, head = split_method(row.method)
        weights, count = split_discriminator(encoder) or ("", None)
        if count:
            line = head if weights == "discopatch" else f"{weights} {head}"
            found.setdefault(row.group, {}).setdefault(line, {})[str(count)] = (row.value, row.low, row.high)
    several = {group: {head: line for head, line in lines.items() if len(line) > 1} for group, lines in found.items()}
    return {group: lines for group, lines in several.items() if lines}


@plot_style()
def patch_count_plot(counts: Counts) -> "Figure":
    """AUROC by the number of patches, a panel for each group: {"near": {"logit": {"4": (value, low, high), ...}}}."""
    width = TWO_COLUMNS if len(counts) > 1 else ONE_COLUMN
    figure, (axes,) = new_figure(width, 2.6, columns=max(1, len(counts)), sharey=True)
    heads = [*dict.fromkeys(head for lines in counts.values() for head in lines)]
    for axis, (group, lines) in zip(axes, counts.items(), strict=False):
        for place, head in enumerate(heads):
            if lines.get(head):
                interval_line(axis, lines[head], head, place)
        doubling_axis(axis, {int(count) for line in lines.values() for count in line}, "patches an image")
        axis.set_title(group_label(group))
    axes[0].set_ylabel("AUROC (%)")
    shared_legend(figure, axes, columns=len(heads) or 1)
    return figure
