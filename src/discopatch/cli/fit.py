"""discopatch fit"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli.options import PROCESSES, counting, source_of, workers_of


def fit(
    images: Annotated[list[str], typer.Argument(help="Files, folders, patterns or tar shards of normal images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the fitted detector goes: one file.")],
    false_alarm_rate: Annotated[
        float, typer.Option(help="Promised share of normal images that are flagged all the same.")
    ] = 0.01,
    calibration: Annotated[
        str | None, typer.Option(help="Other normal images for the promise, instead of a third of IMAGES.")
    ] = None,
    head: Annotated[str, typer.Option(help="combined, statistics, logit or sigmoid.")] = "combined",
    weights: Annotated[
        str, typer.Option(help="Released weights by name, or a .safetensors file that `discopatch train` wrote.")
    ] = "natural-v1",
    adapt_steps: Annotated[
        int, typer.Option(help="Train the discriminator on for so many steps first; wants a GPU.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of which images are held out.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16: faster, and the detector then needs a GPU.")
    ] = "float32",
    workers: Annotated[int | None, typer.Option(help="How many decode.", min=1)] = None,
    processes: Annotated[bool, typer.Option("--processes", help=PROCESSES)] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a detector that is there already.")] = False,
) -> None:
    """Learn what is normal from a folder of normal images: no labels, no training, no bad examples."""
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists: choose another --out, or add --force")

    from rich.console import Console
    from rich.text import Text

    from discopatch.detector import Detector
    from discopatch.model.weights import Weights

    console = Console(stderr=True)
    detector = Detector(
        Weights.load(weights) if weights.endswith(".safetensors") else weights,
        head=head,
        false_alarm_rate=false_alarm_rate,
        seed=seed,
        device=device,
        precision=precision,  # type: ignore[arg-type]  # checked there
    )
    with counting(console, "looking at normal images") as one_more:
        detector.fit(
            source_of(images),
            calibration=calibration,
            adapt_steps=adapt_steps,
            workers=workers_of(workers, processes=processes),
            progress=one_more,
        )
    detector.save(out)
    if detector.fitted.refusals:
        console.print(Text(detector.fitted.refusals.summary(), style="yellow"), soft_wrap=True)
    console.print(Text(f"{out}: {detector.trust.words}"), soft_wrap=True)
