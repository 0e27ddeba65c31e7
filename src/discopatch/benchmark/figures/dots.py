"""Figures with their intervals as dots: a line for each label, a colour for each group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from discopatch.benchmark.figures.style import COLOURS, MARKERS, ONE_COLUMN, new, percents, printed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = tuple[str, str, float, float, float]  # label, group, value, low, high

SPREAD = 0.6  # share of a line over which its groups stand


def dots_figure(rows: Sequence[Row], *, xlabel: str = "AUROC (%)", width: float = ONE_COLUMN) -> "Figure":
    """Labels from top to bottom and groups from left to right of the legend, in the order of the rows."""
    labels = list(dict.fromkeys(label for label, *_ in rows))
    groups = list(dict.fromkeys(group for _, group, *_ in rows))
    step = SPREAD / max(1, len(groups))
    with printed():
        figure, ((axis,),) = new(width, 0.75 + (0.16 + 0.1 * len(groups)) * max(1, len(labels)))
        for place, group in enumerate(groups):
            own = [row for row in rows if row[1] == group]
            heights = [labels.index(row[0]) + step * (place - (len(groups) - 1) / 2) for row in own]
            axis.errorbar(
                [row[2] for row in own],
                heights,
                xerr=[[row[2] - row[3] for row in own], [row[4] - row[2] for row in own]],
                fmt=MARKERS[place % len(MARKERS)],
                color=COLOURS[place % len(COLOURS)],
                markersize=4,
                elinewidth=1,
                capsize=1.5,
                label=group,
            )
        axis.set_yticks(range(len(labels)), labels)
        axis.set_ylim(len(labels) - 0.5, -0.5)
        for edge in range(1, len(labels)):
            axis.axhline(edge - 0.5, color="#e6e6e6", linewidth=0.5)
        axis.set_xlabel(xlabel)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
        percents(axis, x=True)
        figure.legend(loc="outside lower center", ncols=3)
    return figure
