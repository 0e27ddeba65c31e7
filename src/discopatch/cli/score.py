"""discopatch score"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from discopatch.cli import options
from discopatch.cli.printers import choose_printer, ignore_broken_pipe
from discopatch.cli.score_parts import FAILED, REFUSED, FolderOptions, GateOptions, PartOptions, score_to_folder

if TYPE_CHECKING:
    from discopatch.images import RefusalReport
    from discopatch.results import PredictedImage
    from discopatch.scorer import Scorer

ERROR = 1  # an exit status
DECISION_FIELDS = ("name", "score", "p_value", "is_ood")
SCORE_FIELDS = ("name", "score")
SIGNIFICANT = "significant"  # the components that stand out, of a head that has some
GATE = "A gate for a pipeline"
PARTS = "Many images: scores in parts, as Parquet"
RAY = "Many machines: --out with Ray"
UNCALIBRATED = "Scores of a discriminator alone, without a decision"
UNFITTED_HEADS = ("logit", "sigmoid")


def score(
    images: Annotated[list[str], typer.Argument(help=options.IMAGES)],
    detector: Annotated[str | None, typer.Option(help=options.DETECTOR)] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="HTML file to write a report to.")] = None,
    close_ups: Annotated[
        int, typer.Option(help="Number of most anomalous images that the report shows with heatmaps.", min=0)
    ] = 12,
    fail_on: Annotated[
        Literal["folder", "any"] | None,
        typer.Option(
            help="Exit with status 3 when the images as a whole are unlike normal ones (folder), or when any image is "
            "flagged (any), and with 4 when an image is refused.",
            rich_help_panel=GATE,
        ),
    ] = None,
    fail_on_ood: Annotated[
        bool, typer.Option("--fail-on-ood", help="Short for --fail-on folder.", rich_help_panel=GATE)
    ] = False,
    fail_rate: Annotated[
        float,
        typer.Option(help="Largest share of normal folders that fail with --fail-on folder.", rich_help_panel=GATE),
    ] = 0.01,
    groups: Annotated[
        Literal["folder", "name", "none"] | None,
        typer.Option(
            help="Of images that belong together one counts for the folder: those of one folder, or those whose names "
            "differ in their trailing number. Default: as the detector was fitted.",
            rich_help_panel=GATE,
        ),
    ] = None,
    allow_refused: Annotated[
        bool, typer.Option("--allow-refused", help="Let the gate pass over refused images.", rich_help_panel=GATE)
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder to write Parquet to, one file for each shard or 10,000 images, instead of printing; it may be "
            "an address such as s3://bucket/scores. The same command goes on where it was stopped.",
            rich_help_panel=PARTS,
        ),
    ] = None,
    per_part: Annotated[
        int | None,
        typer.Option(
            help="Images of a file, of those that are not in shards. Default: 10,000.", min=1, rich_help_panel=PARTS
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
            help="Count images as refused that were planned and are gone from the source.",
            rich_help_panel=PARTS,
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|auto",
            help="Score by actors of a Ray cluster; auto: that of RAY_ADDRESS, or of this machine, or a new one here.",
            rich_help_panel=RAY,
        ),
    ] = None,
    actors: Annotated[
        int | None,
        typer.Option(help="Actors of Ray. Default: one per GPU, or one per core.", min=1, rich_help_panel=RAY),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry parts that failed three times.", rich_help_panel=RAY)
    ] = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 8,
    decoder: Annotated[str | None, typer.Option(help=f"{options.DECODER} Default: as the detector was fitted.")] = None,
    workers: options.WorkerCount = None,
    processes: options.UseProcesses = False,
    max_pixels: options.MaxPixels = None,
    max_bytes: options.MaxBytes = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{options.WEIGHTS} With --detector: {options.PLACES[0].lower()}{options.PLACES[1:]}",
            rich_help_panel=UNCALIBRATED,
        ),
    ] = None,
    patches: Annotated[
        str, typer.Option(metavar="INT|dense", help=options.PATCHES, rich_help_panel=UNCALIBRATED)
    ] = "64",
    sampling: Annotated[
        str, typer.Option(metavar="random|grid", help=options.SAMPLING, rich_help_panel=UNCALIBRATED)
    ] = "random",
    head: Annotated[
        str, typer.Option(help="Head: logit, or sigmoid for the score of the paper.", rich_help_panel=UNCALIBRATED)
    ] = "logit",
    seed: Annotated[int, typer.Option(help=options.SEED, rich_help_panel=UNCALIBRATED)] = 0,
) -> None:
    """Print the name, score, p-value and decision of each image; higher scores are more out-of-distribution.

    With --out they are written as Parquet instead, by one process or several, and nothing is scored twice.

    With --csv and --json a detector of named components also has the z-score of each, and which stand out.

    Exit status: 0 all is well; 1 an error; 2 a wrong option; with --fail-on also 3 the folder fails, or with "any" an
    image is flagged; 4 otherwise, where an image was refused, unless --allow-refused.
    """
    limits = options.limits_of(max_pixels, max_bytes)
    networks = weights or []
    if (len(networks) != 1) if detector is None else not all("=" in place for place in networks):
        raise typer.BadParameter(
            "give either --detector (from `discopatch fit`) or --weights (from `discopatch train`)"
        )
    gate = "folder" if fail_on_ood else fail_on
    if fail_on_ood and fail_on == "any":
        raise typer.BadParameter("--fail-on-ood is --fail-on folder: choose one of it and --fail-on any")
    if detector is None and (report is not None or gate is not None):
        raise typer.BadParameter("--report, --fail-on and --fail-on-ood need a decision: give --detector")
    if detector is None and decoder is not None:
        raise typer.BadParameter("--decoder is for a detector that was fitted: give --detector")
    if allow_refused and gate is None:
        raise typer.BadParameter("--allow-refused is for a gate: give --fail-on folder or --fail-on any too")
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    parts = PartOptions(
        per_part=per_part,
        rank=rank,
        allow_missing=allow_missing,
        ray=ray,
        actors=actors,
        retry_failed=retry_failed,
    )
    if out is None:
        parts.check_unused()
    elif detector is None or as_csv or as_json or report is not None:
        raise typer.BadParameter("--out writes Parquet, by a --detector, in place of --csv, --json and --report")
    else:
        score_to_folder(
            FolderOptions(
                images=images,
                detector=detector,
                out=out,
                parts=parts,
                gate=GateOptions(fail_on=gate, fail_rate=fail_rate, groups=groups, allow_refused=allow_refused),
                workers=options.workers_of(workers, processes=processes) if workers or processes else None,
                load={"networks": networks, "device": device, "batch_size": batch_size, "decoder": decoder, **limits},
            )
        )
        return

    located = None if detector is None else options.detector_of(detector)
    if located is not None and located.path.is_dir() and report is not None:
        raise typer.BadParameter("--report cannot be written from an export: give the detector that was exported")

    from rich.console import Console
    from rich.text import Text

    import discopatch
    from discopatch.gate import FolderGate
    from discopatch.images import RefusalReport, count_images
    from discopatch.images.stores import without_options
    from discopatch.results import Prediction, Predictor, as_dict
    from discopatch.utils import check_output, escaped, require

    console, refusals, flagged = Console(stderr=True), RefusalReport(), 0
    predictor: Predictor
    folder: FolderGate | None = None
    if report is not None:
        require("jinja2")
        check_output(report)
    if located is None:
        predictor = unfitted_scorer(networks[0], patches, sampling, head, seed, device, batch_size, limits)
    else:
        predictor = calibrated = discopatch.load(
            located.path,
            weights=networks,
            device=device,
            batch_size=batch_size,
            decoder=decoder,  # type: ignore[arg-type]  # checked there
            **limits,
        )
        folder = FolderGate(calibrated, fail_rate=fail_rate, groups=groups or "fitted")
    fields = DECISION_FIELDS if detector else SCORE_FIELDS
    if predictor.component_names:
        fields = (*fields, *predictor.component_names, SIGNIFICANT)
    printer = choose_printer(as_csv=as_csv, as_json=as_json, fields=fields)
    source, reading = options.source_of(images), options.workers_of(workers, processes=processes)
    predicted = count_refusals(predictor.predict_images(source, workers=reading), refusals)
    predictions: Iterator[Prediction] = (each.prediction for each in predicted)
    if report is not None:
        from discopatch.report import ReportBuilder

        builder = ReportBuilder(close_ups)
        predictions = builder.collect(predicted)
    total = count_images(source) if console.is_terminal else None
    unread = ERROR if gate else 0  # a gate that has not seen all images does not pass
    with options.progress_bar(console, "scoring", total=total) as bar, ignore_broken_pipe(status=unread):
        for done, prediction in enumerate(predictions, start=1):
            printer.print(as_dict(prediction))
            flagged += bool(prediction.is_ood)
            if folder is not None:
                folder.add(prediction)
            bar(done)
        printer.end()
    if not refusals.accepted and (gate is None or allow_refused):
        raise refusals.nothing_left()
    if refusals:
        console.print(Text(refusals.summary(), style="yellow"), soft_wrap=True)  # names may hold [brackets]
    if report is not None:
        from discopatch import Detector

        assert isinstance(predictor, Detector), "an export was refused above"
        builder.write(
            report,
            predictor,
            title=", ".join(map(without_options, images)),
            created=datetime.now().astimezone().isoformat(),
            folder=None if folder is None else folder.result(),
        )
        console.print(Text(escaped(f"report: {report}")), soft_wrap=True)
    if gate is not None and folder is not None:
        found = folder.result()
        fails = found.fails if gate == "folder" else flagged > 0
        text = found.text if gate == "folder" else f"{flagged:,} of {refusals.accepted:,} images flagged"
        console.print(Text(text, style="red" if fails else ""), soft_wrap=True)
        if fails or (refusals and not allow_refused):
            raise typer.Exit(FAILED if fails else REFUSED)


def unfitted_scorer(
    weights: str,
    patches: str,
    sampling: str,
    head: str,
    seed: int,
    device: str,
    batch_size: int,
    limits: options.GivenLimits,
) -> "Scorer":
    """The score of the paper: a head that needs no fit over a discriminator trained on the normal images themselves."""
    from discopatch.encoders import DiscriminatorEncoder
    from discopatch.errors import ParameterError
    from discopatch.heads import get_head
    from discopatch.images import Limits
    from discopatch.pretrained import load_weights
    from discopatch.scorer import Scorer

    if head not in UNFITTED_HEADS:
        raise ParameterError(f"unknown head {head!r}: with --weights choose one of {', '.join(UNFITTED_HEADS)}")
    encoder = DiscriminatorEncoder(
        load_weights(weights),
        patches=options.patches_of(patches),
        sampling=sampling,  # type: ignore[arg-type]  # checked there
        seed=seed,
        device=device,
        batch_size=batch_size,
        limits=Limits(**limits),
    )
    return Scorer(encoder, get_head(head))


def count_refusals(predicted: "Iterable[PredictedImage]", refusals: "RefusalReport") -> "Iterator[PredictedImage]":
    """The same images; the report counts which of them were refused."""
    for each in predicted:
        if each.refusal is not None:
            refusals.add(each.refusal)
        else:
            refusals.accepted += 1
        yield each
