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
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the fitted detector to.")],
    images: Annotated[list[str] | None, typer.Argument(help=f"Normal images. {options.IMAGES}")] = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Features of normal images instead: what `discopatch score --features` wrote, or Parquet.",
        ),
    ] = None,
    false_alarm_rate: Annotated[
        str,
        typer.Option(
            metavar="FLOAT|auto",
            help="Guaranteed largest share of normal images that are flagged, on average; auto takes the smallest of "
            "0.01, 0.02, 0.05 and 0.1 that at most half of IMAGES, held out, allow.",
        ),
    ] = "auto",
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="folder|name|auto",
            help="Which images belong together, such as frames of a burst: those of one folder, those whose names "
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
    decoder: Annotated[str, typer.Option(help=f"{options.DECODER} The detector then reads images with it.")] = "pillow",
    also_decoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Another decoder to compare with that one; `discopatch score --decoder` takes it if scores agree. "
            "Several times for several."
        ),
    ] = None,
    workers: options.WorkerCount = None,
    processes: options.UseProcesses = False,
    max_pixels: options.MaxPixels = None,
    max_bytes: options.MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing detector.")] = False,
) -> None:
    """Fit a detector on normal images: no labels, no training, no anomalous examples."""
    patch_count = options.patches_of(patches)
    limits = options.limits_of(max_pixels, max_bytes)
    if (images is None) == (features is None):
        raise typer.BadParameter("give either normal images, or features of such with --features")
    if features is not None and (groups is not None or adapt_steps or also_decoder):
        raise typer.BadParameter(
            "--groups, --adapt-steps and --also-decoder go with images: leave them out, or give images"
        )
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists: choose another --out, or add --force")

    from rich.console import Console
    from rich.text import Text

    from discopatch.detector import Detector
    from discopatch.errors import NormalImagesWarning
    from discopatch.fitting import MIN_FIT_IMAGES
    from discopatch.heads import DEFAULT_HEAD
    from discopatch.pretrained import DEFAULT_WEIGHTS
    from discopatch.utils import check_output, escaped

    check_output(out)
    console = Console(stderr=True)
    detector = Detector(
        weights or DEFAULT_WEIGHTS,
        head=DEFAULT_HEAD if head is None else head,
        false_alarm_rate=rate_of(false_alarm_rate),
        patches=patch_count,
        sampling=sampling,  # type: ignore[arg-type]  # checked there
        seed=seed,
        device=device,
        batch_size=batch_size,
        precision=precision,  # type: ignore[arg-type]  # checked there
        decoder=decoder,  # type: ignore[arg-type]  # checked there
        **limits,
    )
    with options.progress_bar(console, "reading normal images") as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormalImagesWarning)  # told below, in plain text
        if features is not None:
            detector.fit_features(features, calibration=calibration)
        else:
            detector.fit(
                options.source_of(images or []),
                groups=groups,
                calibration=calibration,
                adapt_steps=adapt_steps,
                also_decoders=also_decoder or (),  # type: ignore[arg-type]  # checked there
                workers=options.workers_of(workers, processes=processes),
                progress=bar.follow_fit,
            )
    save(detector, out)
    if detector.refusals_:
        console.print(Text(detector.refusals_.summary(), style="yellow"), soft_wrap=True)
    for caution in detector.cautions_:
        console.print(Text(escaped(f"caution: {caution}"), style="yellow"), soft_wrap=True)
    for each in detector.decoders_:
        console.print(Text(each.text, style="" if each.passed else "yellow"), soft_wrap=True)
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
    """Saves the detector; where that fails, it is saved elsewhere, and the error says where: a fit may take hours."""
    from discopatch.errors import DiscopatchError, OutputError
    from discopatch.images import cache_root

    try:
        detector.save(out)
    except OutputError as error:
        for folder in (cache_root() / "rescued", Path(gettempdir()), Path.home()):
            elsewhere = folder / f"{out.name}-{datetime.now():%Y%m%d-%H%M%S}"
            with suppress(OutputError):
                detector.save(elsewhere)
                break
        else:
            raise
        move = shlex.join(["mv", str(elsewhere), str(out)])
        raise DiscopatchError(f"{error}. The fitted detector is at {elsewhere}: {move}") from error
