"""How long one image takes: a bar for every way to score it, ours beside networks that others use."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from discopatch.benchmark.figures.style import GREY, TWO_COLUMNS, colour, new, printed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def speed_figure(milliseconds: Mapping[str, float], *, others: Collection[str], threads: int) -> "Figure":
    """The slowest on top; ours have the colour of their weights, whose name stands before a comma; others are grey."""
    ordered = sorted(milliseconds, key=lambda name: milliseconds[name])
    weights = [*dict.fromkeys(name.split(",")[0] for name in milliseconds if name not in others)]
    with printed():
        figure, ((axis,),) = new(TWO_COLUMNS, 0.6 + 0.21 * len(ordered))
        for place, name in enumerate(ordered):
            taken = milliseconds[name]
            shade = GREY if name in others else colour(weights.index(name.split(",")[0]))
            axis.barh(place, taken, height=0.7, color=shade)
            axis.annotate(f"{taken:.3g}", (taken, place), (3, 0), textcoords="offset points", va="center")
        axis.set_yticks(range(len(ordered)), ordered)
        axis.set_xlim(0, 1.07 * max(milliseconds.values()))
        axis.set_xlabel(f"milliseconds an image, pixels to score, {threads} threads")
    return figure
