"""discopatch audit"""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from discopatch.cli import options

OUT = "HTML file to write a page with pictures to."
EXCLUDE_LIST = "Text file to write the names to that `discopatch fit --exclude` leaves out."
SHOWN = 10  # names of unsupported and of broken images that are printed


def audit(
    images: Annotated[list[str], typer.Argument(help=f"Normal images. {options.IMAGES}")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help=OUT)] = None,
    exclude_list: Annotated[Path | None, typer.Option(metavar="TXT", help=EXCLUDE_LIST)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    weights: Annotated[str | None, typer.Option(help=f"{options.WEIGHTS} {options.DEFAULT_WEIGHTS_TEXT}")] = None,
    seed: Annotated[int, typer.Option(help=options.SEED, min=0)] = 0,
    device: options.Device = "auto",
    workers: options.ReadBy = None,
) -> None:
    """Find normal images that are not normal, before a fit: unusual ones, copies, broken files, groups and drift."""
    reading = options.readers_of(workers)

    from rich.console import Console

    from discopatch.audit import audit as audit_images
    from discopatch.pretrained import DEFAULT_WEIGHTS
    from discopatch.utils import check_output, escaped, write_atomically

    for path in filter(None, (out, exclude_list)):
        check_output(path)
    console, source, settings = Console(stderr=True), options.source_of(images), {"seed": seed, "device": device}
    with options.progress_bar(console, "reading normal images") as bar:
        found = audit_images(
            source,
            weights=weights or DEFAULT_WEIGHTS,
            seed=seed,
            device=device,
            workers=reading,
            progress=bar.follow_fit,
        )
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print(f"{len(found.predictions):,} images")
        for finding, number in found.counts.items():
            print(f"  {finding}: {number:,}")
        for each in [*found.unsupported[:SHOWN], *found.broken[:SHOWN]]:
            print(escaped(f"{each.name}: {each.error or f'not supported by the others, p = {each.p_value:.1g}'}"))
    for drift in found.drifts:
        options.notice(console, f"caution: {drift}", "yellow")
    if out is not None:
        from discopatch.report import write_audit

        shown = {"images": ", ".join(images), "weights": weights or DEFAULT_WEIGHTS, **settings}
        write_audit(out, found, title=images[0], settings=shown, created=datetime.now().astimezone().isoformat())
        options.notice(console, f"page: {out}")
    if exclude_list is not None:
        lines = "".join(f"{escaped(name)}\n" for name in found.exclude)
        write_atomically(exclude_list, lambda partial: partial.write_text(lines, encoding="utf-8", newline="\n"))
        options.notice(console, f"{exclude_list}: {len(found.exclude):,} names for `discopatch fit --exclude`")
