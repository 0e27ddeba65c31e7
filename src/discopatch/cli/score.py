"""discopatch score"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from discopatch.cli import options
from discopatch.cli.printers import choose_printer, ignore_broken_pipe
from discopatch.cli.score_parts import GateOptions, PartOptions, apply_gate, score_to_folder

if TYPE_CHECKING:
    from discopatch.images import RefusalReport
    from discopatch.results import PredictedImage, Prediction

CLOSE_UPS = 12  # most anomalous images that a report shows with heatmaps
GATE = "A gate for a pipeline"
PARTS = "Many images: scores in parts, as Parquet"


def score(
    images: Annotated[list[str], typer.Argument(help=options.IMAGES)],
    detector: Annotated[str, typer.Option(help=options.DETECTOR)],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="HTML file to write a report to.")] = None,
    fail_on: Annotated[
        Literal["folder", "any"] | None,
        typer.Option(
            help="Exit with status 3 when the images as a whole differ from normal ones (folder), or when any image is "
            "flagged (any), and with 4 when an image is refused.",
            rich_help_panel=GATE,
        ),
    ] = None,
    fail_rate: Annotated[
        float,
        typer.Option(help="Largest share of normal folders that fail with --fail-on folder.", rich_help_panel=GATE),
    ] = 0.01,
    groups: Annotated[
        Literal["folder", "name", "none"] | None,
        typer.Option(
            help="Which images belong together; one image of each group counts for the folder. Default: as the "
            "detector was fitted.",
            rich_help_panel=GATE,
        ),
    ] = None,
    allow_refused: Annotated[
        bool, typer.Option("--allow-refused", help="Refused images do not fail the gate.", rich_help_panel=GATE)
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write Parquet to, one file for each shard or 10,000 images, instead of printing; it may be "
            "an address such as s3://bucket/scores. The same command resumes a run that was stopped.",
            rich_help_panel=PARTS,
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Number, from 0, and count of the processes that share the folder. Default: as torchrun or SLURM set "
            "it, or 0/1.",
            rich_help_panel=PARTS,
        ),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing",
            help="Images that were planned and are gone from the source count as refused.",
            rich_help_panel=PARTS,
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|auto",
            help="Score on a Ray cluster; auto: that of RAY_ADDRESS, or of this machine, or a new one here.",
            rich_help_panel=PARTS,
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(help="Actors of Ray. Default: one per GPU, or one per core.", min=1, rich_help_panel=PARTS),
    ] = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 8,
    decoder: Annotated[str | None, typer.Option(help=f"{options.DECODER} Default: as the detector was fitted.")] = None,
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    networks: Annotated[list[str] | None, typer.Option(help=options.PLACES)] = None,
) -> None:
    """Print the name, score, p-value and decision of each image. Higher scores are more out-of-distribution.

    With --csv and --json a detector with components also prints the z-score of each, and which are significant.

    Exit status: 0 success; 1 an error; 2 a wrong option; with --fail-on also 3 if the folder fails, or with "any" if
    an image is flagged, and 4 if an image was refused, unless --allow-refused.
    """
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    if allow_refused and fail_on is None:
        raise typer.BadParameter("--allow-refused is for a gate: give --fail-on folder or --fail-on any too")
    reading, source = options.readers_of(workers), options.source_of(images)
    parts = PartOptions(rank=rank, allow_missing=allow_missing, ray=ray, actors=actors)
    gate = GateOptions(fail_on=fail_on, fail_rate=fail_rate, groups=groups, allow_refused=allow_refused)
    load = {
        "networks": networks or (),
        "device": device,
        "batch_size": batch_size,
        "decoder": decoder,
        **options.limits_of(max_pixels),
    }
    if out is not None:
        if as_csv or as_json or report is not None:
            raise typer.BadParameter("--out writes Parquet, in place of --csv, --json and --report")
        given = None if workers is None else reading
        score_to_folder(images, detector, out, parts=parts, gate=gate, workers=given, load=load)
        return
    parts.check_unused()

    from rich.console import Console
    from rich.text import Text

    import discopatch
    from discopatch.gate import FolderGate
    from discopatch.images import RefusalReport, list_source
    from discopatch.images.stores import without_options
    from discopatch.results import as_row, column_types
    from discopatch.utils import check_output, escaped

    if report is not None:
        check_output(report)
    console, refusals, flagged = Console(stderr=True), RefusalReport(), 0
    fitted = discopatch.load(options.detector_of(detector).path, **load)  # type: ignore[arg-type]
    folder = FolderGate(fitted, fail_rate=fail_rate, groups=groups or "fitted")
    printer = choose_printer(as_csv=as_csv, as_json=as_json, fields=list(column_types(fitted.component_names)))
    listed = list_source(source)
    predicted = count_refusals(fitted.predict_images(listed, workers=reading), refusals)
    predictions: Iterator[Prediction] = (each.prediction for each in predicted)
    if report is not None:
        from discopatch.report import ReportBuilder

        builder = ReportBuilder(CLOSE_UPS)
        predictions = builder.collect(predicted)
    unread = 1 if fail_on else 0  # a gate that has not read all images does not pass
    with options.progress_bar(console, "scoring", total=listed.count) as bar, ignore_broken_pipe(status=unread):
        for done, prediction in enumerate(predictions, start=1):
            printer.print(as_row(prediction, fitted.component_names))
            flagged += bool(prediction.is_ood)
            folder.add(prediction)
            bar(done)
        printer.end()
    if not refusals.accepted and (fail_on is None or allow_refused):
        raise refusals.nothing_left()
    if refusals:
        console.print(Text(refusals.summary(), style="yellow"), soft_wrap=True)  # names may hold [brackets]
    if report is not None:
        builder.write(
            report,
            fitted,
            title=", ".join(map(without_options, images)),
            created=datetime.now().astimezone().isoformat(),
            folder=folder.result(),
        )
        console.print(Text(escaped(f"report: {report}")), soft_wrap=True)
    if fail_on is not None:
        apply_gate(console, gate, folder.result(), flagged, refusals)


def count_refusals(predicted: "Iterable[PredictedImage]", refusals: "RefusalReport") -> "Iterator[PredictedImage]":
    """The same images; the report counts which of them were refused."""
    for each in predicted:
        if each.refusal is not None:
            refusals.add(each.refusal)
        else:
            refusals.accepted += 1
        yield each
