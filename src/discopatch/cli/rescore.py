"""discopatch rescore"""

from typing import Annotated

import typer

from discopatch.cli import options
from discopatch.cli.score import show_summary


def rescore(
    scores: Annotated[str, typer.Argument(help="Folder that `discopatch score --out` wrote.")],
    detector: options.Detector,
    false_alarm_rate: Annotated[float, typer.Option(help="Share of normal images that may be flagged.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder to write to.")],
) -> None:
    """Decide about stored scores again, at another false-alarm rate; no image is read.

    If it is interrupted, the same command continues.
    """
    from rich.console import Console

    from discopatch.batch.folder import rescore as rescore_folder

    loaded = options.load(detector, None).with_rate(false_alarm_rate)
    show_summary(Console(stderr=True), rescore_folder(scores, loaded, out))
