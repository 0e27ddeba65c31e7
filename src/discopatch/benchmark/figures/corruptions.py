"""AUROC of every corruption at every severity as colours, methods side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from discopatch.benchmark.figures.scores import Array
from discopatch.benchmark.figures.style import TWO_COLUMNS, new, printed, readable_on
from discopatch.benchmark.tables.find import Report, look, severities
from discopatch.benchmark.tables.labels import corruption_label, short_label
from discopatch.images.corrupt import CORRUPTIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWEST, HIGHEST = 0.5, 1.0
COLOURS = "cividis"  # the same to the colour-blind, and lighter for more


def corruption_figure(report: Report, protocol: str, methods: Sequence[str]) -> "Figure":
    """A panel for each method; the last row and column are means."""
    found = look(report, "protocols", protocol, "corruptions") or {}
    order = {name: place for place, name in enumerate(CORRUPTIONS)}  # families together
    names = sorted(found, key=lambda name: order.get(name, len(order)))
    levels = severities(found)
    with printed():
        height = 0.95 + 0.165 * (len(names) + 1)
        figure, (axes,) = new(TWO_COLUMNS, height, columns=len(methods), sharey=True)
        for axis, method in zip(axes, methods, strict=True):
            cells = np.array([[value(found, name, level, method) for level in levels] for name in names])
            heat(axis, with_means(cells.reshape(len(names), len(levels))))
            axis.set_xticks(range(len(levels) + 1), [*levels, "mean"])
            axis.set_title(short_label(method).replace(" (", "\n("), fontsize=7.5)
            axis.set_xlabel("severity")
        axes[0].set_yticks(range(len(names) + 1), [*map(corruption_label, names), "mean"])
        bar(figure, axes)
    return figure


def value(found: Report, name: str, level: str, method: str) -> float:
    """AUROC; not a number where it was not measured."""
    figure = look(found, name, level, method, "auroc")
    return np.nan if figure is None else figure[0]


def with_means(cells: Array) -> Array:
    """One row and one column more, over what was measured."""
    known = np.isfinite(cells)
    total = np.where(known, cells, 0)

    def mean(axis: int | None) -> Array:
        count = known.sum(axis)
        found: Array = np.where(count > 0, total.sum(axis) / np.maximum(count, 1), np.nan)
        return found

    rows = np.concatenate([cells, mean(1)[:, None]], axis=1)
    last = np.append(mean(0), mean(None))
    return np.concatenate([rows, last[None]], axis=0)


def heat(axis: "Axes", cells: Array) -> None:
    """Colours with figures in them, a thin line before the means."""
    picture = axis.imshow(cells, cmap=COLOURS, vmin=LOWEST, vmax=HIGHEST, aspect="auto")
    for (row, column), cell in np.ndenumerate(cells):
        if np.isfinite(cell):
            ink = readable_on(picture.to_rgba(np.asarray(cell)))
            axis.text(column, row, f"{100 * cell:.0f}", ha="center", va="center", fontsize=6, color=ink)
    axis.axhline(cells.shape[0] - 1.5, color="white", linewidth=1.5)
    axis.axvline(cells.shape[1] - 1.5, color="white", linewidth=1.5)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def bar(figure: "Figure", axes: Sequence["Axes"]) -> None:
    """What the colours mean."""
    picture = axes[0].get_images()[0]
    legend = figure.colorbar(picture, ax=list(axes), location="bottom", shrink=0.5, aspect=40, pad=0.02, extend="min")
    legend.set_ticks([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], labels=["50", "60", "70", "80", "90", "100"])
    legend.set_label("AUROC (%)")
    legend.outline.set_visible(False)
