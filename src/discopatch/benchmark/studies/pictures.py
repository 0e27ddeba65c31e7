"""The figures of the studies."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from discopatch.benchmark.figures.batchnorm import batchnorm_figure
from discopatch.benchmark.figures.dots import Row, dots_figure
from discopatch.benchmark.figures.losses import losses_figure
from discopatch.benchmark.figures.patchcounts import Counts, patch_figure
from discopatch.benchmark.figures.spectra import spectra_figure
from discopatch.benchmark.figures.style import GREY, TWO_COLUMNS
from discopatch.benchmark.studies.bias import by_group
from discopatch.benchmark.studies.losses import unfold
from discopatch.benchmark.studies.names import GROUPS, HEADS, LAYERS, SCORES, head_name, score_name
from discopatch.benchmark.studies.plan import SPECTRA
from discopatch.benchmark.tables.find import Report, look
from discopatch.benchmark.tables.labels import group_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GUESS = 0.5
LINE = 0.32  # inches for a line of dots
WINDOW = 15  # lines of losses.csv, which is thinned already


def study_figures(report: Report, losses: Path | None = None) -> Iterator[tuple[str, "Figure"]]:
    """Those that can be made, by name; `losses` is the losses.csv beside studies.json."""
    if rows := layer_rows(report):
        yield "normalisation", layers_figure(rows)
    for name, found in (report.get("batch normalisation") or {}).items():
        yield f"batchnorm-{name}", batchnorm_figure(by_group(found))
    for name, found in (report.get("patch counts") or {}).items():
        yield f"patchcounts-{name}", patch_figure(counted(found["counts"]))
    for name, found in (report.get("spectra") or {}).items():
        yield f"spectra-{name}", spectra_figure(found["curves"])
    if losses is not None:
        yield from loss_figures(losses)


def layers_figure(rows: Sequence[tuple[str, Row]]) -> "Figure":
    """Scores stand apart, and so does what a guess gives."""
    figure = dots_figure([row for _, row in rows], width=TWO_COLUMNS)
    (axis,) = figure.axes
    scores = list(dict.fromkeys((score, row[0]) for score, row in rows))  # one for each line of dots
    for place, (score, before) in enumerate(pairwise(score for score, _ in scores), start=1):
        if score != before:
            axis.axhline(place - 0.5, color=GREY, linewidth=0.8)
    axis.axvline(GUESS, color=GREY, linewidth=0.6, linestyle=":", zorder=0.5)
    figure.set_size_inches(TWO_COLUMNS, 0.75 + LINE * len(scores))
    return figure


def layer_rows(report: Report) -> list[tuple[str, Row]]:
    """Every layer by every score, with the score; layers by the same score below each other."""
    return [
        (score, (f"{score_name(score, report)}: {title}", group_label(group), *figure))
        for score in SCORES
        for name, title in LAYERS.items()
        for group in GROUPS
        if (figure := look(report, "evaluation", name, "groups", group, score)) is not None
    ]


def counted(counts: Report) -> Counts:
    """By group and head, as a picture wants it."""
    return {
        group: {
            head_name(head): {
                count: each[group][head] for count, each in counts.items() if look(each, group, head) is not None
            }
            for head in HEADS
        }
        for group in GROUPS
    }


def loss_figures(losses: Path) -> Iterator[tuple[str, "Figure"]]:
    """Of both recipes with the first seed; of all runs where there is neither."""
    with TemporaryDirectory() as folder:
        runs = unfold(losses, Path(folder))
        chosen = {name: path for name, path in runs.items() if name in SPECTRA} or runs
        if chosen:
            yield "losses", losses_figure(chosen, window=WINDOW)
