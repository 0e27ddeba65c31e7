"""Calibration checks: false alarms on random splits, fits on few images, the effect of storage; and their page.

python studies/calibration_check.py measure --data FOLDER            # docs/results/calibration.json; a minute on a GPU
python studies/calibration_check.py measure --data FOLDER --quick    # does it run? minutes on a CPU
python studies/calibration_check.py page                             # docs/calibration.md from it

FOLDER holds natural/train-*.tar, natural/test.tar and ood/NAME.tar.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

# What needs torch is imported further down: the processes that prepare images import this file too.

RESULTS, PAGE = Path("docs/results/calibration.json"), Path("docs/calibration.md")

app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def measure(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    solar: Annotated[
        Path | None, typer.Option(help="Folder with labels.csv and images/. Default: that of the package elpv-dataset.")
    ] = None,
    out: Path = RESULTS,
    quick: Annotated[bool, typer.Option("--quick", help="Few images: only to see that it runs.")] = False,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare images.", min=1)] = os.cpu_count() or 1,
) -> None:
    """Measures everything and writes one JSON, again after each section."""
    from rich.console import Console

    from calibration.measure import FeatureReader, Sizes, run_checks
    from discopatch.bench.pool import CorruptionPool
    from discopatch.cli.bench import bench_progress
    from discopatch.pretrained import load_pretrained
    from discopatch.utils import write_json

    sizes = Sizes.quick() if quick else Sizes()
    console = Console(stderr=True)
    with CorruptionPool(workers, frost="frost" in sizes.corruptions) as pool, bench_progress(console) as progress:
        reader = FeatureReader(load_pretrained(), pool, device, sizes.seed, progress)
        for results in run_checks(reader, sizes, data=data, solar=solar):
            write_json(out, results)
    console.print(f"{out}, in {results['made']['seconds']} seconds on {results['made']['device']}")


@app.command()
def page(results: Path = RESULTS, out: Path = PAGE) -> None:
    """Writes the page from the stored results; measures nothing."""
    import json

    from calibration.page import calibration_page
    from common import write_text

    write_text(out, calibration_page(json.loads(results.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    app()
