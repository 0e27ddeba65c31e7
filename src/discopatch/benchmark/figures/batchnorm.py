"""What BatchNorm's batch does to the score: AUROC by batch size, with batches of one kind of images or of both."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from discopatch.benchmark.figures.style import (
    COLOURS,
    GREY,
    MARKERS,
    TWO_COLUMNS,
    new,
    percents,
    printed,
    shared_legend,
)
from discopatch.benchmark.tables.labels import group_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {
    "pure": "batches of one kind (normal or strange)",
    "mixed": "batches of both kinds",
}
LEARNED = "learned"


def batchnorm_figure(study: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """A panel for each group: {"near": {"pure": {"1": [value, low, high], ...}, "mixed": {...}, "learned": [...]}}."""
    with printed():
        figure, (axes,) = new(TWO_COLUMNS, 2.6, columns=max(1, len(study)), sharey=True)
        for axis, (group, found) in zip(axes, study.items(), strict=False):
            draw(axis, found)
            axis.set_title(group_label(group))
            axis.set_xlabel("images in a batch")
        axes[0].set_ylabel("AUROC (%)")
        shared_legend(figure, axes, columns=3)
    return figure


def draw(axis: "Axes", found: Mapping[str, Any]) -> None:
    """A line with its interval for each kind of batches, and one for statistics that no batch changes."""
    sizes = sorted({int(size) for kind in KINDS for size in found.get(kind, {})})
    for place, (kind, label) in enumerate(KINDS.items()):
        if measured := found.get(kind):
            own = [size for size in sizes if str(size) in measured]
            values, lows, highs = zip(*(measured[str(size)] for size in own), strict=True)
            axis.plot(own, values, color=COLOURS[place], marker=MARKERS[place], markersize=3.5, label=label)
            axis.fill_between(own, lows, highs, color=COLOURS[place], alpha=0.15, linewidth=0)
    if learned := found.get(LEARNED):
        axis.axhline(learned[0], color=COLOURS[2], linestyle="--", label="learned statistics")
        axis.axhspan(learned[1], learned[2], color=COLOURS[2], alpha=0.12, linewidth=0)
    axis.axhline(0.5, color=GREY, linewidth=0.6, linestyle=":", label="_guess")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.grid()
    percents(axis)
