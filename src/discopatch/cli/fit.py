"""discopatch fit"""

from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options


def fit(
    images: Annotated[list[str], typer.Argument(help=f"Normal images. {options.IMAGES}")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the fitted detector to.")],
    false_alarm_rate: Annotated[
        float, typer.Option(help="Guaranteed largest share of normal images that are flagged, on average.")
    ] = 0.01,
    calibration: Annotated[
        str | None, typer.Option(help="Other normal images to calibrate on, instead of up to a third of IMAGES.")
    ] = None,
    head: Annotated[str, typer.Option(help="Scoring head: combined, statistics, logit or sigmoid.")] = "combined",
    weights: Annotated[str, typer.Option(help=options.WEIGHTS)] = "natural-v1",
    patches: Annotated[str, typer.Option(metavar="INT|dense", help=options.PATCHES)] = "dense",
    sampling: Annotated[str, typer.Option(metavar="random|grid", help=options.SAMPLING)] = "random",
    adapt_steps: Annotated[
        int, typer.Option(help="Number of steps to train the discriminator for first; takes a GPU.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help=options.SEED)] = 0,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 8,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16: faster, and the detector then always needs a GPU.")
    ] = "float32",
    workers: options.WorkerCount = None,
    processes: options.UseProcesses = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing detector.")] = False,
) -> None:
    """Fit a detector on normal images: no labels, no training, no anomalous examples."""
    patch_count = options.patches_of(patches)
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists: choose another --out, or add --force")

    from rich.console import Console
    from rich.text import Text

    from discopatch.detector import Detector
    from discopatch.pretrained import load_weights

    console = Console(stderr=True)
    detector = Detector(
        load_weights(weights) if weights.endswith(".safetensors") else weights,
        head=head,
        false_alarm_rate=false_alarm_rate,
        patches=patch_count,
        sampling=sampling,  # type: ignore[arg-type]  # checked there
        seed=seed,
        device=device,
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]  # checked there
    )
    with options.progress_bar(console, "reading normal images") as bar:
        detector.fit(
            options.source_of(images),
            calibration=calibration,
            adapt_steps=adapt_steps,
            workers=options.workers_of(workers, processes=processes),
            progress=bar.follow_fit,
        )
    detector.save(out)
    if detector.refusals_:
        console.print(Text(detector.refusals_.summary(), style="yellow"), soft_wrap=True)
    console.print(Text(f"{out}: {detector.guarantee_.text}"), soft_wrap=True)
