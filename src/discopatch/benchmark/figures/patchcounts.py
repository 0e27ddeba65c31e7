"""What more patches bring: AUROC by the number of patches, a line for each head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from discopatch.benchmark.figures.style import (
    GREY,
    MARKERS,
    ONE_COLUMN,
    TWO_COLUMNS,
    colour,
    new,
    percents,
    printed,
    shared_legend,
)
from discopatch.benchmark.tables.find import Report, groups, measured, methods
from discopatch.benchmark.tables.labels import group_label, patch_count, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = Mapping[str, Sequence[float]]  # by the number of patches: value, low, high
Counts = Mapping[str, Mapping[str, Line]]  # by group and head


def patch_figure(found: Counts) -> "Figure":
    """A panel for each group: {"near": {"logit": {"4": [value, low, high], ...}, ...}, ...}."""
    with printed():
        width = TWO_COLUMNS if len(found) > 1 else ONE_COLUMN
        figure, (axes,) = new(width, 2.6, columns=max(1, len(found)), sharey=True)
        heads = list(dict.fromkeys(head for lines in found.values() for head in lines))
        for axis, (group, lines) in zip(axes, found.items(), strict=False):
            for place, head in enumerate(heads):
                if line := lines.get(head):
                    draw(axis, line, head, place)
            dress(axis, lines)
            axis.set_title(group_label(group))
        axes[0].set_ylabel("AUROC (%)")
        shared_legend(figure, axes, columns=len(heads) or 1)
    return figure


def draw(axis: "Axes", line: Line, head: str, place: int) -> None:
    """With its interval."""
    sizes = sorted(map(int, line))
    values, lows, highs = zip(*(line[str(size)] for size in sizes), strict=True)
    mark = MARKERS[place % len(MARKERS)]
    axis.plot(sizes, values, color=colour(place), marker=mark, markersize=3.5, label=head)
    axis.fill_between(sizes, lows, highs, color=colour(place), alpha=0.15, linewidth=0)


def dress(axis: "Axes", lines: Mapping[str, Line]) -> None:
    """A tick at each number of patches, and what a guess gives."""
    sizes = sorted({int(size) for line in lines.values() for size in line})
    axis.axhline(0.5, color=GREY, linewidth=0.6, linestyle=":", label="_guess")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("patches an image")
    axis.grid()
    percents(axis)


def counted(report: Report, protocol: str) -> Counts:
    """What a benchmark run says, of the heads that it measured with several numbers of patches; else nothing."""
    numbered = [(split(name)[1], count, name) for name in methods(report) if (count := patch_count(name))]
    heads = [head for head, _, _ in numbered]
    found: dict[str, dict[str, dict[str, Sequence[float]]]] = {}
    for group in groups(report):
        for head, size, method in numbered:
            figure = measured(report, protocol, group, method).get("auroc")
            if figure is not None and heads.count(head) > 1:
                found.setdefault(group, {}).setdefault(head, {})[str(size)] = figure
    return found
