"""What the work is worth: AUROC by multiplications an image, for every way to look."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from discopatch.benchmark.figures.style import (
    MARKERS,
    PALE,
    TWO_COLUMNS,
    colour,
    new,
    percents,
    printed,
    shared_legend,
)
from discopatch.benchmark.tables.find import Report
from discopatch.benchmark.tables.labels import patch_count, split
from discopatch.benchmark.work import multiplications
from discopatch.model import Architecture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = ("combined", "statistics", "logit")


class Look(NamedTuple):
    """One way to look at an image, and what heads make of it: AUROC as value, low, high."""

    name: str  # such as "64 patches"
    gmac: float
    corrupted: Mapping[str, Sequence[float]]  # by head
    near: Sequence[float]  # of the combined head

    @property
    def of_patches(self) -> bool:
        """Several of these make a curve."""
        return self.name.endswith("patches")


def looks(report: Report, architecture: Architecture, *, size: int, dense: str) -> list[Look]:
    """All ways of one report with those weights and all heads, by their work; a dense pass goes by the name `dense`."""
    means = report["protocols"]["matched"]["means"]
    corrupted, near = means["covariate"], means["near"]
    found = {}
    for eye in dict.fromkeys(split(method)[0] for method in corrupted):
        if not all(f"{eye}/{head}" in corrupted for head in HEADS):
            continue
        count = patch_count(f"{eye}/")
        gmac = multiplications(architecture, size=size, patches=count) / 1e9
        scores = {head: corrupted[f"{eye}/{head}"]["auroc"] for head in HEADS}
        name = dense if count is None else f"{count} patches"
        found[gmac, eye] = Look(name, gmac, scores, near[f"{eye}/combined"]["auroc"])
    return [found[key] for key in sorted(found)]


def work_figure(suites: Mapping[str, Sequence[Look]]) -> "Figure":
    """A panel for each suite: random patches as a line, passes over the whole image as single marks."""
    with printed():
        figure, (axes,) = new(TWO_COLUMNS, 2.9, columns=len(suites), sharey=True)
        for axis, (suite, ways) in zip(axes, suites.items(), strict=True):
            for place, head in enumerate(HEADS):
                draw(axis, ways, head, place)
            for gmac in {way.gmac for way in ways}:
                names = " / ".join(way.name for way in ways if way.gmac == gmac)
                axis.axvline(gmac, color=PALE, linewidth=0.5, zorder=0)
                axis.annotate(names, (gmac, 1.01), xycoords=("data", "axes fraction"), rotation=35, fontsize=6.5)
            axis.set_xscale("log")
            axis.set_xticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
            axis.minorticks_off()
            axis.set_xlabel(f"billion multiplications an image ({suite})")
            percents(axis)
        axes[0].set_ylabel("AUROC on corrupted images (%)")
        shared_legend(figure, axes, columns=len(HEADS))
    return figure


def draw(axis: "Axes", ways: Sequence[Look], head: str, place: int) -> None:
    """One head: hollow marks on a line for patches, full ones for whole images, all with their intervals."""
    mark, shade = MARKERS[place], colour(place)
    cut = [way for way in ways if way.of_patches]
    axis.plot([way.gmac for way in cut], [way.corrupted[head][0] for way in cut], color=shade, linewidth=0.9)
    for way in ways:
        value, low, high = way.corrupted[head]
        axis.errorbar(
            way.gmac,
            value,
            [[value - low], [high - value]],
            color=shade,
            marker=mark,
            markersize=4.5,
            markerfacecolor="white" if way.of_patches else shade,
            linewidth=0.8,
            capsize=1.5,
            label=f"_{head}" if way.of_patches else head,
        )
