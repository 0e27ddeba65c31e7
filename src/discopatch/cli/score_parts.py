"""discopatch score --out"""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from discopatch.cli import options
from discopatch.cli.parts import gate_fails, show_sum, shown_progress

if TYPE_CHECKING:
    from discopatch.batch.packed import LoadSettings
    from discopatch.batch.ray_engine import RayRun
    from discopatch.batch.run import Progress, Run
    from discopatch.images import Decoder, Workers

FAILED, REFUSED = 3, 4  # exit statuses


class DependentOptions:
    """Those that only go with another one."""

    def check_unused(self, needed: str) -> None:
        """Refuses what would have no effect without the needed one."""
        given = [name for name, value in vars(self).items() if value is not None and value is not False]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise typer.BadParameter(f"{names}: this is for scores in parts; give {needed} too")


@dataclass(frozen=True, kw_only=True)
class OutOptions(DependentOptions):
    """Those that only go with --out."""

    features: bool
    places: bool
    per_part: int | None
    rank: int | None
    world: int | None
    allow_missing: bool


@dataclass(frozen=True, kw_only=True)
class OnRayOptions(DependentOptions):
    """Those that only go with --engine ray, which only goes with --out."""

    engine: Literal["ray"] | None
    ray_address: str | None
    actors: int | None
    cpus_per_actor: int | None
    gpus_per_actor: float | None
    try_again: bool


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
    on_ray: OnRayOptions,
    gates: GateOptions,
    *,
    weights: list[str],
    device: str,
    batch_size: int,
    decoder: "Decoder | None",
    workers: "Workers",
    limits: options.GivenLimits,
) -> None:
    """Scores the images into a folder of Parquet and says what is there; exit statuses are those of `score`."""
    from rich.console import Console

    import discopatch
    from discopatch.batch.packed import LoadSettings
    from discopatch.batch.ranks import Ranks, device_of, find_ranks
    from discopatch.batch.run import score_to
    from discopatch.gate import FolderGate
    from discopatch.images import Limits
    from discopatch.utils import require

    run: Run
    require("pyarrow", extra="parquet")
    console = Console(stderr=True)
    ranks = Ranks(0, 1) if on_ray.engine else find_ranks(chosen.rank, chosen.world)
    if gates.gate is not None and ranks.world > 1:
        raise typer.BadParameter(
            "--fail-on decides about all images, of which each rank has some: run it without, then once more with "
            "--rank 0 --world 1"
        )
    predictor = discopatch.load(
        str(detector),
        weights=weights,
        device=device_of(device, ranks),
        batch_size=batch_size,
        decoder=decoder,
        **limits,
    )
    rule = FolderGate(predictor, fail_rate=gates.fail_rate, groups=gates.groups or "fitted")
    with shown_progress(console, "scoring") as progress:
        if on_ray.engine is not None:
            settings = LoadSettings(
                weights=tuple(weights), device=device, batch_size=batch_size, decoder=decoder, limits=Limits(**limits)
            )
            run = run_on_ray(images, detector, out, chosen, on_ray, settings, progress)
        else:
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
    run.check()
    if counts.images and not counts.refusals.accepted and (gates.gate is None or gates.allow_refused):
        raise counts.refusals.nothing_left()
    if gates.gate is not None:
        fails = gate_fails(console, run.folder, counts, gates.gate, rule)
        if fails or (counts.refusals and not gates.allow_refused):
            raise typer.Exit(FAILED if fails else REFUSED)


def run_on_ray(
    images: list[str],
    detector: Path,
    out: str,
    chosen: OutOptions,
    on_ray: OnRayOptions,
    settings: "LoadSettings",
    progress: "Progress",
) -> "RayRun":
    """The same by a cluster; what Ray prints about workers that ended goes where errors go."""
    from discopatch.batch.ray_engine import RayOptions, score_on_ray

    with redirect_stdout(sys.stderr):
        return score_on_ray(
            detector,
            options.source_of(images),
            out,
            load=settings,
            features=chosen.features,
            places=chosen.places,
            per_part=chosen.per_part,
            allow_missing=chosen.allow_missing,
            try_again=on_ray.try_again,
            options=RayOptions(on_ray.ray_address, on_ray.actors, on_ray.cpus_per_actor, on_ray.gpus_per_actor),
            progress=progress,
        )
