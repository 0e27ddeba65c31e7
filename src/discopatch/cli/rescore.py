"""discopatch rescore"""

from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.parts import show_sum, shown_progress


def rescore(
    scores: Annotated[str, typer.Argument(help="Folder that `discopatch score --out` wrote.")],
    detector: Annotated[str, typer.Option(help=options.DETECTOR)],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write the new scores to, or to go on with.")],
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Share of normal images that may be flagged. Default: the detector's.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Parts that are rescored at once. Default: one a core.", min=1)
    ] = None,
    rank: options.Rank = None,
    world: options.World = None,
    weights: Annotated[list[str] | None, typer.Option(help=options.PLACES)] = None,
) -> None:
    """Write scores anew with another detector or false-alarm rate, from what is stored; no image is read.

    Another rate of the same detector needs the scores alone. Another detector, with the same networks and transform,
    needs features: `discopatch score --out FOLDER --features`.
    """
    from rich.console import Console

    import discopatch
    from discopatch.batch.rescore import rescore as rescore_folder

    console = Console(stderr=True)
    predictor = discopatch.load(options.detector_of(detector).path, weights=weights or [])
    if false_alarm_rate is not None:
        predictor = predictor.with_rate(false_alarm_rate)
    with shown_progress(console, "rescoring") as progress:
        run = rescore_folder(scores, predictor, out, threads=threads, rank=rank, world=world, progress=progress)
    show_sum(console, run, verb="rescored")
