"""AUROC against latency; the area of a circle is the number of parameters. The paper's figures of near- and far-OOD."""

from typing import TYPE_CHECKING, Any

import numpy as np

from discopatch.bench.labels import (
    encoder_label,
    group_label,
    patch_count,
    score_label,
    split_discriminator,
    split_method,
)
from discopatch.bench.plots.label_placement import place_labels
from discopatch.bench.plots.style import (
    COLOURS,
    DPI,
    ONE_COLUMN,
    TWO_COLUMNS,
    new_figure,
    percent_axis,
    plot_style,
)
from discopatch.bench.tables.frame import MEAN, by_method, group_names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 4.2  # points of the radius
SMALLEST = 1.5
LONG = 4.0  # points between circle and label from which a line helps
SHADE = 0.35  # opacity of a circle's area
MAX_LABELS = 24  # of a panel; with more methods, those have none that another of their network beats in both


@plot_style()
def latency_plot(frame: "pd.DataFrame", protocol: str) -> "Figure":
    """A panel for each group that has a mean, a labelled circle for each method whose latency is known."""
    groups, values = group_names(frame), by_method(frame)["value"]
    circles = _circles(values)
    width = TWO_COLUMNS if len(groups) > 1 else ONE_COLUMN
    figure, (axes,) = new_figure(width, 3.9, columns=max(1, len(groups)))
    axes[0].set_ylabel("AUROC (%)")
    panels = []
    for axis, group in zip(axes, groups, strict=False):
        auroc = values.get((protocol, MEAN, group, "auroc"))
        shown = circles.assign(auroc=auroc).dropna(subset=["milliseconds", "auroc"])
        panels.append((axis, shown))
        _draw_circles(axis, shown)
        axis.set_title(group_label(group))
        axis.set_xlabel("latency (ms an image)")
    _add_legend(figure, circles, columns=int(width / 1.6))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the labels are placed for axes that stay where they are
    for axis, shown in panels:
        _label_circles(axis, shown if len(shown) <= MAX_LABELS else _unbeaten(shown))
    return figure


def _unbeaten(shown: "pd.DataFrame") -> "pd.DataFrame":
    """The methods that no other of the same network beats by being faster and no worse."""
    fastest_first = shown.sort_values(["milliseconds", "auroc"], ascending=[True, False])
    best_before = fastest_first.groupby("encoder")["auroc"].transform(
        lambda auroc: auroc.cummax().shift(fill_value=-1.0)
    )
    return fastest_first[fastest_first["auroc"] > best_before]


def _circles(values: "pd.DataFrame") -> "pd.DataFrame":
    """For each method its milliseconds (NaN if not known), parameters, radius in points, colour, label and encoder."""
    keys = {metric: ("", "", "cost", metric) for metric in ("milliseconds", "parameters")}
    found = values.reindex(columns=[*keys.values()]).set_axis([*keys], axis=1)
    encoders = [split_method(method)[0] for method in found.index]
    discriminators = {encoder: ours[0] for encoder in encoders if (ours := split_discriminator(encoder))}
    networks = [discriminators.get(encoder, encoder) for encoder in encoders]
    order = sorted(dict.fromkeys(networks), key=lambda name: name not in discriminators.values())  # ours first
    known = found["parameters"].fillna(1)
    return found.assign(
        milliseconds=found["milliseconds"].where(found["milliseconds"] > 0),
        radius=np.maximum(SMALLEST, LARGEST * np.sqrt(known / known.max())),  # the area goes with the parameters
        colour=[COLOURS[order.index(name) % len(COLOURS)] for name in networks],
        label=[_circle_label(method) for method in found.index],
        encoder=[f"{encoder_label(name)}{' (N: patches)' * (name in discriminators.values())}" for name in networks],
    )


def _circle_label(method: str) -> str:
    """The score alone, as the colour shows the encoder, after the number of patches if there is one."""
    score, patches = score_label(split_method(method)[1]), patch_count(method)
    return score if patches is None else f"{patches}: {score}"


def _draw_circles(axis: "Axes", shown: "pd.DataFrame") -> None:
    from matplotlib.colors import to_rgba_array

    axis.scatter(
        shown["milliseconds"],
        shown["auroc"],
        s=(2 * shown["radius"]) ** 2,
        facecolor=to_rgba_array(shown["colour"], SHADE),
        edgecolor=shown["colour"],
        linewidth=0.8,
    )
    axis.set_xscale("log")
    axis.margins(x=0.4, y=0.1)
    axis.grid(which="major")
    percent_axis(axis)
    _plain_ticks(axis)


def _label_circles(axis: "Axes", shown: "pd.DataFrame") -> None:
    """Each label near its circle, with a line to it where it had to go further away."""
    from matplotlib.colors import to_rgb

    unit = 72 / DPI
    style: Any = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 6.5}
    style["bbox"] = {"pad": 0, "facecolor": "none", "edgecolor": "none"}  # the line begins at its edge
    notes = [
        axis.annotate(
            row.label,
            (row.milliseconds, row.auroc),
            (0, 0),
            color=0.7 * np.array(to_rgb(row.colour)),
            arrowprops={"arrowstyle": "-", "color": row.colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": row.radius},
            **style,
        )
        for row in shown.itertuples()
    ]
    extents = [note.get_window_extent() for note in notes]
    sizes = np.array([(extent.width + 2, 0.9 * extent.height) for extent in extents]).reshape(-1, 2) * unit
    left, bottom, right, top = np.array(axis.get_window_extent().extents) * unit
    marks = axis.transData.transform(shown[["milliseconds", "auroc"]].to_numpy()) * unit
    centres = place_labels(marks, shown["radius"].to_numpy(), sizes, (left, bottom, right, top))
    for note, radius, step, size in zip(notes, shown["radius"], centres - marks, sizes, strict=True):
        note.set_position(tuple(step))
        outside = 1 - np.min(size / 2 / np.maximum(np.abs(step), 1e-9))  # share of the line that is not in the label
        if note.arrow_patch and outside * np.linalg.norm(step) - radius <= LONG:
            note.arrow_patch.set_visible(False)


def _add_legend(figure: "Figure", circles: "pd.DataFrame", *, columns: int) -> None:
    """The colour of each encoder, and how large it is."""
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=2 * row.radius,
            markerfacecolor=to_rgba(row.colour, SHADE),
            markeredgecolor=row.colour,
            markeredgewidth=0.8,
            label=row.encoder if np.isnan(row.parameters) else f"{row.encoder}, {row.parameters / 1e6:.1f} M",
        )
        for row in circles.drop_duplicates("encoder").itertuples()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, title="network, parameters")


def _plain_ticks(axis: "Axes") -> None:
    """1, 3, 10, 30 and not powers; more of them where the range is small."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high / low > 50 else (1, 2, 3, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
