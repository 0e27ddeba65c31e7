"""Whether promises are kept: false alarms, fits on few images, and what storage alone does; and the page of it.

python benchmarks/promises.py measure --data FOLDER            # docs/promises.json; a minute on a GPU
python benchmarks/promises.py measure --data FOLDER --quick    # does it run? minutes on a CPU
python benchmarks/promises.py page                             # docs/promises.md from it

FOLDER holds natural/train-*.tar, natural/test.tar and ood/NAME.tar.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

# What needs torch is imported further down: the processes that prepare pictures read this file too.

app = typer.Typer(help=__doc__, add_completion=False)

RESULTS, PAGE = Path("docs/promises.json"), Path("docs/promises.md")


@app.command()
def measure(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    solar: Annotated[
        Path | None, typer.Option(help="Folder with labels.csv and images/. Default: that of the package elpv-dataset.")
    ] = None,
    out: Path = RESULTS,
    quick: Annotated[bool, typer.Option("--quick", help="Few images: only to see that it runs.")] = False,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare pictures.", min=1)] = os.cpu_count() or 1,
) -> None:
    """Measures everything and writes one JSON, again after each section."""
    from rich.console import Console

    from discopatch.benchmark.pool import Pool
    from discopatch.benchmark.promises.measure import measure
    from discopatch.benchmark.promises.observer import Observer
    from discopatch.benchmark.promises.plan import Plan
    from discopatch.cli.benchprint import following
    from discopatch.files import write_json
    from discopatch.weights import released

    plan = Plan.quick() if quick else Plan()
    console = Console(stderr=True)
    with Pool(workers, frost="frost" in plan.corruptions) as pool, following(console) as tell:
        observer = Observer(released(), pool, device, plan.seed, tell)
        for report in measure(observer, plan, data=data, solar=solar):
            write_json(out, report)
    console.print(f"{out}, in {report['made']['seconds']} seconds on {report['made']['device']}")


@app.command()
def page(results: Path = RESULTS, out: Path = PAGE) -> None:
    """Writes the page from the stored figures; measures nothing."""
    import json

    from discopatch.benchmark.promises.page import render
    from discopatch.files import write_atomically

    text = render(json.loads(results.read_text()))
    write_atomically(out, lambda beside: beside.write_text(text))


if __name__ == "__main__":
    app()
