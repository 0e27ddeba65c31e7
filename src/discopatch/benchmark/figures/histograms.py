"""Scores of normal images and of others: a column for each method, a row for each set."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discopatch.benchmark.figures.scores import TEST, Array, Scores, names_of, of_method
from discopatch.benchmark.figures.style import COLOURS, GREY, TWO_COLUMNS, new, printed
from discopatch.benchmark.metrics import auroc
from discopatch.benchmark.tables.find import Report, look, sets, severities
from discopatch.benchmark.tables.labels import set_label, short_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 40
TAIL = 0.5  # percent at each end that share the outermost bins
FURTHEST = 5.0  # beyond the middle 90 % of the normal images, in its width; what lies further shares the last bin


def histogram_figure(report: Report, scores: Scores, protocol: str, methods: Sequence[str]) -> "Figure":
    """Normal images in grey behind each set; all panels of a column share their bins."""
    rows = row_names(report, protocol)
    found = {label: [scores.read(protocol, name) for name in names] for label, names in rows.items()}
    normal = scores.read(protocol, TEST)
    with printed():
        figure, axes = new(TWO_COLUMNS, 0.5 + 0.5 * max(1, len(rows)), rows=max(1, len(rows)), columns=len(methods))
        for column, method in enumerate(methods):
            clean = of_method(normal, method)
            others = {label: together([of_method(part, method) for part in parts]) for label, parts in found.items()}
            edges = bins([each for each in (clean, *others.values()) if each is not None])
            for (label, other), line in zip(others.items(), axes, strict=False):
                panel(line[column], clean, other, edges)
                if column == 0:
                    line[0].set_ylabel(label, rotation=0, ha="right", va="center")
            axes[0][column].set_title(short_label(method), fontsize=7.5)
            axes[-1][column].set_xlabel("score")
        share_of_x(axes)
        legend(figure)
    return figure


def row_names(report: Report, protocol: str) -> dict[str, list[str]]:
    """The sets of each row: other images one by one, corruptions together at their mildest, middle and worst."""
    rows = {set_label(name): [name] for name in sets(report, "near", "far")}
    levels = severities(look(report, "protocols", protocol, "corruptions") or {})
    for severity in dict.fromkeys(levels[place] for place in (0, len(levels) // 2, -1) if levels):
        names = [name for name in names_of(report, protocol, "covariate") if name.endswith(f"/{severity}")]
        rows[f"Corrupted, severity {severity}"] = names
    return rows


def together(parts: Sequence[Array | None]) -> Array | None:
    """All scores of several sets."""
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def bins(found: Sequence[Array]) -> Array:
    """Edges around the normal images, which come first, and what is not too far off to show them at a useful scale."""
    if not found:
        return np.linspace(0, 1, BINS + 1)
    ranges = np.array([np.percentile(scores, [TAIL, 100 - TAIL]) for scores in found])
    left, right = np.percentile(found[0], [5, 95])
    reach = FURTHEST * (right - left) or 1.0
    low, high = max(ranges[:, 0].min(), left - reach), min(ranges[:, 1].max(), right + reach)
    return np.linspace(low, high if high > low else low + 1, BINS + 1)


def panel(axis: "Axes", clean: Array | None, other: Array | None, edges: Array) -> None:
    """Both histograms, and how well they can be told apart."""
    if clean is not None:
        axis.stairs(shares(clean, edges), edges, color="#bdbdbd", fill=True)
    if other is not None:
        axis.stairs(shares(other, edges), edges, color=COLOURS[1], linewidth=1.0)
    if clean is not None and other is not None:
        text = f"AUROC {100 * auroc(clean, other):.1f}"
        axis.text(0.985, 0.93, text, transform=axis.transAxes, ha="right", va="top", fontsize=6.5)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_ylim(0, 1.6 * axis.get_ylim()[1])  # room for the figure in the corner


def shares(scores: Array, edges: Array) -> Array:
    """Of the images in each bin; those beyond the ends are counted in the last."""
    found: Array = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0] / len(scores)
    return found


def share_of_x(axes: Sequence[Sequence["Axes"]]) -> None:
    """Ticks with numbers below the last row alone."""
    for line in axes[:-1]:
        for axis in line:
            axis.tick_params(labelbottom=False)


def legend(figure: "Figure") -> None:
    """Which is which."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="#bdbdbd", edgecolor=GREY, linewidth=0, label="normal images"),
        Patch(facecolor="none", edgecolor=COLOURS[1], label="images of the row"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
