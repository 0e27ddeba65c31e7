"""The paper's own studies, run again: normalisation layers, batch statistics, patch counts, seeds, spectra.

python studies/paper_studies.py run --data FOLDER --out FOLDER           # studies.json; half an hour on a GPU
python studies/paper_studies.py run --data FOLDER --out FOLDER --only counts --only bias   # some parts
python studies/paper_studies.py run --data FOLDER --out FOLDER --tiny    # does it run? half a minute on a CPU
python studies/paper_studies.py join FOLDER FOLDER --out FOLDER          # of calls side by side, each with its --run
python studies/paper_studies.py page FOLDER                              # docs/studies.md from it, and its figures
python studies/paper_studies.py page FOLDER --latex studies.tex          # also its tables for print

FOLDER holds natural/train-*.tar, natural/test.tar and ood/NAME.tar. The same command again goes on where the last one
stopped: with --max-minutes it stops by itself. Trainings, images and results are kept in --work. The results behind
docs/studies.md are docs/results/studies.json.
"""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

# What needs torch is imported further down: the processes that prepare images import this file too.

app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    out: Annotated[Path, typer.Option(help="Where studies.json, losses.csv and samples go.")],
    work: Annotated[Path, typer.Option(help="Trainings and prepared images, some 10 GB.")] = Path("runs/studies"),
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
    count_images: Annotated[int | None, typer.Option(help="Of each set, for patch counts. Default: 150.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Of scoring on a GPU: tf32, fp32 or fp16. Default: tf32.")
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after so long; what is done is stored.")] = None,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Tiny networks and few images: only to see that it runs.")
    ] = False,
    compile: Annotated[bool | None, typer.Option(help="Fused, compiled passes (yes on a GPU).")] = None,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare images.")] = max(1, (os.cpu_count() or 1) - 2),
) -> None:
    """Trains and measures what is not there yet, and writes the results again after each part."""
    from rich.console import Console

    from common import OutOfTimeError, Timer
    from discopatch.bench.suites.natural import train_shards
    from discopatch.training import RunOptions
    from paper.plan import Plan
    from paper.run import PARTS, Studies
    from paper.trainings import Trainings

    plan = (Plan.tiny() if tiny else Plan()).override(
        patches_in_all=patches_in_all,
        seeds=seeds,
        severities=tuple(severity or ()),
        limit=limit,
        count_images=count_images,
        precision=precision,
    )
    console = Console(stderr=True, soft_wrap=True)
    timer = Timer(max_minutes, log=console.print)
    options = RunOptions(accelerator=device, fused=compile)
    out.mkdir(parents=True, exist_ok=True)
    trainings = Trainings(tuple(map(str, train_shards(data))), work, options, console)
    studies = Studies(plan, data, out, trainings, timer, device=device, workers=workers)
    try:
        studies.run(only or PARTS, runs or ())
    except OutOfTimeError as over:
        timer.note(str(over))
    if studies.results.get("failed"):
        raise typer.Exit(1)


@app.command()
def join(
    parts: Annotated[list[Path], typer.Argument(help="Folders that `run` wrote to, each with other --run.")],
    out: Annotated[Path, typer.Option(help="The folder for all of them.")],
) -> None:
    """Makes one folder of results of several, whose trainings may have run side by side."""
    from discopatch.utils import write_json
    from paper.losses import read_all_losses, write_all_losses
    from paper.results import LOSSES, NAME, join_results, read_results

    out.mkdir(parents=True, exist_ok=True)
    write_json(out / NAME, join_results([read_results(part) for part in parts]))
    losses = [read_all_losses(part / LOSSES) for part in parts if (part / LOSSES).is_file()]
    write_all_losses(out / LOSSES, {name: values for part in losses for name, values in part.items()})
    for part in parts:
        for samples in part.glob("samples-*.png"):
            shutil.copyfile(samples, out / samples.name)


@app.command()
def page(
    results: Annotated[Path, typer.Argument(help="studies.json or its folder.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("docs/studies.md"),
    figures: Annotated[Path | None, typer.Option(help="Where its figures go (images/studies beside it).")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also the tables for print, such as studies.tex.")] = None,
) -> None:
    """Writes the page and its figures from the stored results; measures nothing."""
    from common import write_text
    from discopatch.bench.plots.style import save_figure
    from paper.page import studies_page, write_latex
    from paper.plots import study_figures
    from paper.results import LOSSES, read_results

    stored, folder = read_results(results), figures or out.parent / "images" / "studies"
    losses = (results if results.is_dir() else results.parent) / LOSSES
    paths = {}
    for name, figure in study_figures(stored, losses if losses.is_file() else None):
        (paths[name],) = save_figure(figure, folder / name, ["png"])
    if (drawn := folder / "losses.png").exists():  # losses.csv may be gone by now
        paths["losses"] = drawn
    links = {name: Path(os.path.relpath(path, out.parent)).as_posix() for name, path in paths.items()}
    write_text(out, studies_page(stored, links))
    if latex is not None:
        write_latex(stored, latex)


if __name__ == "__main__":
    app()
