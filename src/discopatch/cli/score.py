"""discopatch score"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discopatch.cli.loading import load
from discopatch.cli.options import PROCESSES, counting, source_of, workers_of
from discopatch.cli.printers import Record, broken_pipe_is_fine, choose_printer

if TYPE_CHECKING:
    from discopatch.decision import Prediction
    from discopatch.images import Refusal, RefusalReport
    from discopatch.scoring import Score, Scorer

DECIDED = ("name", "score", "p_value", "is_ood")
ONLY_SCORED = ("name", "score")
FLAGGED = 3
BARE = "Bare scores of a discriminator, without a decision"


def score(
    images: Annotated[list[str], typer.Argument(help="Files, folders, patterns or tar shards.")],
    detector: Annotated[Path | None, typer.Option(help="A detector that `discopatch fit` or `export` wrote.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="Also write a page to look at, one HTML file.")] = None,
    close_ups: Annotated[int, typer.Option(help="How many of the strangest images the page shows.", min=0)] = 12,
    fail_on_ood: Annotated[
        bool, typer.Option("--fail-on-ood", help="Exit with status 3 when an image is unlike the normal ones.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Images that pass together.", min=1)] = 8,
    workers: Annotated[int | None, typer.Option(help="How many decode.", min=1)] = None,
    processes: Annotated[bool, typer.Option("--processes", help=PROCESSES)] = False,
    weights: Annotated[
        Path | None, typer.Option(help="A .safetensors file that `discopatch train` wrote.", rich_help_panel=BARE)
    ] = None,
    patches: Annotated[int, typer.Option(help="Patches an image.", min=1, rich_help_panel=BARE)] = 64,
    sampling: Annotated[
        str, typer.Option(help="random (seeded, the same for all), grid or dense.", rich_help_panel=BARE)
    ] = "random",
    head: Annotated[str, typer.Option(help="logit, or sigmoid for the paper's score.", rich_help_panel=BARE)] = "logit",
    seed: Annotated[int, typer.Option(help="Of the places of the patches.", rich_help_panel=BARE)] = 0,
) -> None:
    """Print each image's name, score, p-value and verdict: the higher the score, the less it is like normal images."""
    if (detector is None) == (weights is None):
        raise typer.BadParameter(
            "give either --detector (from `discopatch fit`) or --weights (from `discopatch train`)"
        )
    if detector is None and (report is not None or fail_on_ood):
        raise typer.BadParameter("--report and --fail-on-ood need a decision: give --detector")
    if detector is not None and detector.is_dir() and report is not None:
        raise typer.BadParameter("--report needs what an export leaves behind: give the detector that it was made from")
    out = choose_printer(as_csv=as_csv, as_json=as_json, fields=DECIDED if detector else ONLY_SCORED)

    from rich.console import Console
    from rich.text import Text

    from discopatch.images import RefusalReport

    source, reading = source_of(images), workers_of(workers, processes=processes)
    console, refusals, findings = Console(stderr=True), RefusalReport(), None
    if detector is not None:
        from discopatch.report import Findings

        loaded = load(detector, device=device, batch_size=batch_size)
        findings = Findings(close_ups, refusals=refusals, for_report=report is not None)
        records = (decision_record(each) for each in findings.gather(loaded.judge(source, workers=reading)))
    else:
        scorer = bare_scorer(weights, patches, sampling, head, seed, device, batch_size)
        records = (score_record(result, refusals) for result in scorer.score(source, workers=reading))
    with counting(console, "scoring") as one_more, broken_pipe_is_fine():
        for record in records:
            out.print(record)
            one_more()
        out.end()
    if not refusals.accepted:
        raise refusals.nothing_left()
    if refusals:
        console.print(Text(refusals.summary(), style="yellow"), soft_wrap=True)  # names may hold [brackets]
    if findings is not None and report is not None:
        from discopatch.detector import Detector

        assert isinstance(loaded, Detector), "an export was refused above"
        findings.write(report, loaded, title=", ".join(images), created=datetime.now().astimezone().isoformat())
        console.print(Text(f"report: {report}"), soft_wrap=True)
    if findings is not None and fail_on_ood and findings.flagged:
        raise typer.Exit(FLAGGED)


def bare_scorer(
    weights: Path | None, patches: int, sampling: str, head: str, seed: int, device: str, batch_size: int
) -> "Scorer":
    """The paper's way: patches of a discriminator that was trained on the normal images themselves."""
    from discopatch.model.weights import Weights
    from discopatch.scoring import Head, LogitHead, Scorer, SigmoidHead

    assert weights is not None
    heads: dict[str, type[Head]] = {"logit": LogitHead, "sigmoid": SigmoidHead}
    if head not in heads:
        raise ValueError(f"unknown head {head!r}: with --weights choose one of {', '.join(heads)}")
    return Scorer(
        Weights.load(weights),
        patches=patches,
        sampling=sampling,  # type: ignore[arg-type]  # checked there
        head=heads[head](),
        seed=seed,
        device=device,
        batch_size=batch_size,
    )


def decision_record(prediction: "Prediction") -> Record:
    """The prediction as plain values; a score keeps all its digits."""
    if prediction.error is not None:
        return {"name": prediction.name, "error": prediction.error}
    return {name: getattr(prediction, name) for name in DECIDED}


def score_record(result: "Score | Refusal", refusals: "RefusalReport") -> Record:
    """The same for a bare score, counting it on the way."""
    from discopatch.images import Refusal

    if isinstance(result, Refusal):
        refusals.add(result)
        return {"name": result.name, "error": result.error}
    refusals.accepted += 1
    return {"name": result.name, "score": result.score}
