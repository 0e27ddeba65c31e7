"""The figures of docs/monitoring.md."""

from typing import TYPE_CHECKING

import numpy as np

from discopatch.bench.plots.style import ONE_COLUMN, TWO_COLUMNS, colour, new_figure, plot_style
from monitored.streams import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("0.5 sd higher", "1 sd higher", "2 sd higher", "1 sd lower", "5 % far off", "frozen")


def draw(content: Row) -> "dict[str, Figure]":
    found = {}
    if "compare" in content:
        found["compare"] = compare_figure(content["compare"])
    if any(name.startswith("delays/") for name in content):
        found["delays"] = delay_figure(content)
    if "trace/solar" in content:
        found["stream"] = stream_figure(content)
    return found


@plot_style()
def delay_figure(content: Row) -> "Figure":
    """Median delay of each change, a line for each number of calibration images, by when the change begins."""
    columns = sorted(
        (int(name.split("/")[1]), int(name.split("/")[2])) for name in content if name.startswith("delays/")
    )
    figure, (axes,) = new_figure(TWO_COLUMNS, 2.2, columns=len(SHOWN), sharey=True)
    afters = sorted({after for _, after in columns})
    for axis, kind in zip(axes, SHOWN, strict=True):
        for place, n in enumerate(sorted({n for n, _ in columns})):
            points = [
                (afters.index(after), content[f"delays/{n}/{after}"][kind]["median"]) for m, after in columns if m == n
            ]
            known = [(x, y) for x, y in points if y is not None]
            axis.plot(*zip(*known, strict=True), marker="o", markersize=3, color=colour(place), label=f"n = {n}")
        axis.set_yscale("log")
        axis.set_xticks(range(len(afters)), [f"{each // 1000}k" if each else "0" for each in afters])
        axis.set_xlim(-0.3, len(afters) - 0.7)
        axis.set_title(kind, fontsize=7.5)
        axis.grid(axis="y")
    figure.supxlabel("normal images before the change", fontsize=8)
    axes[0].set_ylabel("images until the alarm (median)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


@plot_style()
def compare_figure(content: Row) -> "Figure":
    """False alarms against delay after the normal images, one point a method."""
    figure, ((axis,),) = new_figure(ONE_COLUMN * 1.4, 3.4)
    column = next(name for name in next(iter(content.values())) if name.startswith("1 sd after 1"))
    for place, (name, row) in enumerate(content.items()):
        median = row[column]["median"]
        if median is not None:
            tuned = "tuned" in name
            axis.plot(
                [max(row["false"] / row["streams"], 2e-3)],
                [median],
                marker="s" if tuned else "o",
                markersize=8 if name == "monitor" else 5,
                color=colour(place % 4 if place < 4 else place - 3),
                linestyle="none",
                label=name,
            )
    axis.axvline(0.01, color="grey", linewidth=0.7, linestyle="--")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(1.5e-3, 1.3)
    axis.set_xlabel("share of normal streams of 10,000 images with an alarm")
    axis.set_ylabel("images until 1 sd is found")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


@plot_style()
def stream_figure(content: Row) -> "Figure":
    """The evidence along real streams, whose images are out of focus from the 301st on."""
    suites = [name for name in ("solar", "natural") if f"trace/{name}" in content]
    figure, (axes,) = new_figure(TWO_COLUMNS, 2.4, columns=len(suites), sharey=True)
    titles = {"solar": "solar cells", "natural": "photos"}
    for axis, suite in zip(axes, suites, strict=True):
        for place, (name, row) in enumerate(content[f"trace/{suite}"].items()):
            label = name.replace("defocus_blur, ", "")
            axis.plot(np.arange(1, len(row["log10"]) + 1), row["log10"], color=colour(place), label=label, linewidth=1)
            if row["status"]["alarm_at"] is not None:
                at = row["status"]["alarm_at"]
                axis.plot([at], [row["log10"][at - 1]], marker="o", markersize=4, color=colour(place))
        axis.axhline(2, color="grey", linewidth=0.7, linestyle="--")
        axis.axvline(300.5, color="grey", linewidth=0.7)
        axis.set_title(f"{titles[suite]}, out of focus after 300 images")
        axis.set_xlabel("image")
        axis.set_ylim(-3, 12)
    axes[0].set_ylabel("evidence (power of ten)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure
