"""All figures of a report, and the files that hold them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from discopatch.benchmark.figures.choose import main_methods
from discopatch.benchmark.figures.corruptions import corruption_figure
from discopatch.benchmark.figures.histograms import histogram_figure
from discopatch.benchmark.figures.latency import latency_figure
from discopatch.benchmark.figures.patchcounts import counted, patch_figure
from discopatch.benchmark.figures.protocols import protocol_figure
from discopatch.benchmark.figures.roc import roc_figure
from discopatch.benchmark.figures.scores import Scores
from discopatch.benchmark.figures.style import save
from discopatch.benchmark.figures.umap import Features, embed, umap_figure
from discopatch.benchmark.tables.find import Report, look, protocols

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figures(
    folder: Path,
    report: Report,
    scores: Scores,
    *,
    features: Features | None = None,
    studies: Report | None = None,
    losses: Path | None = None,
) -> list[Path]:
    """Each as PNG and PDF; the map needs the discriminator's mean features of each set.

    studies, losses: the figures of the studies and their losses.csv, which are drawn too.
    """
    paths = []
    for name, figure in figures(report, scores):
        paths += save(figure, folder / name)
    if features:
        paths += save(umap_figure(embed(features)), folder / "umap")
    if studies:
        from discopatch.benchmark.studies.pictures import study_figures  # here, as it draws with what lies beside us

        for name, figure in study_figures(studies, losses):
            paths += save(figure, folder / name)
    return paths


def figures(report: Report, scores: Scores) -> Iterator[tuple[str, "Figure"]]:
    """One after the other, so that they need not all be held."""
    chosen = main_methods(report)
    if len(protocols(report)) > 1:
        yield "protocols", protocol_figure(report, chosen[:3])
    for protocol in protocols(report):
        yield f"latency-{protocol}", latency_figure(report, protocol)
        yield f"roc-{protocol}", roc_figure(report, scores, protocol, chosen)
        yield f"histograms-{protocol}", histogram_figure(report, scores, protocol, chosen[:3])
        if look(report, "protocols", protocol, "corruptions"):
            yield f"corruptions-{protocol}", corruption_figure(report, protocol, chosen)
        if counts := counted(report, protocol):
            yield f"patches-{protocol}", patch_figure(counts)
