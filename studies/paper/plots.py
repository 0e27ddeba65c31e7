"""The figures of docs/studies.md."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from discopatch.bench.labels import group_label
from discopatch.bench.plots.style import (
    CHANCE,
    GREY,
    LINES,
    MARKERS,
    ONE_COLUMN,
    TWO_COLUMNS,
    colour,
    doubling_axis,
    interval_line,
    new_figure,
    percent_axis,
    plot_style,
    shared_legend,
)
from paper.losses import losses_figure, read_all_losses
from paper.plan import WITH_SPECTRA
from paper.results import Results, get_part, get_section
from paper.tables import GROUPS, HEADS, LAYERS, SCORES, head_label, score_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Triple = Sequence[float]  # value, low, high
Dot = tuple[str, str, float, float, float]  # label, group, value, low, high

DOT_SPREAD = 0.6  # share of a line over which its groups stand
LOSS_WINDOW = 15  # lines of losses.csv, which is thinned already


def study_figures(results: Results, losses: Path | None = None) -> Iterator[tuple[str, "Figure"]]:
    """Those that can be drawn, by name; `losses` is the losses.csv beside studies.json."""
    if layer_dots(results):
        yield "normalisation", layers_figure(results)
    for name, run in get_section(results, "batch normalisation").items():
        yield f"batchnorm-{name}", batchnorm_figure(run)
    for name, run in get_section(results, "patch counts").items():
        yield f"patchcounts-{name}", patch_counts_figure(run["counts"])
    for name, run in get_section(results, "spectra").items():
        yield f"spectra-{name}", spectra_figure(run["curves"])
    if losses is not None and (runs := read_all_losses(losses)):
        chosen = {name: each for name, each in runs.items() if name in WITH_SPECTRA} or runs
        yield "losses", losses_figure(chosen, window=LOSS_WINDOW)


@plot_style()
def layers_figure(results: Results) -> "Figure":
    """AUROC of every layer by every score; scores are separated by lines, and a line marks chance."""
    dots = layer_dots(results)
    figure = dots_figure([dot for _, dot in dots], width=TWO_COLUMNS)
    (axis,) = figure.axes
    lines = [*dict.fromkeys((score, dot[0]) for score, dot in dots)]
    for place, (score, before) in enumerate(pairwise(score for score, _ in lines), start=1):
        if score != before:
            axis.axhline(place - 0.5, color=GREY, linewidth=0.8)
    axis.axvline(CHANCE, color=GREY, linewidth=0.6, linestyle=":", zorder=0.5)
    figure.set_size_inches(TWO_COLUMNS, 0.75 + 0.32 * len(lines))
    return figure


def layer_dots(results: Results) -> list[tuple[str, Dot]]:
    """(score, dot) of every layer by every score; layers by the same score follow each other."""
    return [
        (score, (f"{score_label(score, results)}: {title}", group_label(group), *figure))
        for score in SCORES
        for name, title in LAYERS.items()
        for group in GROUPS
        if (figure := get_part(results, "evaluation", name, "groups", group, score)) is not None
    ]


@plot_style()
def dots_figure(dots: Sequence[Dot], *, width: float = ONE_COLUMN) -> "Figure":
    """Values with their intervals: a line for each label from top to bottom, a colour for each group."""
    labels, groups = [*dict.fromkeys(dot[0] for dot in dots)], [*dict.fromkeys(dot[1] for dot in dots)]
    step = DOT_SPREAD / max(1, len(groups))
    figure, ((axis,),) = new_figure(width, 0.75 + (0.16 + 0.1 * len(groups)) * max(1, len(labels)))
    for place, group in enumerate(groups):
        own = [dot for dot in dots if dot[1] == group]
        axis.errorbar(
            [value for *_, value, _, _ in own],
            [labels.index(dot[0]) + step * (place - (len(groups) - 1) / 2) for dot in own],
            xerr=[[value - low for *_, value, low, _ in own], [high - value for *_, value, _, high in own]],
            fmt=MARKERS[place % len(MARKERS)],
            color=colour(place),
            markersize=4,
            elinewidth=1,
            capsize=1.5,
            label=group,
        )
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    for edge in range(1, len(labels)):
        axis.axhline(edge - 0.5, color="#e6e6e6", linewidth=0.5)
    axis.set_xlabel("AUROC (%)")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")
    percent_axis(axis, x=True)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@plot_style()
def batchnorm_figure(run: Results) -> "Figure":
    """A panel for each group: AUROC by batch size, of batches of one kind of images and of both, and as learned."""
    groups = run["learned"]
    figure, (axes,) = new_figure(TWO_COLUMNS, 2.6, columns=max(1, len(groups)), sharey=True)
    kinds = {"batch": "batches of one kind (normal or shifted)", "half": "batches of both kinds"}
    for axis, group in zip(axes, groups, strict=False):
        lines = {kind: auroc_by_size(run.get(kind) or {}, group) for kind in kinds}
        for place, (kind, label) in enumerate(kinds.items()):
            if lines[kind]:
                interval_line(axis, lines[kind], label, place)
        value, low, high = groups[group]["auroc"]
        axis.axhline(value, color=colour(2), linestyle="--", label="learned statistics")
        axis.axhspan(low, high, color=colour(2), alpha=0.12, linewidth=0)
        doubling_axis(axis, {int(size) for line in lines.values() for size in line}, "images in a batch")
        axis.set_title(group_label(group))
    axes[0].set_ylabel("AUROC (%)")
    shared_legend(figure, axes, columns=3)
    return figure


def auroc_by_size(figures: Results, group: str) -> dict[str, Triple]:
    return {size: each[group]["auroc"] for size, each in figures.items() if group in each}


@plot_style()
def patch_counts_figure(counts: Results) -> "Figure":
    """A panel for each group: AUROC by the number of patches, a line for each head."""
    figure, (axes,) = new_figure(TWO_COLUMNS, 2.6, columns=len(GROUPS), sharey=True)
    for axis, group in zip(axes, GROUPS, strict=True):
        for place, head in enumerate(HEADS):
            figures = {count: get_part(each, group, head) for count, each in counts.items()}
            if line := {count: each for count, each in figures.items() if each is not None}:
                interval_line(axis, line, head_label(head), place)
        doubling_axis(axis, map(int, counts), "patches an image")
        axis.set_title(group_label(group))
    axes[0].set_ylabel("AUROC (%)")
    shared_legend(figure, axes, columns=len(HEADS))
    return figure


@plot_style()
def spectra_figure(curves: Mapping[str, Sequence[float]]) -> "Figure":
    """A line for each kind of patches: {"frequencies": [...], "real": [...], "reconstructed": [...], ...}."""
    figure, ((axis,),) = new_figure(ONE_COLUMN, 2.5)
    for place, name in enumerate(name for name in curves if name != "frequencies"):
        line = LINES[place % len(LINES)]
        axis.plot(curves["frequencies"], curves[name], color=colour(place), linestyle=line, label=name)
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.set_xlim(0, 0.5)
    axis.set_xlabel("frequency (cycles a pixel)")
    axis.set_ylabel("power")
    axis.grid(which="major")
    axis.legend()
    return figure
