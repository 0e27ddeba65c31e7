"""The style of all plots: sizes for print, and colours that the colour-blind can tell apart.

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

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.utils import require, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.0  # inches
GREY = "#7f7f7f"

# Okabe and Ito, 2008, without the yellow, which is too faint on paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)))

CHANCE = 0.5  # AUROC of a guess

# Metadata that would differ between runs is left out.
_KINDS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}}

_SETTINGS: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text
    "figure.dpi": 200,
    "savefig.dpi": 200,
}


@contextmanager
def plot_style() -> Iterator[None]:
    """A context, or a decorator, in which everything is drawn in this style."""
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
    """Writes `path`.png and `path`.pdf, or the given kinds; the same figure gives the same bytes."""
    paths = []
    with plot_style():
        for kind in kinds:
            paths.append(path.with_name(f"{path.name}.{kind}"))
            write_atomically(paths[-1], partial(figure.savefig, format=kind, metadata=_KINDS[kind]))
    return paths


def colour(place: int) -> str:
    """One of COLOURS, which begin again after the last."""
    return COLOURS[place % len(COLOURS)]


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
