"""AUROC against work: a figure and a table, from stored results of the same images.

python benchmarks/work_curve.py                 # docs/results/work-*.json -> docs/images/work.png, and a table

How the results were made, for S in natural (with --data, --fit-images 600, --test-images 300) and solar:
discopatch bench --suite S --protocol matched --severity 3 -o work-S \\
    --methods 'discopatch/*,discopatch-4/*,discopatch-16/*,discopatch-64/*'
discopatch bench --suite S --protocol matched --severity 3 -o work-S-small \\
    --methods 'discopatch/*' --weights natural-small-v1
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from discopatch.benchmark.card import check_digests
from discopatch.benchmark.figures.style import save
from discopatch.benchmark.figures.work import HEADS, Look, looks, work_figure
from discopatch.weights import DEFAULT, SMALL, released


def main(
    results: Annotated[Path, typer.Option(help="Folder with work-S.json and work-S-small.json.")] = Path(
        "docs/results"
    ),
    out: Annotated[Path, typer.Option(help="The figure, without its ending.")] = Path("docs/images/work"),
) -> None:
    """Writes the figure and prints the table."""
    print("| suite | look | GMAC | near: combined | " + " | ".join(f"corrupted: {head}" for head in HEADS) + " |")
    print("|---|---|---|---|---|---|---|")
    suites = {suite: all_looks(results, suite) for suite in ("natural", "solar")}
    for suite, ways in suites.items():
        for way in ways:
            cells = [way.near, *(way.corrupted[head] for head in HEADS)]
            print(f"| {suite} | {way.name} | {way.gmac:.2f} | " + " | ".join(map(percent, cells)) + " |")
    save(work_figure(suites), out, ["png"])


def all_looks(results: Path, suite: str) -> list[Look]:
    """With both released weights, by their work."""
    found = []
    for name, weights, dense in (("", DEFAULT, "dense"), ("-small", SMALL, "small, dense")):
        report = json.loads((results / f"work-{suite}{name}.json").read_text(encoding="utf-8"))
        chosen = released(weights)
        check_digests(chosen.digest, {f"work-{suite}{name}.json": report})
        found += looks(report, chosen.discriminator.architecture, size=chosen.transform.size, dense=dense)
    return sorted(found, key=lambda way: way.gmac)


def percent(figure: Sequence[float]) -> str:
    """Value and interval, times 100."""
    value, low, high = (100 * each for each in figure)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    typer.run(main)
