"""The paper's own studies, run again: normalisation layers, batch statistics, patch counts, seeds, spectra.

python benchmarks/studies.py run --data FOLDER --out FOLDER              # studies.json; half an hour on a GPU
python benchmarks/studies.py run --data FOLDER --out FOLDER --only counts --only bias   # some pieces
python benchmarks/studies.py run --data FOLDER --out FOLDER --tiny       # does it run? half a minute on a CPU
python benchmarks/studies.py page FOLDER                                 # docs/studies.md from it, and its figures

FOLDER holds natural/train-*.tar, natural/test.tar and ood/NAME.tar. The same command again goes on where the last one
stopped: with --max-minutes it stops by itself. Trainings, pictures and results are kept in --work.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

# What needs torch is imported further down: the processes that prepare pictures read this file too.

app = typer.Typer(help=__doc__, add_completion=False)

PAGE = Path("docs/studies.md")


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    out: Annotated[Path, typer.Option(help="Where studies.json, losses.csv and samples go.")],
    work: Annotated[Path, typer.Option(help="Trainings and prepared pictures, some 10 GB.")] = Path("studies-work"),
    only: Annotated[
        list[str] | None, typer.Option(help="train, evaluate, counts, bias, spectra or losses; several times for more.")
    ] = None,
    runs: Annotated[
        list[str] | None, typer.Option("--run", help="Such as paper-0; several times. Default: all.")
    ] = None,
    patches_in_all: Annotated[int | None, typer.Option(help="That each training sees. Default: a million.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Of the recipes paper and natural. Default: 5.")] = None,
    severity: Annotated[list[int] | None, typer.Option(help="Of the evaluation. Default: 1, 3 and 5.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many test images of each set.")] = None,
    count_pictures: Annotated[int | None, typer.Option(help="Of each set, for patch counts. Default: 150.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of scoring on a GPU: tf32, fp32 or fp16. Default: tf32.")
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after so long; what is done is stored.")] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Tiny networks and few pictures: only to see that it runs.")
    ] = False,
    compile: Annotated[bool | None, typer.Option(help="Fused, compiled passes (yes on a GPU).")] = None,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare pictures.")] = max(1, (os.cpu_count() or 1) - 2),
) -> None:
    """Trains and measures what is not there yet, and writes the results again after each piece."""
    from rich.console import Console

    from discopatch.benchmark.studies.clock import Clock, OutOfTime
    from discopatch.benchmark.studies.everything import PIECES, Choice, Studies
    from discopatch.benchmark.studies.plan import Plan
    from discopatch.benchmark.studies.training import School
    from discopatch.training.machine import Machine

    plan = (Plan.tiny() if tiny else Plan()).only(
        patches_in_all=patches_in_all,
        seeds=seeds,
        severities=tuple(severity or ()),
        limit=limit,
        count_pictures=count_pictures,
        precision=precision,
    )
    console = Console(stderr=True, soft_wrap=True)
    clock = Clock(max_minutes, say=console.print)
    shards = sorted(map(str, (data / "natural").glob("train-*.tar")))
    machine = Machine(accelerator="auto" if device == "auto" else device, compile=compile)
    out.mkdir(parents=True, exist_ok=True)
    school = School(tuple(shards), work, machine, console)
    studies = Studies(plan, data, out, school, clock, device=device, workers=workers)
    try:
        studies.conduct(Choice(tuple(only or PIECES), tuple(runs or ())))
    except OutOfTime as over:
        clock.tell(str(over))
    if studies.ledger.report.get("failed"):
        raise typer.Exit(1)


@app.command()
def page(
    results: Annotated[Path, typer.Argument(help="studies.json or its folder.")],
    out: Annotated[Path, typer.Option(help="The page.")] = PAGE,
    figures: Annotated[Path | None, typer.Option(help="Where its pictures go (images/studies beside it).")] = None,
) -> None:
    """Writes the page and its figures from what is stored; measures nothing."""
    from discopatch.benchmark.figures.style import save
    from discopatch.benchmark.studies.page import render
    from discopatch.benchmark.studies.pictures import study_figures
    from discopatch.benchmark.studies.stored import Stored
    from discopatch.files import write_atomically

    stored, folder = Stored.read(results), figures or out.parent / "images" / "studies"
    pictures = {}
    for name, figure in study_figures(stored.report, stored.losses):
        (path,) = save(figure, folder / name, ["png"])
        pictures[name] = Path(os.path.relpath(path, out.parent)).as_posix()
    text = render(stored.report, pictures)
    write_atomically(out, lambda beside: beside.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    app()
