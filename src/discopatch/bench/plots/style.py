"""How all plots look: at the size in which they are printed, in colours that the colour-blind can tell apart.

A plot is a function in this style that returns a figure, and `save_figure` writes it:

    @plot_style()
    def losses_plot(losses: Mapping[str, Sequence[float]]) -> "Figure":
        figure, ((axis,),) = new_figure(ONE_COLUMN, 2.5)
        for place, (name, values) in enumerate(losses.items()):
            axis.plot(values, color=colour(place), linestyle=LINES[place % len(LINES)], label=name)
        shared_legend(figure, [axis], columns=2)
        return figure

    save_figure(losses_plot(losses), Path("losses"))  # losses.png and losses.pdf
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from discopatch.errors import ParameterError
from discopatch.utils import require, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.0  # inches
DPI = 200
GREY, PALE, INK = "#7f7f7f", "#d9d9d9", "#222222"

# Okabe and Ito, 2008, without the yellow, which is too faint on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))

CHANCE = 0.5  # AUROC of a guess

# With what would differ from run to run left out.
_KINDS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "text.hinting": "none",  # letters as wide on the screen as in print, where labels must not touch either
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "pdf.fonttype": 42,  # text stays text
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
}


@contextmanager
def plot_style() -> Iterator[None]:
    """A context, or a decorator, in which everything is drawn in this style; outside nothing has changed."""
    require("matplotlib", "bench")
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple["Figure", Sequence[Sequence["Axes"]]]:
    """An empty figure of that many inches, and its axes row by row; without pyplot, which keeps every figure alive."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def save_figure(figure: "Figure", path: Path, kinds: Iterable[str] = tuple(_KINDS)) -> list[Path]:
    """Writes `path`.png and `path`.pdf, or the kinds that are asked for; the same figure gives the same bytes."""
    paths = []
    with plot_style():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout of the first is good for all, and takes long
        for kind in kinds:
            if kind not in _KINDS:
                raise ParameterError(f"a plot as {kind!r}: choose from {', '.join(_KINDS)}")
            paths.append(path.with_name(f"{path.name}.{kind}"))
            write_atomically(paths[-1], partial(figure.savefig, format=kind, metadata=_KINDS[kind]))
    return paths


def colour(place: int) -> str:
    """One of COLOURS, which begin again after the last."""
    return COLOURS[place % len(COLOURS)]


def text_colour(background: ArrayLike) -> str:
    """Black or white, whichever can be read on the background, (red, green, blue, ...) from 0 to 1."""
    red, green, blue = np.power(np.asarray(background, float)[:3], 2.2)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 else "black"


def shared_legend(figure: "Figure", axes: Iterable["Axes"], *, columns: int, **options: Any) -> None:
    """A legend below all panels, with everything that has a label once."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend([*found.values()], [*found], loc="outside lower center", ncols=columns, **options)


def percent_axis(axis: "Axes", *, x: bool = False) -> None:
    """Shows shares times 100, as the tables do, on the y axis or the x axis."""
    from matplotlib.ticker import FuncFormatter

    formatter = FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}")
    (axis.xaxis if x else axis.yaxis).set_major_formatter(formatter)


def doubling_axis(axis: "Axes", sizes: Iterable[int], label: str) -> None:
    """A logarithmic x axis with a tick at each of the sizes, and AUROC on the y axis with a line at chance."""
    ticks = sorted(sizes)
    axis.axhline(CHANCE, color=GREY, linewidth=0.6, linestyle=":", label="_chance")
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(size) for size in ticks])
    axis.minorticks_off()
    axis.set_xlabel(label)
    axis.grid()
    percent_axis(axis)


def interval_line(axis: "Axes", figures: Mapping[str, Sequence[float]], label: str, place: int) -> None:
    """A line with its interval as a band: {"4": (value, low, high), ...} by size; `place` chooses colour and marker."""
    sizes = sorted(map(int, figures))
    values, lows, highs = zip(*(figures[str(size)] for size in sizes), strict=True)
    marker = MARKERS[place % len(MARKERS)]
    axis.plot(sizes, values, color=colour(place), marker=marker, markersize=3.5, label=label)
    axis.fill_between(sizes, lows, highs, color=colour(place), alpha=0.15, linewidth=0)
