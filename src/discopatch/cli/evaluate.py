"""discopatch evaluate"""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from discopatch.evaluation import Evaluation

NORMAL = "Folder of normal images that the detector was not fitted on."
DEFECTS = "Folder of images with defects; its subfolders are kinds of defects. Images of --normal in it are left out."
MASKS = "Folder of masks, white where the defect is, with the names and subfolders of the defects."
SHOWN = 5  # names of defects without a mask, and refused files, that are printed


def evaluate(
    detector: options.Detector,
    normal: Annotated[str, typer.Option(help=NORMAL)],
    defects: Annotated[str, typer.Option(help=DEFECTS)],
    masks: Annotated[Path | None, typer.Option(help=MASKS)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="HTML file to write a report to.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resamples that give intervals.", min=0)] = 0,
    device: options.Device = "auto",
    networks: options.Networks = None,
) -> None:
    """Measure a detector on labelled images: AUROC, AUPRO with masks, and what it finds at promised rates."""
    from rich.console import Console

    from discopatch.utils import check_output

    console = Console(stderr=True)
    if report is not None:
        check_output(report)
    fitted = options.load(detector, networks, device=device)
    with options.progress_bar(console, "evaluating") as bar:
        found = fitted.evaluate(normal, defects, masks, seed=seed, progress=bar)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        for part in printed_parts(found):
            Console(highlight=False, markup=False, soft_wrap=True).print(part)
    for text in notices_of(found):
        options.notice(console, text, "yellow")
    if report is not None:
        from discopatch.report import write_evaluation

        created = datetime.now().astimezone().isoformat()
        write_evaluation(report, found, fitted, title=defects, created=created)
        options.notice(console, f"report: {report}")


def printed_parts(found: "Evaluation") -> "Iterator[str | Table]":
    """The metrics, the promised rates, the kinds of defects if there are several, and the suggestion."""
    yield f"{found.normal_images:,} normal images, {found.defect_images:,} defects, {found.masks:,} masks"
    yield table(("", "95 % interval"), [(name, each.text) for name, each in found.measures.items()])
    rows = []
    for each in found.rates:
        shares = f"needs {each.calibration_images_needed} calibration images", ""
        if each.found and each.falsely_flagged:
            shares = each.found.text, each.falsely_flagged.text
        rows.append((f"{100 * each.rate:g} %{' *' * (each.rate == found.false_alarm_rate)}", *shares))
    yield table(("promised rate", "defects found", "normal images flagged"), rows)
    yield f"* the rate of the detector, which has {found.calibration_images:,} calibration images"
    if len(found.kinds) > 1:
        kinds = [
            (each.kind, f"{each.images:,}", each.auroc.text, each.found.text if each.found else "")
            for each in found.kinds
        ]
        yield table(("kind of defect", "images", "AUROC", "found *"), kinds)
    yield found.suggestion


def table(columns: tuple[str, ...], rows: "Sequence[tuple[str, ...]]") -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from discopatch.utils import escaped

    made = Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for row in rows:
        made.add_row(*(Text(escaped(cell)) for cell in row))
    return made


def notices_of(found: "Evaluation") -> "Iterator[str]":
    """Cautions, and the files that could not be used."""
    yield from found.cautions
    unused = {
        "refused": [f"{each.name} ({each.error})" for each in found.refused],
        "without a mask": found.without_mask,
    }
    for label, names in unused.items():
        if names:
            yield f"{len(names):,} {label}: {', '.join([*names[:SHOWN], *['...'] * (len(names) > SHOWN)])}"
