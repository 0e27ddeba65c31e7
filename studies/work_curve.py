"""AUROC against work: docs/images/work.png and a table of docs/performance.md, from stored results of the same images.

python studies/work_curve.py                 # docs/results/work-*.json -> docs/images/work.png, and a table

How the results were made, for S in natural (with --data, --fit-images 600) and solar, with each of the weights:
discopatch bench --suite S --protocol matched --severity 3 -o work-S --weights natural-v1 \\
    --methods 'discopatch/*,discopatch-4/*,discopatch-16/*,discopatch-64/*'
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from common import check_digests, interval_text
from discopatch.bench.cost import multiplications
from discopatch.bench.labels import patch_count, split_method
from discopatch.bench.plots.style import (
    MARKERS,
    PALE,
    TWO_COLUMNS,
    colour,
    new_figure,
    percent_axis,
    plot_style,
    save_figure,
    shared_legend,
)
from discopatch.bench.tables.writers import markdown_table
from discopatch.model import Architecture
from discopatch.pretrained import DEFAULT_WEIGHTS, FIRST_WEIGHTS, SMALL_WEIGHTS, load_pretrained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = ("combined", "statistics", "logit")
SUITES = ("natural", "solar")
WEIGHTS = {"": DEFAULT_WEIGHTS, "-v1": FIRST_WEIGHTS, "-small": SMALL_WEIGHTS}  # by the ending of their results


class WorkPoint(NamedTuple):
    """One way to pass an image through the discriminator: its work, and AUROC (value, low, high) by head."""

    name: str  # such as "64 patches"
    gmac: float
    corrupted: Mapping[str, Sequence[float]]  # by head
    near: Sequence[float]  # of the combined head

    @property
    def of_patches(self) -> bool:
        return self.name.endswith("patches")


def main(
    results: Annotated[Path, typer.Option(help="With work-S.json and work-S-small.json.")] = Path("docs/results"),
    out: Annotated[Path, typer.Option(help="The figure, without its ending.")] = Path("docs/images/work"),
) -> None:
    """Writes the figure and prints the table."""
    suites = {suite: suite_points(results, suite) for suite in SUITES}
    rows = [
        [suite, point.name, f"{point.gmac:.2f}"]
        + [interval_text(each, scale=100, digits=1) for each in (point.near, *map(point.corrupted.get, HEADS)) if each]
        for suite, points in suites.items()
        for point in points
    ]
    headings = ["suite", "pass", "GMAC", "near: combined", *(f"corrupted: {head}" for head in HEADS)]
    print(markdown_table(headings, rows))
    save_figure(work_figure(suites), out, ["png"])


def suite_points(folder: Path, suite: str) -> list[WorkPoint]:
    """With all pretrained weights, by their work; the passes of patches are those of the paper's architecture."""
    points = []
    for suffix, name in WEIGHTS.items():
        path, weights = folder / f"work-{suite}{suffix}.json", load_pretrained(name)
        results = json.loads(path.read_text(encoding="utf-8"))
        check_digests(weights.digest, {path.name: results})
        architecture = weights.discriminator.architecture
        found = work_points(results, architecture, size=weights.transform.size, dense=name)
        points += [point for point in found if name == FIRST_WEIGHTS or not point.of_patches]
    return sorted(points, key=lambda point: point.gmac)


def work_points(results: Mapping[str, Any], architecture: Architecture, *, size: int, dense: str) -> list[WorkPoint]:
    """Those passes of one benchmark that have all heads, by their work; the dense pass goes by the name `dense`."""
    means = results["protocols"]["matched"]["means"]
    points = []
    for encoder in dict.fromkeys(split_method(method)[0] for method in means["covariate"]):
        aurocs = {head: means["covariate"].get(f"{encoder}/{head}", {}).get("auroc") for head in HEADS}
        if None in aurocs.values():
            continue
        count = patch_count(f"{encoder}/")
        gmac = multiplications(architecture, size=size, patches=count) / 1e9
        near = means["near"][f"{encoder}/combined"]["auroc"]
        points.append(WorkPoint(dense if count is None else f"{count} patches", gmac, aurocs, near))
    return sorted(points, key=lambda point: point.gmac)


@plot_style()
def work_figure(suites: Mapping[str, Sequence[WorkPoint]]) -> "Figure":
    """A panel for each suite: random patches as a line, passes over the whole image as single marks."""
    figure, (axes,) = new_figure(TWO_COLUMNS, 2.9, columns=len(suites), sharey=True)
    for axis, (suite, points) in zip(axes, suites.items(), strict=True):
        for place, head in enumerate(HEADS):
            draw_head(axis, points, head, place)
        for gmac in {point.gmac for point in points}:
            names = " / ".join(point.name for point in points if point.gmac == gmac)
            axis.axvline(gmac, color=PALE, linewidth=0.5, zorder=0)
            axis.annotate(names, (gmac, 1.01), xycoords=("data", "axes fraction"), rotation=35, fontsize=6.5)
        axis.set_xscale("log")
        axis.set_xticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
        axis.minorticks_off()
        axis.set_xlabel(f"billion multiplications an image ({suite})")
        percent_axis(axis)
    axes[0].set_ylabel("AUROC on corrupted images (%)")
    shared_legend(figure, axes, columns=len(HEADS))
    return figure


def draw_head(axis: "Axes", points: Sequence[WorkPoint], head: str, place: int) -> None:
    """Hollow marks on a line for patches, full ones for whole images, all with their intervals."""
    shade, patches = colour(place), [point for point in points if point.of_patches]
    axis.plot([p.gmac for p in patches], [p.corrupted[head][0] for p in patches], color=shade, linewidth=0.9)
    for point in points:
        value, low, high = point.corrupted[head]
        axis.errorbar(
            point.gmac,
            value,
            [[value - low], [high - value]],
            color=shade,
            marker=MARKERS[place],
            markersize=4.5,
            markerfacecolor="white" if point.of_patches else shade,
            linewidth=0.8,
            capsize=1.5,
            label=f"_{head}" if point.of_patches else head,
        )


if __name__ == "__main__":
    typer.run(main)
