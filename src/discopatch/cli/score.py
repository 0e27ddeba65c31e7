"""discopatch score"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli import options
from discopatch.cli.rows import csv_lines, ignore_broken_pipe, json_lines, text_lines

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.batch.folder import ScoresFolder, Summary
    from discopatch.batch.run import Progress, Run
    from discopatch.gate import FolderTest
    from discopatch.images import RefusalReport, Workers
    from discopatch.images.items import Reading
    from discopatch.results import FittedDetector, PredictedImage, Prediction

FAILED, REFUSED, DAMAGED, PASSED_OVER = 3, 4, 5, 6  # exit statuses
BETWEEN_LINES = 30.0  # seconds, if no terminal shows a bar

gate_option = partial(typer.Option, rich_help_panel="A gate for a pipeline")
part_option = partial(typer.Option, rich_help_panel="Many images: scores in parts, as Parquet")

BOXES = "JSON file to write boxes and outlines of unusual regions in flagged images to, as COCO annotations."
FAIL_ON = (
    "Exit with status 3 when the images as a whole differ from normal ones (folder), or when any image is flagged "
    "(any), and with 4 when an image is refused."
)
FAIL_RATE = "Largest share of normal folders that fail with --fail-on folder."
FDR = "Print only images to look at, highest score first; on average at most this share of them is normal, such as 0.1."
GROUPS = "Which images belong together; one of each group counts for the folder. Default: as the detector was fitted."
OUT = (
    "Folder to write Parquet to, one file for each shard or 10,000 images, instead of printing; it may be an address "
    "such as s3://bucket/scores. The same command resumes a run that was stopped, and shares one that is at work."
)
MISSING = "Images that were planned and are gone from the source count as refused."
RETRY = "Score parts with refused images or damaged shards again."
MEMBER = (
    "Which members of tar shards to score, by the end of their names: jpg of samples with 000.jpg and 000.seg.png. "
    "Default: all images."
)
STRICT = "Exit with status 6 when files were passed over that are no images."
KEEP = "Columns of Parquet tables that are written beside the scores, such as label,id."
PROGRESS = "File to append a line of JSON about the progress to, at the start, each minute and at the end."
RAY = "Score on a Ray cluster; auto: that of RAY_ADDRESS, or of this machine, or a new one here."


def score(
    images: Annotated[list[str], typer.Argument(help=options.IMAGES)],
    detector: options.Detector,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    fdr: Annotated[float | None, typer.Option(help=FDR)] = None,
    report: Annotated[Path | None, typer.Option(help="HTML file to write a report to.")] = None,
    boxes: Annotated[Path | None, typer.Option(help=BOXES)] = None,
    fail_on: Annotated[Literal["folder", "any"] | None, gate_option(help=FAIL_ON)] = None,
    fail_rate: Annotated[float, gate_option(help=FAIL_RATE)] = 0.01,
    groups: Annotated[Literal["folder", "name", "none"] | None, gate_option(help=GROUPS)] = None,
    allow_refused: Annotated[bool, gate_option("--allow-refused", help="Refused images do not fail the gate.")] = False,
    member: Annotated[str | None, typer.Option(metavar="EXT[,EXT]", help=MEMBER)] = None,
    strict: Annotated[bool, typer.Option("--strict", help=STRICT)] = False,
    out: Annotated[str | None, part_option("--out", "-o", help=OUT)] = None,
    allow_missing: Annotated[bool, part_option("--allow-missing", help=MISSING)] = False,
    retry: Annotated[bool, part_option("--retry", help=RETRY)] = False,
    keep: Annotated[str | None, part_option(metavar="COLUMN[,COLUMN]", help=KEEP)] = None,
    progress: Annotated[Path | None, part_option(metavar="FILE", help=PROGRESS)] = None,
    ray: Annotated[str | None, part_option(metavar="ADDRESS|auto", help=RAY)] = None,
    actors: Annotated[
        int | None, part_option(help="Actors of Ray. Default: one per GPU, or one per core.", min=1)
    ] = None,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    decoder: Annotated[str | None, typer.Option(help=f"{options.DECODER} Default: as the detector was fitted.")] = None,
    workers: options.ReadBy = None,
    max_pixels: options.MaxPixels = None,
    networks: options.Networks = None,
) -> None:
    """Print the name, score, p-value and decision of each image. Higher scores are more out-of-distribution.

    With --csv and --json a detector with components also prints the z-score of each, and which are significant.

    Exit status: 0 success; 1 an error; 2 a wrong option; with --fail-on also 3 if the folder fails, or with "any" if
    an image is flagged, and 4 if an image was refused, unless --allow-refused; 5 if a shard could not be read to its
    end; with --strict 6 if files were passed over that are no images.
    """
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    if allow_refused and fail_on is None:
        raise typer.BadParameter("--allow-refused is for a gate: give --fail-on folder or --fail-on any too")
    from rich.console import Console

    from discopatch.gate import FolderGate, folder_test
    from discopatch.images import RefusalReport, list_source
    from discopatch.images.stores import without_options
    from discopatch.results import Predictions, as_row, column_types
    from discopatch.utils import check_output

    console, reading = Console(stderr=True), options.readers_of(workers)
    load: dict[str, Any] = {"networks": networks or (), "device": device, "batch_size": batch_size, "decoder": decoder}
    load |= options.limits_of(max_pixels)
    ending: dict[str, Any] = {"allow_refused": allow_refused, "strict": strict}
    parts: dict[str, Any] = {
        "keep": keep,
        "progress": progress,
        "allow_missing": allow_missing,
        "retry": retry,
        "ray": ray,
        "actors": actors,
    }
    if out is not None:
        if as_csv or as_json or fdr is not None or report is not None or boxes is not None:
            raise typer.BadParameter("--out writes Parquet, in place of --csv, --json, --fdr, --report and --boxes")
        parts |= {"workers": None if workers is None else reading, "member": member}
        fitted, scores, summary = score_to_folder(console, images, detector, out, load=load, **parts)
        if summary.images and not summary.refusals.accepted and (fail_on is None or allow_refused):
            raise summary.refusals.nothing_left()
        found = None
        if fail_on is not None:
            found = folder_test(scores.predictions(), fitted, fail_rate=fail_rate, groups=groups or "fitted")
        end(console, fail_on, found, summary.refusals, summary.reading, flagged=summary.flagged, **ending)
        return
    if given := [name.replace("_", "-") for name, value in parts.items() if value not in (None, False)]:
        raise typer.BadParameter(f"--{', --'.join(given)}: for scores in parts; give --out too")
    for written in filter(None, (report, boxes)):
        check_output(written)
    refusals, flagged, cautions = RefusalReport(), 0, Counter[str]()
    fitted = options.load(detector, **load)
    names = fitted.column_names
    folder = FolderGate(fitted, fail_rate=fail_rate, groups=groups or "fitted")
    listed = list_source(options.source_of(images), member=member)
    predicted = count_refusals(fitted.predict_images(listed, workers=reading), refusals, listed.reading)
    if boxes is not None:
        from discopatch.report import BoxesBuilder

        found_boxes = BoxesBuilder(fitted)
        predicted = found_boxes.collect(predicted)
    predictions: Iterator[Prediction] = (each.prediction for each in predicted)
    if report is not None:
        from discopatch.report import ReportBuilder

        builder = ReportBuilder()
        predictions = builder.collect(predicted)

    def read() -> "Iterator[Prediction]":
        nonlocal flagged
        for done, prediction in enumerate(predictions, start=1):
            flagged += bool(prediction.is_ood)
            cautions.update(filter(None, (prediction.caution or "").split(",")))
            folder.add(prediction)
            yield prediction
            bar(done)

    def rows() -> Iterator[dict[str, object]]:
        found = read() if fdr is None else Predictions(read()).select(fdr=fdr)
        return (as_row(each, names) for each in found)

    with_header = partial(csv_lines, columns=list(column_types(names)))
    printed = with_header if as_csv else json_lines if as_json else text_lines
    unread = 1 if fail_on else 0  # a gate that has not read all images does not pass
    with options.progress_bar(console, "scoring", total=listed.count) as bar, ignore_broken_pipe(status=unread):
        for line in printed(rows()):
            print(line)
    if not refusals.accepted and (fail_on is None or allow_refused) and not listed.reading.damaged:
        raise refusals.nothing_left()
    if fdr is not None:
        most = max(len(part.scores) for part in fitted.calibration_.parts.values())
        options.notice(console, selection_text(refusals.accepted, most, fdr))
    if refusals:
        options.notice(console, refusals.summary(), "yellow")
    notice_cautions(console, cautions)
    notice_unread(console, listed.reading)
    if report is not None:
        title, created = ", ".join(map(without_options, images)), datetime.now().astimezone().isoformat()
        builder.write(report, fitted, title=title, created=created, folder=folder.result())
        options.notice(console, f"report: {report}")
    if boxes is not None:
        found_boxes.write(boxes)
        options.notice(console, f"boxes: {boxes}")
    end(console, fail_on, folder.result() if fail_on else None, refusals, listed.reading, flagged=flagged, **ending)


def count_refusals(
    predicted: "Iterable[PredictedImage]", refusals: "RefusalReport", reading: "Reading | None" = None
) -> "Iterator[PredictedImage]":
    """The same images; the report counts which of them were refused. A damaged shard is no image."""
    for each in predicted:
        if each.refusal is not None:
            if reading is None or each.refusal.name not in reading.damaged:
                refusals.add(each.refusal)
        else:
            refusals.accepted += 1
        yield each


def selection_text(images: int, calibration: int, fdr: float) -> str:
    """What a selection of so many images promises, and when it can be empty."""
    from discopatch.calibration import images_needed, least_selected

    least = least_selected(images, calibration, fdr)
    if least > images:
        return f"{fdr:.0%} needs {images_needed(fdr)} calibration images, and here are {calibration}: none is selected"
    text = f"of the images that are printed, on average at most {fdr:.0%} are normal"
    if least > 1:
        text += (
            f". With {calibration:,} calibration images none is printed unless {least:,} of the {images:,} score above "
            f"all of these; {images_needed(fdr / images):,} would be enough for a single one"
        )
    return text


def notice_cautions(console: "Console", counts: "Mapping[str, int]") -> None:
    from discopatch.results import CAUTIONS

    for name, count in counts.items():
        if count:
            images = "1 image has" if count == 1 else f"{count:,} images have"
            options.notice(console, f"{images} {CAUTIONS[name]}", "yellow")


def notice_unread(console: "Console", reading: "Reading") -> None:
    """Prints what was passed over, which shards are damaged, and that samples have several images."""
    from discopatch.utils import counted

    if reading.passed_over:
        names = ", ".join([*reading.names, *["..."] * (reading.passed_over > len(reading.names))])
        options.notice(console, f"{counted(reading.passed_over, 'file')} passed over, not images: {names}", "yellow")
    if reading.damaged:
        first, error = next(iter(reading.damaged.items()))
        count = counted(len(reading.damaged), "shard")
        text = f"{count} not read to the end, such as {first} ({error}): repair, then run again; with --out add --retry"
        options.notice(console, text, "red")
    if reading.several:
        one, other = (name.rpartition("/")[2] for name in reading.several)
        remedy = f"to score one of each, give --member {one.partition('.')[2]} and another --out"
        options.notice(console, f"samples have several images, such as {one} and {other}: {remedy}", "yellow")


def end(
    console: "Console",
    fail_on: Literal["folder", "any"] | None,
    found: "FolderTest | None",
    refusals: "RefusalReport",
    reading: "Reading",
    *,
    flagged: int,
    allow_refused: bool,
    strict: bool,
) -> None:
    """Prints the decision of a gate, and exits with a status if images fail or some were not read."""
    fails = False
    if found is not None:
        fails, text = found.fails, found.text
        if fail_on == "any":
            fails, text = flagged > 0, f"{flagged:,} of {refusals.accepted:,} images flagged"
        options.notice(console, text, "red" if fails else "")
    statuses = {
        FAILED: fails,
        DAMAGED: bool(reading.damaged),
        REFUSED: found is not None and bool(refusals) and not allow_refused,
        PASSED_OVER: strict and reading.passed_over > 0,
    }
    for status, is_met in statuses.items():
        if is_met:
            raise typer.Exit(status)


# Scores in parts.


def score_to_folder(
    console: "Console",
    images: list[str],
    detector: str,
    out: str,
    *,
    load: dict[str, Any],
    keep: str | None,
    progress: Path | None,
    ray: str | None,
    actors: int | None,
    workers: "Workers | None",
    **shared: Any,
) -> "tuple[FittedDetector, ScoresFolder, Summary]":
    """Scores images into a folder of Parquet and prints a summary.

    `workers` are those of one process, without Ray; `load` has arguments of `discopatch.load`, `shared` of `score_to`.
    """
    import discopatch
    from discopatch.batch.ray_engine import score_on_ray
    from discopatch.batch.run import local_device, score_to
    from discopatch.images import DEFAULT_WORKERS
    from discopatch.utils import require

    require("pyarrow", extra="parquet")
    if ray is None and actors is not None:
        raise typer.BadParameter("--actors: for Ray; give --ray auto too")
    if ray is not None and workers is not None:
        raise typer.BadParameter("--workers is for one process: with --ray give --actors")
    source, path = options.source_of(images), options.detector_of(detector).path
    loaded = discopatch.load(path, **{**load, "device": local_device(load["device"])})
    with shown_progress(console, progress) as shown:
        shared |= {"keep": () if keep is None else tuple(dict.fromkeys(keep.split(","))), "progress": shown}
        if ray is None:
            run = score_to(loaded, source, out, workers=DEFAULT_WORKERS if workers is None else workers, **shared)
        else:
            address = None if ray == "auto" else ray
            with redirect_stdout(sys.stderr):  # Ray prints the errors of its workers
                run = score_on_ray(path, source, out, address=address, actors=actors, **shared, **load)
    return loaded, run.folder, show_summary(console, run.folder, run)


@contextmanager
def shown_progress(console: "Console", file: Path | None) -> "Iterator[Progress]":
    """A bar on a terminal; elsewhere, as in the log of a job, a line every half minute; and lines in a file."""
    from discopatch.batch.run import progress_file
    from discopatch.utils import counted

    last, noticed = time.monotonic(), False

    def show(run: "Run") -> None:
        nonlocal last, noticed
        if follow is not None:
            follow(run)
        if run.watched and not noticed:
            noticed = True
            text = f"{counted(run.watched, 'part')} claimed by other processes: watched until scored or given up"
            options.notice(console, text)
        if console.is_terminal:
            bar(run.images, run.total)
        elif time.monotonic() - last >= BETWEEN_LINES:
            last = time.monotonic()
            place = f"part {len(run.todo) - run.left + 1:,} of {len(run.todo):,}"
            console.print(f"scoring: {place}, {run.images:,} images, {run.rate:,.3g} images/s", soft_wrap=True)

    written = nullcontext() if file is None else progress_file(file)
    with options.progress_bar(console, "scoring") as bar, written as follow:
        yield show


def show_summary(console: "Console", folder: "ScoresFolder", run: "Run | None" = None) -> "Summary":
    """Prints and returns the numbers of parts and images in the folder, and prints those of this run."""
    from discopatch.utils import counted

    summary, done, planned = folder.summary(), len(folder.done()), len(folder.parts)
    count = f"{done:,} of {planned:,} parts, {summary.images:,} images, {summary.flagged:,} flagged"
    lines = [f"{folder.out.name}: {count}"]
    if run is not None and run.parts:
        count = f"{counted(run.parts, 'part')}, {run.images:,} images"
        lines.append(f"scored now: {count} in {run.seconds:,.0f} s, {run.rate:,.3g} images/s")
    if done < planned:
        lines.append(f"left: {counted(planned - done, 'part')}; run the command again")
    for line in lines:
        options.notice(console, line)
    if summary.refusals:
        options.notice(console, summary.refusals.summary(), "yellow")
    notice_cautions(console, summary.cautions)
    notice_unread(console, summary.reading)
    return summary
