"""discopatch score --out"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from discopatch.cli import options
from discopatch.cli.parts import gate_fails, show_sum, shown_progress

if TYPE_CHECKING:
    from discopatch.images import Workers

FAILED, REFUSED = 3, 4  # exit statuses


@dataclass(frozen=True, kw_only=True)
class OutOptions:
    """Those that only go with --out."""

    features: bool
    places: bool
    per_part: int | None
    rank: int | None
    world: int | None
    allow_missing: bool

    def check_unused(self) -> None:
        """Refuses what would have no effect without --out."""
        given = [name for name, value in vars(self).items() if value is not None and value is not False]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise typer.BadParameter(f"{names}: this is for scores in parts; give --out too")


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What decides the exit status."""

    gate: Literal["folder", "any"] | None
    fail_rate: float
    groups: Literal["folder", "name", "none"] | None
    allow_refused: bool


def score_into(
    images: list[str],
    detector: Path,
    out: str,
    chosen: OutOptions,
    gates: GateOptions,
    *,
    weights: list[str],
    device: str,
    batch_size: int,
    workers: "Workers",
    limits: options.GivenLimits,
) -> None:
    """Scores the images into a folder of Parquet and says what is there; exit statuses are those of `score`."""
    from rich.console import Console

    import discopatch
    from discopatch.cluster.ranks import device_of, find_ranks
    from discopatch.cluster.run import score_to
    from discopatch.gate import FolderGate
    from discopatch.utils import require

    require("pyarrow", extra="parquet")
    console, ranks = Console(stderr=True), find_ranks(chosen.rank, chosen.world)
    if gates.gate is not None and ranks.world > 1:
        raise typer.BadParameter(
            "--fail-on decides about all images, of which each rank has some: run it without, then once more with "
            "--rank 0 --world 1"
        )
    predictor = discopatch.load(
        str(detector), weights=weights, device=device_of(device, ranks), batch_size=batch_size, **limits
    )
    rule = FolderGate(predictor, fail_rate=gates.fail_rate, groups=gates.groups or "fitted")
    with shown_progress(console, "scoring") as progress:
        run = score_to(
            predictor,
            options.source_of(images),
            out,
            features=chosen.features,
            places=chosen.places,
            per_part=chosen.per_part,
            rank=ranks.rank,
            world=ranks.world,
            workers=workers,
            allow_missing=chosen.allow_missing,
            progress=progress,
        )
    run.ranks = ranks
    counts = show_sum(console, run)
    if counts.images and not counts.refusals.accepted and (gates.gate is None or gates.allow_refused):
        raise counts.refusals.nothing_left()
    if gates.gate is not None:
        fails = gate_fails(console, run.folder, counts, gates.gate, rule)
        if fails or (counts.refusals and not gates.allow_refused):
            raise typer.Exit(FAILED if fails else REFUSED)
