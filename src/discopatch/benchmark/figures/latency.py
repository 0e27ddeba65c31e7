"""AUROC against latency; the area of a circle is the number of parameters. The paper's figures of near- and far-OOD."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from discopatch.benchmark.figures.places import Array, place
from discopatch.benchmark.figures.style import COLOURS, DPI, ONE_COLUMN, TWO_COLUMNS, new, percents, printed
from discopatch.benchmark.tables.find import Report, groups, measured, methods
from discopatch.benchmark.tables.labels import eye_label, group_label, is_ours, patch_count, score_label, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 4.2  # points of the radius
SMALLEST = 1.5
LONG = 4.0  # points between circle and label from which a line helps


class Mark(NamedTuple):
    """A method in a panel."""

    label: str
    milliseconds: float
    auroc: float
    parameters: int
    eye: str


def latency_figure(report: Report, protocol: str) -> "Figure":
    """A panel for each group that has a mean."""
    found = groups(report)
    with printed():
        width = TWO_COLUMNS if len(found) > 1 else ONE_COLUMN
        figure, (axes,) = new(width, 3.9, columns=max(1, len(found)))
        eyes = eye_colours(report)
        largest = max((report["methods"][name].get("parameters") or 1 for name in methods(report)), default=1)
        panels = [(axis, group_marks(report, protocol, group)) for axis, group in zip(axes, found, strict=False)]
        for (axis, marks), group in zip(panels, found, strict=True):
            draw(axis, marks, eyes, largest)
            axis.set_title(group_label(group))
            axis.set_xlabel("latency (ms an image)")
        axes[0].set_ylabel("AUROC (%)")
        legend(figure, report, eyes, largest, columns=int(width / 1.6))
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the labels are placed for axes that stay where they are
        for axis, marks in panels:
            name_marks(axis, marks, eyes, largest)
    return figure


def group_marks(report: Report, protocol: str, group: str) -> list[Mark]:
    """Of all methods whose latency is known and that were measured there."""
    marks = []
    for method in methods(report):
        cost, auroc = report["methods"][method], measured(report, protocol, group, method).get("auroc")
        if cost.get("milliseconds") and auroc is not None:
            eye = split(method)[0]
            marks.append(Mark(mark_label(method), cost["milliseconds"], auroc[0], cost.get("parameters") or 1, eye))
    return marks


def mark_label(method: str) -> str:
    """Short: the colour says what looks."""
    score, patches = score_label(split(method)[1]), patch_count(method)
    return score if patches is None else f"{patches}: {score}"


def eye_colours(report: Report) -> dict[str, str]:
    """A colour for each network; the discriminator has one, whatever the number of patches."""
    eyes = dict.fromkeys(split(method)[0] for method in methods(report) if not is_ours(method))
    colours = {eye: COLOURS[1:][number % (len(COLOURS) - 1)] for number, eye in enumerate(eyes)}
    return {split(method)[0]: COLOURS[0] for method in methods(report) if is_ours(method)} | colours


def radius(parameters: float, largest: float) -> float:
    """In points; the area goes with the parameters."""
    return max(SMALLEST, LARGEST * float(np.sqrt(parameters / largest)))


def draw(axis: "Axes", marks: Iterable[Mark], eyes: dict[str, str], largest: float) -> None:
    """A circle for each method."""
    for mark in marks:
        axis.scatter(
            [mark.milliseconds],
            [mark.auroc],
            s=(2 * radius(mark.parameters, largest)) ** 2,
            facecolor=(*rgb(eyes[mark.eye]), 0.35),
            edgecolor=eyes[mark.eye],
            linewidth=0.8,
        )
    axis.set_xscale("log")
    axis.margins(x=0.4, y=0.1)
    axis.grid(which="major")
    percents(axis)
    plain_ticks(axis)


def name_marks(axis: "Axes", marks: list[Mark], eyes: dict[str, str], largest: float) -> None:
    """Each label near its circle, with a line to it where it had to go further away."""
    if not marks:
        return
    unit = 72 / DPI
    points = axis.transData.transform([(mark.milliseconds, mark.auroc) for mark in marks]) * unit
    radii = np.array([radius(mark.parameters, largest) for mark in marks])
    notes = [
        axis.annotate(
            mark.label,
            (mark.milliseconds, mark.auroc),
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=6.5,
            color=darker(eyes[mark.eye]),
        )
        for mark in marks
    ]
    extents = [note.get_window_extent() for note in notes]
    sizes = np.array([(extent.width + 2, 0.9 * extent.height) for extent in extents]) * unit
    area = axis.get_window_extent()
    box = (area.x0 * unit, area.y0 * unit, area.x1 * unit, area.y1 * unit)
    to_data = axis.transData.inverted()
    axis.autoscale(False)
    for note, mark, point, reach, size, centre in zip(
        notes, marks, points, radii, sizes, place(points, radii, sizes, box), strict=True
    ):
        note.set_position(tuple(centre - point))
        ends = leader(point, reach, centre, size)
        if np.hypot(*(ends[1] - ends[0])) > LONG:
            axis.plot(*to_data.transform(ends / unit).T, color=eyes[mark.eye], linewidth=0.5, zorder=1.5)


def leader(point: Array, radius: float, centre: Array, size: Array) -> Array:
    """(2, 2): from the edge of a circle towards the middle of a label, up to its box."""
    way = centre - point
    inside = np.min(size / 2 / np.maximum(np.abs(way), 1e-9))  # share of the way that lies in the box
    start = min(1.0, radius / max(float(np.hypot(*way)), 1e-9))
    return point + np.array([[start], [max(start, 1 - inside)]]) * way


def legend(figure: "Figure", report: Report, eyes: dict[str, str], largest: float, *, columns: int) -> None:
    """Which colour looks, and how large it is."""
    from matplotlib.lines import Line2D

    handles = {}
    for method in methods(report):
        eye, parameters = split(method)[0], report["methods"][method].get("parameters")
        name = "DisCoPatch (N: patches)" if is_ours(method) else eye_label(eye)
        size = f", {parameters / 1e6:.1f} M" if parameters else ""
        handles[name] = Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=2 * radius(parameters or 1, largest),
            markerfacecolor=(*rgb(eyes[eye]), 0.35),
            markeredgecolor=eyes[eye],
            markeredgewidth=0.8,
            label=name + size,
        )
    figure.legend(handles=[*handles.values()], loc="outside lower center", ncols=columns, title="network, parameters")


def plain_ticks(axis: "Axes") -> None:
    """1, 3, 10, 30 and not powers; more of them where the range is small."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high / low > 50 else (1, 2, 3, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def rgb(colour: str) -> tuple[float, float, float]:
    """#0072B2 -> 0, 0.45, 0.70."""
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def darker(colour: str) -> tuple[float, float, float]:
    """For letters, which are thin."""
    red, green, blue = rgb(colour)
    return 0.7 * red, 0.7 * green, 0.7 * blue
