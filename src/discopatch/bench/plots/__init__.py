"""The results of a benchmark as plots for print, PNG and PDF."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from discopatch.bench.labels import is_ours, patch_count, split_method
from discopatch.bench.plots.latency import latency_plot
from discopatch.bench.plots.metric_plots import corruption_plot, patch_count_plot, patch_counts, protocol_plot
from discopatch.bench.plots.score_plots import Points, Scores, histogram_plot, roc_plot, umap_plot, umap_points
from discopatch.bench.plots.style import save_figure
from discopatch.bench.preprocessing import SLIP_MARK
from discopatch.bench.tables.frame import (
    MEAN,
    Results,
    method_names,
    protocol_names,
    results_frame,
    set_groups,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["main_methods", "write_plots"]


def write_plots(folder: Path, results: Results, scores: Scores, features: Points | None = None) -> list[Path]:
    """Writes each plot as PNG and PDF into the folder, and returns the paths.

    scores: where the scores of images are kept, such as the run's `ScoreStore`.
    features: the discriminator's mean features of each set, (images, channels), from which a map is made.
    """
    paths = []
    for name, figure in _plots(results, scores, features):
        paths += save_figure(figure, folder / name)
    return paths


def main_methods(results: Results, count: int = 4) -> list[str]:
    """The methods that are worth a place in a plot: the reference, the paper's score, then the best of each network."""
    frame = results_frame(results)
    names, protocol = method_names(frame), protocol_names(frame)[0]
    papers = [name for name in names if split_method(name)[1] == "logit" and patch_count(name)]
    papers.sort(key=lambda name: (patch_count(name) == 64, patch_count(name)))  # 64 patches, or else the most there are
    chosen = [name for name in (results["protocols"][protocol].get("reference"), *papers[-1:]) if name in names]
    means = frame[(frame["protocol"] == protocol) & (frame["set"] == MEAN) & (frame["metric"] == "auroc")]
    overall = means.groupby("method")["value"].mean().reindex(names).fillna(0.0)
    others = sorted((name for name in names if not is_ours(name)), key=lambda name: -overall[name])
    best = {split_method(name)[0]: name for name in reversed(others)}
    others.sort(key=lambda name: name not in best.values())
    return [*dict.fromkeys([*chosen, *others, *filter(is_ours, names)])][:count]


def _plots(results: Results, scores: Scores, features: Points | None) -> Iterator[tuple[str, "Figure"]]:
    """One after the other, so that they need not all be held."""
    frame, chosen = results_frame(results), main_methods(results)
    protocols = protocol_names(frame)
    if len(protocols) > 1:
        yield "protocols", protocol_plot(frame, chosen[:3])
    for protocol in protocols:
        yield f"latency-{protocol}", latency_plot(frame, protocol)
        if SLIP_MARK not in protocol:  # with slips there may be more scores than images
            yield f"roc-{protocol}", roc_plot(frame, scores, protocol, chosen)
            yield f"histograms-{protocol}", histogram_plot(frame, scores, protocol, chosen[:3])
        if set_groups(frame[frame["protocol"] == protocol], "covariate"):
            yield f"corruptions-{protocol}", corruption_plot(frame, protocol, chosen)
        if counts := patch_counts(frame, protocol):
            yield f"patches-{protocol}", patch_count_plot(counts)
    if features:
        yield "umap", umap_plot(umap_points(features))
