"""discopatch fit"""

import shlex
import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Annotated

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from discopatch.calibration import Rate
    from discopatch.detector import Detector


def fit(
    images: Annotated[list[str], typer.Argument(help=f"Normal images. {options.IMAGES}")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the fitted detector to.")],
    false_alarm_rate: Annotated[
        str,
        typer.Option(
            metavar="FLOAT|auto",
            help="Largest share of normal images that are flagged, on average; auto takes the smallest of 0.01, 0.02, "
            "0.05 and 0.1 for which at most half of IMAGES are held out.",
        ),
    ] = "auto",
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="folder|name|auto",
            help="Which images belong together, such as frames of a burst: images of one folder, images whose names "
            "differ only in the trailing number, or near-copies that are found. The rate then holds for new groups.",
        ),
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="Other normal images to calibrate on, instead of a part of IMAGES.")
    ] = None,
    head: Annotated[str | None, typer.Option(help=options.HEAD)] = None,
    weights: Annotated[
        list[str] | None, typer.Option(help=f"{options.WEIGHTS} {options.NETWORKS} {options.DEFAULT_WEIGHTS_TEXT}")
    ] = None,
    patches: Annotated[str, typer.Option(metavar="INT|dense", help=options.PATCHES)] = "dense",
    seed: Annotated[int, typer.Option(help=options.SEED)] = 0,
    reason_images: Annotated[
        int, typer.Option(help="Normal images from which reasons are learnt; 0 leaves reasons out.", min=0)
    ] = 16,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 8,
    precision: Annotated[
        str, typer.Option(help="float32, or bfloat16, which is faster; the detector then needs a GPU.")
    ] = "float32",
    decoder: Annotated[str, typer.Option(help=options.DECODER)] = "pillow",
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing detector.")] = False,
) -> None:
    """Fit a detector on normal images. No labels, no training and no anomalous examples are needed."""
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists: choose another --out, or add --force")
    parameters = {
        "head": head,
        "false_alarm_rate": rate_of(false_alarm_rate),
        "patches": options.patches_of(patches),
        **options.limits_of(max_pixels),
    }
    reading = options.readers_of(workers)

    from rich.console import Console
    from rich.text import Text

    from discopatch.detector import Detector
    from discopatch.errors import NormalImagesWarning
    from discopatch.fitting import MIN_FIT_IMAGES
    from discopatch.pretrained import DEFAULT_WEIGHTS
    from discopatch.utils import check_output, escaped

    check_output(out)
    console = Console(stderr=True)
    detector = Detector(
        weights or DEFAULT_WEIGHTS,
        seed=seed,
        reason_images=reason_images,
        device=device,
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]  # checked by fit
        decoder=decoder,  # type: ignore[arg-type]  # checked by fit
        **{name: value for name, value in parameters.items() if value is not None},  # type: ignore[arg-type]
    )
    with options.progress_bar(console, "reading normal images") as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormalImagesWarning)  # printed below
        detector.fit(
            options.source_of(images),
            groups=groups,
            calibration=calibration,
            workers=reading,
            progress=bar.follow_fit,
        )
    save(detector, out)
    if detector.refusals_:
        console.print(Text(detector.refusals_.summary(), style="yellow"), soft_wrap=True)
    for caution in detector.cautions_:
        console.print(Text(escaped(f"caution: {caution}"), style="yellow"), soft_wrap=True)
    console.print(Text(escaped(f"{out}: {detector.guarantee_.text}")), soft_wrap=True)
    if detector.false_alarm_rate == "auto" and (text := detector.guarantee_.next_rate_text(min_fit=MIN_FIT_IMAGES)):
        console.print(Text(text), soft_wrap=True)


def rate_of(text: str) -> "Rate":
    """`auto`, or the number; its range is checked by the detector."""
    try:
        return "auto" if text == "auto" else float(text)
    except ValueError:
        raise typer.BadParameter(f"--false-alarm-rate {text}: give auto, or a number such as 0.01") from None


def save(detector: "Detector", out: Path) -> None:
    """Saves the detector. Where that fails it is saved elsewhere, and the error says where: a fit may take long."""
    from discopatch.errors import DiscopatchError, OutputError

    try:
        detector.save(out)
    except OutputError as error:
        for folder in (Path(gettempdir()), Path.home()):
            elsewhere = folder / f"{out.name}-{datetime.now():%Y%m%d-%H%M%S}"
            with suppress(OutputError):
                detector.save(elsewhere)
                break
        else:
            raise
        move = shlex.join(["mv", str(elsewhere), str(out)])
        raise DiscopatchError(f"{error}. The fitted detector is at {elsewhere}: {move}") from error
