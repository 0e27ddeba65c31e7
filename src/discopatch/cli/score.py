"""discopatch score"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from discopatch.cli import options
from discopatch.cli.rows import csv_lines, ignore_broken_pipe, json_lines, text_lines
from discopatch.cli.score_parts import GateOptions, PartOptions, apply_gate, score_to_folder

if TYPE_CHECKING:
    from discopatch.images import RefusalReport
    from discopatch.results import PredictedImage, Prediction

CLOSE_UPS = 12  # most anomalous images that a report shows with heatmaps

gate_option = partial(typer.Option, rich_help_panel="A gate for a pipeline")
part_option = partial(typer.Option, rich_help_panel="Many images: scores in parts, as Parquet")

FAIL_ON = (
    "Exit with status 3 when the images as a whole differ from normal ones (folder), or when any image is flagged "
    "(any), and with 4 when an image is refused."
)
FAIL_RATE = "Largest share of normal folders that fail with --fail-on folder."
GROUPS = "Which images belong together; one of each group counts for the folder. Default: as the detector was fitted."
OUT = (
    "Folder to write Parquet to, one file for each shard or 10,000 images, instead of printing; it may be an address "
    "such as s3://bucket/scores. The same command resumes a run that was stopped."
)
RANK = "Number, from 0, and count of the processes that share the folder. Default: as torchrun or SLURM set it, or 0/1."
MISSING = "Images that were planned and are gone from the source count as refused."
RAY = "Score on a Ray cluster; auto: that of RAY_ADDRESS, or of this machine, or a new one here."


def score(
    images: Annotated[list[str], typer.Argument(help=options.IMAGES)],
    detector: options.Detector,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="HTML file to write a report to.")] = None,
    fail_on: Annotated[Literal["folder", "any"] | None, gate_option(help=FAIL_ON)] = None,
    fail_rate: Annotated[float, gate_option(help=FAIL_RATE)] = 0.01,
    groups: Annotated[Literal["folder", "name", "none"] | None, gate_option(help=GROUPS)] = None,
    allow_refused: Annotated[bool, gate_option("--allow-refused", help="Refused images do not fail the gate.")] = False,
    out: Annotated[str | None, part_option("--out", "-o", help=OUT)] = None,
    rank: Annotated[str | None, part_option(metavar="I/N", help=RANK)] = None,
    allow_missing: Annotated[bool, part_option("--allow-missing", help=MISSING)] = False,
    ray: Annotated[str | None, part_option(metavar="ADDRESS|auto", help=RAY)] = None,
    actors: Annotated[
        int | None, part_option(help="Actors of Ray. Default: one per GPU, or one per core.", min=1)
    ] = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 8,
    decoder: Annotated[str | None, typer.Option(help=f"{options.DECODER} Default: as the detector was fitted.")] = None,
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    networks: options.Networks = None,
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
    reading = options.readers_of(workers)
    parts = PartOptions(rank=rank, allow_missing=allow_missing, ray=ray, actors=actors)
    gate = GateOptions(fail_on=fail_on, fail_rate=fail_rate, groups=groups, allow_refused=allow_refused)
    load = {"device": device, "batch_size": batch_size, "decoder": decoder, **options.limits_of(max_pixels)}
    if out is not None:
        if as_csv or as_json or report is not None:
            raise typer.BadParameter("--out writes Parquet, in place of --csv, --json and --report")
        given, load = None if workers is None else reading, {"networks": networks or (), **load}
        score_to_folder(images, detector, out, parts=parts, gate=gate, workers=given, load=load)
        return
    parts.check_unused()

    from rich.console import Console

    from discopatch.gate import FolderGate
    from discopatch.images import RefusalReport, list_source
    from discopatch.images.stores import without_options
    from discopatch.results import as_row, column_types
    from discopatch.utils import check_output

    if report is not None:
        check_output(report)
    console, refusals, flagged = Console(stderr=True), RefusalReport(), 0
    fitted = options.load(detector, networks, **load)
    names = fitted.component_names
    folder = FolderGate(fitted, fail_rate=fail_rate, groups=groups or "fitted")
    listed = list_source(options.source_of(images))
    predicted = count_refusals(fitted.predict_images(listed, workers=reading), refusals)
    predictions: Iterator[Prediction] = (each.prediction for each in predicted)
    if report is not None:
        from discopatch.report import ReportBuilder

        builder = ReportBuilder(CLOSE_UPS)
        predictions = builder.collect(predicted)

    def rows() -> Iterator[dict[str, object]]:
        nonlocal flagged
        for done, prediction in enumerate(predictions, start=1):
            flagged += bool(prediction.is_ood)
            folder.add(prediction)
            yield as_row(prediction, names)
            bar(done)

    with_header = partial(csv_lines, columns=list(column_types(names)))
    printed = with_header if as_csv else json_lines if as_json else text_lines
    unread = 1 if fail_on else 0  # a gate that has not read all images does not pass
    with options.progress_bar(console, "scoring", total=listed.count) as bar, ignore_broken_pipe(status=unread):
        for line in printed(rows()):
            print(line)
    if not refusals.accepted and (fail_on is None or allow_refused):
        raise refusals.nothing_left()
    if refusals:
        options.notice(console, refusals.summary(), "yellow")
    if report is not None:
        title, created = ", ".join(map(without_options, images)), datetime.now().astimezone().isoformat()
        builder.write(report, fitted, title=title, created=created, folder=folder.result())
        options.notice(console, f"report: {report}")
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
