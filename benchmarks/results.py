"""The measurement behind docs/results.md, and the page itself.

python benchmarks/results.py measure --natural FOLDER --ood FOLDER        # docs/results.json; minutes on a GPU
python benchmarks/results.py page                                         # docs/results.md from it
python benchmarks/results.py measure ... --quick --limit 4 --severity 3   # does it run? minutes on a CPU
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from discopatch.benchmark.plan import Folders, Plan

# What needs torch is imported further down: the processes that corrupt pictures read this file too.

app = typer.Typer(help=__doc__, add_completion=False)

RESULTS, PAGE = Path("docs/results.json"), Path("docs/results.md")


@app.command()
def measure(
    natural: Annotated[Path, typer.Option(help="Folder with train-*.tar and test.tar.")],
    ood: Annotated[Path, typer.Option(help="Folder with a tar shard for each set that is not photos.")],
    solar: Annotated[
        Path | None, typer.Option(help="Folder with labels.csv and images/. Default: that of the package elpv-dataset.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Default: the released ones.")] = None,
    out: Path = RESULTS,
    limit: Annotated[int | None, typer.Option(help="At most so many test images of each set.")] = None,
    severity: Annotated[list[int] | None, typer.Option(help="May be given several times. Default: all.")] = None,
    paper_severity: Annotated[
        list[int] | None, typer.Option(help="At which the paper's own way is measured too. Default: 1, 3, 5.")
    ] = None,
    corruption: Annotated[list[str] | None, typer.Option(help="May be given several times. Default: all.")] = None,
    natural_quality: Annotated[
        int,
        typer.Option(help="JPEG quality of the photos to fit on, at which all others are stored too; 0: as they come."),
    ] = 92,
    quick: Annotated[bool, typer.Option("--quick", help="Fit on few images: only to see that it runs.")] = False,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that corrupt pictures.")] = os.cpu_count() or 1,
    seed: int = 0,
) -> None:
    """Measures everything and writes one JSON, again after each section."""
    from discopatch.benchmark.plan import Folders, Plan
    from discopatch.benchmark.routes import Storage
    from discopatch.benchmark.reading import solar_folder

    plan = Plan(seed=seed, limit=limit, natural_storage=Storage(natural_quality or None))
    plan = plan.quick() if quick else plan
    plan = plan.only(corruptions=corruption, severities=severity, paper_severities=paper_severity)
    run(plan, Folders(solar_folder(solar), natural, ood), out, weights=weights, device=device, workers=workers)


def run(plan: "Plan", folders: "Folders", out: Path, *, weights: Path | None, device: str, workers: int) -> None:
    """With the processes started first, as they must be before a GPU is touched."""
    from discopatch.benchmark.bench import Bench
    from discopatch.benchmark.pool import Pool
    from discopatch.benchmark.results import measure
    from discopatch.files import write_json
    from discopatch.model.weights import Weights
    from discopatch.weights import DEFAULT

    with Pool(workers, frost="frost" in plan.corruptions) as pool, progress() as bar:
        task = bar.add_task("starting", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        bench = Bench(DEFAULT if weights is None else Weights.load(weights), plan, pool, device, tell)
        for report in measure(bench, folders):
            write_json(out, report)
        bar.update(task, description=f"wrote {out}")


def progress() -> Progress:
    """A line with what is being done, how far it is, and how long it takes."""
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn())


@app.command()
def page(results: Path = RESULTS, out: Path = PAGE) -> None:
    """Writes the page from the stored figures; measures nothing."""
    import json

    from discopatch.benchmark.page import render
    from discopatch.files import write_atomically

    text = render(json.loads(results.read_text()))
    write_atomically(out, lambda beside: beside.write_text(text))


if __name__ == "__main__":
    app()
