"""ROC curves, averaged over the sets of a group: the area below a curve is the group's mean AUROC."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from discopatch.benchmark.figures.scores import TEST, Array, Scores, names_of, of_method
from discopatch.benchmark.figures.style import (
    GREY,
    LINES,
    ONE_COLUMN,
    TWO_COLUMNS,
    colour,
    new,
    percents,
    printed,
    shared_legend,
)
from discopatch.benchmark.tables.find import Report, groups
from discopatch.benchmark.tables.labels import group_label, short_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = np.linspace(0, 1, 501)
READ = "95 % flagged, where FPR95 is read"


def roc_figure(report: Report, scores: Scores, protocol: str, methods: Sequence[str]) -> "Figure":
    """A panel for each group, a line for each method."""
    found = groups(report)
    normal = scores.read(protocol, TEST)
    with printed():
        width = TWO_COLUMNS if len(found) > 1 else ONE_COLUMN
        figure, (axes,) = new(width, 3.05, columns=max(1, len(found)), sharey=True)
        for axis, group in zip(axes, found, strict=False):
            sets = [scores.read(protocol, name) for name in names_of(report, protocol, group)]
            for place, method in enumerate(methods):
                clean = of_method(normal, method)
                others = [other for each in sets if (other := of_method(each, method)) is not None]
                if clean is not None and others:
                    curve = mean_roc(clean, others)
                    axis.plot(
                        GRID, curve, color=colour(place), linestyle=LINES[place % len(LINES)], label=short_label(method)
                    )
            dress(axis, group_label(group))
        axes[0].set_ylabel("strange images flagged (%)")
        shared_legend(figure, axes, columns=int(width / 2), handlelength=2.8)
    return figure


def mean_roc(normal: Array, others: Iterable[Array]) -> Array:
    """(len(GRID),): share of strange images flagged at each share of normal ones flagged, mean over sets."""
    curves = [np.interp(GRID, *roc(normal, other)) for other in others]
    result: Array = np.mean(curves, axis=0)
    return result


def roc(normal: Array, other: Array) -> tuple[Array, Array]:
    """False and true positive rates, (thresholds,) each, from none flagged to all."""
    thresholds = np.unique(np.concatenate([normal, other]))[::-1]
    rates = [1 - np.searchsorted(np.sort(values), thresholds, side="left") / len(values) for values in (normal, other)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def dress(axis: "Axes", title: str) -> None:
    """What a guess gives, and where FPR95 is read."""
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.6, linestyle=":", label="_guess")
    axis.axhline(0.95, color=GREY, linewidth=0.8, label=READ)
    axis.set_title(title)
    axis.set_xlabel("normal images flagged (%)")
    axis.set(xlim=(0, 1), ylim=(0, 1.005), box_aspect=1)
    axis.grid()
    percents(axis)
    percents(axis, x=True)
