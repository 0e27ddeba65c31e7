"""discopatch train"""

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli import options
from discopatch.training.config import DISCRIMINATOR, Hardware, RunOptions, TrainingConfig

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.training import TrainingResult

CONFIG = "Config (where unset, the preset's)"
HARDWARE = "Hardware"
OUTPUT = "Output"


def flags(settings: type, panel: str, *, by_preset: bool = False) -> Iterator[Parameter]:
    """One option for each field that has a help text; with `by_preset` its default is None, for the preset's value."""
    for field in fields(settings):
        if "help" not in field.metadata:
            continue
        kind: Any = field.type
        name = field.metadata.get("flag", f"--{field.name.replace('_', '-')}")
        if kind in (bool, bool | None) and field.default is not False:
            name = f"{name}/--no-{name.removeprefix('--')}"
        option = typer.Option(name, help=field.metadata["help"], rich_help_panel=panel)
        annotation, default = (kind | None, None) if by_preset else (kind, field.default)
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, option])


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flags of all settings in place of its `**settings`."""
    own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(command).parameters.values()][:-1]
    generated = (
        *flags(TrainingConfig, CONFIG, by_preset=True),
        *flags(Hardware, HARDWARE),
        *flags(RunOptions, OUTPUT),
    )
    command.__signature__ = signature(command).replace(parameters=[*own, *generated])  # type: ignore[attr-defined]
    return command


@with_flags
def train(
    source: Annotated[list[str], typer.Argument(metavar="IMAGES", help=f"Normal images. {options.IMAGES}")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    preset: Annotated[
        str | None, typer.Option(help="paper (the default), natural, natural-v2, residual, full, small or tiny.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    start: Annotated[str | None, typer.Option(help=f"Weights to start from. {options.WEIGHTS}")] = None,
    teacher: Annotated[str | None, typer.Option(help=f"Weights to distil. {options.WEIGHTS}")] = None,
    normalisation: Annotated[
        Literal["patch", "batch", "group", "instance"] | None,
        typer.Option(help="The discriminator's layers.", rich_help_panel=CONFIG),
    ] = None,
    fit: Annotated[
        Literal["crop", "squash"] | None, typer.Option(help="How images become square.", rich_help_panel=CONFIG)
    ] = None,
    workers: options.WorkerCount = None,
    processes: options.UseProcesses = False,
    max_pixels: options.MaxPixels = None,
    max_bytes: options.MaxBytes = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of decoded images (~/.cache/discopatch).")] = None,
    **settings: Any,
) -> None:
    """Train the paper's model on normal images and leave its discriminator in OUT."""
    from rich.console import Console

    from discopatch import training
    from discopatch.images import Limits
    from discopatch.pretrained import load_weights
    from discopatch.training.checkpoint import RunFolder

    console = Console(stderr=True)
    teacher_weights = None if teacher is None else load_weights(teacher)
    digest = None if teacher_weights is None else teacher_weights.digest
    changes = select(TrainingConfig, settings)
    config = choose_config(out if resume else None, preset, normalisation, fit, changes, teacher=digest)
    result = training.train(
        options.source_of(source),
        out,
        config,
        cache=cache,
        resume=resume,
        hardware=Hardware(
            **select(Hardware, settings),
            workers=options.workers_of(workers, processes=processes),
            limits=Limits(**options.limits_of(max_pixels, max_bytes)),
        ),
        options=RunOptions(**select(RunOptions, settings)),
        console=console,
        start=None if start is None or (resume and RunFolder(out).has_results) else load_weights(start),
        teacher=teacher_weights,
    )
    print_result(result, console)


def select(kind: type, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are fields of that class."""
    return {field.name: settings[field.name] for field in fields(kind) if field.name in settings}


def choose_config(
    resumed: Path | None,
    preset: str | None,
    normalisation: Any,
    fit: Any,
    changes: dict[str, Any],
    *,
    teacher: str | None,
) -> TrainingConfig:
    """The preset's config or the resumed run's, with what the flags change; a run refuses what may not change.

    `teacher` is the digest of a discriminator that teaches. Without weight on teachers there are none.
    """
    from discopatch.errors import RunError
    from discopatch.training.checkpoint import RunFolder
    from discopatch.training.presets import get_preset

    if resumed is None:
        config = get_preset(preset or "paper")
    else:
        config = TrainingConfig.from_dict(RunFolder(resumed).read()["config"])
        if preset not in (None, config.preset):
            raise RunError(f"{resumed} was begun with the preset {config.preset}: drop --preset, or start a new run")
    if normalisation is not None:
        changes["architecture"] = replace(config.architecture, normalisation=normalisation)
    if teacher is not None:
        changes["teachers"] = {**config.teachers, DISCRIMINATOR: teacher}
        if changes["weight_distilled"] is None and resumed is None:
            changes["weight_distilled"] = 1.0
    elif changes["weight_distilled"] == 0:
        changes["teachers"] = {}
    if fit is not None:
        changes["transform"] = replace(config.transform, fit=fit)
    return replace(config, **{name: value for name, value in changes.items() if value is not None})


def print_result(result: "TrainingResult", console: "Console") -> None:
    """Prints where the weights are and how to continue an incomplete run; once, not on every rank."""
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    from discopatch.images.stores import without_options
    from discopatch.training import Ending

    # Paths may hold [brackets].
    print_once = rank_zero_only(partial(console.print, markup=False, emoji=False, highlight=False, soft_wrap=True))
    print_once(f"{result.ending} after step {result.step:,}: {result.weights}")
    if result.replaced:
        print_once(f"{result.replaced:,} of {result.images_seen:,} images could not be read; others stood in for them")
    if result.ending is not Ending.COMPLETE:
        arguments = [without_options(argument) for argument in sys.argv[1:] if argument != "--resume"]
        print_once(f"continue with: discopatch {shlex.join(arguments)} --resume")
    if result.ending is Ending.INTERRUPTED:
        raise typer.Exit(130)
