"""What the way of the images explains: for every set the two protocols and the control, method by method."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from discopatch.benchmark.figures.style import COLOURS, GREY, TWO_COLUMNS, new, percents, printed
from discopatch.benchmark.tables.comparison import CORRUPTED, control
from discopatch.benchmark.tables.find import Report, groups, measured, sets
from discopatch.benchmark.tables.labels import set_label, short_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GUESS = 0.5
FAR = 0.04  # apart, from which there is room for an arrow
PAPER, MATCHED, WAY = COLOURS[1], COLOURS[0], "#cfcfcf"
ARROW = {"arrowstyle": "-|>", "color": GREY, "linewidth": 0.9, "shrinkA": 2.5, "shrinkB": 3, "mutation_scale": 6}


class Line(NamedTuple):
    """A set in a panel; AUROC, none where it was not measured."""

    label: str
    matched: float | None
    paper: float | None
    control: float | None  # of the paper's protocol


def protocol_figure(report: Report, methods: Sequence[str]) -> "Figure":
    """A panel for each method, a line for each set."""
    compared = [*sets(report, "near", "far").items()]
    if "covariate" in groups(report):
        compared.append((CORRUPTED, "covariate"))
    with printed():
        height = 0.95 + 0.21 * max(1, len(compared))
        figure, (axes,) = new(TWO_COLUMNS, height, columns=len(methods), sharex=True, sharey=True)
        for axis, method in zip(axes, methods, strict=True):
            lines = [line(report, name, group, method) for name, group in compared]
            draw(axis, lines)
            axis.set_title(short_label(method), fontsize=7.5)
            axis.set_xlabel("AUROC (%)")
        axes[0].set_yticks(range(len(compared)), [label(name) for name, _ in compared])
        axes[0].set_ylim(len(compared) - 0.4, -0.6)
        legend(figure)
    return figure


def line(report: Report, name: str, group: str, method: str) -> Line:
    """What both protocols say of a set."""
    of = None if name == CORRUPTED else name
    matched, paper = (
        value(measured(report, protocol, group, method, of=of).get("auroc")) for protocol in ("matched", "paper")
    )
    return Line(label(name), matched, paper, value(control(report, "paper", group, method, of)))


def label(name: str) -> str:
    """Of a set, or of the mean over corrupted images."""
    return "Corrupted (mean)" if name == CORRUPTED else set_label(name)


def value(figure: Sequence[float] | None) -> float | None:
    """Without its ends."""
    return None if figure is None else figure[0]


def draw(axis: "Axes", lines: Sequence[Line]) -> None:
    """A bar for what the way does alone, an arrow from the paper's figure to the matched one."""
    axis.axvline(GUESS, color=GREY, linewidth=0.8, zorder=1)
    for place, (_, matched, paper, alone) in enumerate(lines):
        if alone is not None:
            axis.barh(place, alone - GUESS, left=GUESS, height=0.62, color=WAY, zorder=0.5)
        if matched is not None and paper is not None and abs(matched - paper) > FAR:
            axis.annotate("", (matched, place), (paper, place), arrowprops=ARROW)
        if paper is not None:
            axis.plot([paper], [place], "o", color=PAPER, markerfacecolor="white", markersize=4.5, markeredgewidth=1.2)
        if matched is not None:
            axis.plot([matched], [place], "o", color=MATCHED, markersize=4.5)
    axis.margins(x=0.06)
    axis.grid(axis="x")
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    percents(axis, x=True)


def legend(figure: "Figure") -> None:
    """Which is which."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    round_mark: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4.5}
    handles = [
        Line2D([], [], color=PAPER, markerfacecolor="white", markeredgewidth=1.2, label="paper protocol", **round_mark),
        Line2D([], [], color=MATCHED, label="matched protocol", **round_mark),
        Patch(facecolor=WAY, label="control: normal images along the paper protocol's way"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
