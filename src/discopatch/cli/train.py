"""discopatch train"""

import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from discopatch.model import Weights
    from discopatch.training import TrainingConfig, TrainingResult
    from discopatch.training.folder import RunFolder
    from discopatch.training.teachers import Teacher

PRESET = "paper, natural-v2, small or tiny. Default: paper."  # written here: --help does not import torch


def train(
    source: Annotated[list[str], typer.Argument(metavar="IMAGES", help=f"Normal images. {options.IMAGES}")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    preset: Annotated[str | None, typer.Option(help=PRESET)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    start: Annotated[str | None, typer.Option("--from", help=f"Weights to begin with. {options.WEIGHTS}")] = None,
    teacher: Annotated[str | None, typer.Option(help=f"Weights of a further teacher. {options.WEIGHTS}")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the images.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length in steps, instead of --epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of both networks.")] = None,
    seed: Annotated[int | None, typer.Option(help=options.SEED)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another field of `TrainingConfig`; may be repeated."),
    ] = None,
    accelerator: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Kind of device.")] = "auto",
    devices: Annotated[int, typer.Option(help="Devices on each node.", min=1)] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes, started by torchrun.", min=1)] = 1,
    precision: Annotated[
        Literal["auto", "32-true", "bf16-mixed"], typer.Option(help="auto is bf16-mixed on a GPU.")
    ] = "auto",
    workers: options.ReadBy = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of decoded images (~/.cache/discopatch).")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log the losses to TensorBoard.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="Save and stop after that long.")] = None,
) -> None:
    """Train the paper's model on normal images and leave its discriminator in OUT."""
    from rich.console import Console

    from discopatch import training
    from discopatch.pretrained import load_weights
    from discopatch.training.config import RUN_SETTINGS, RunOptions
    from discopatch.training.folder import RunFolder

    console, beginning = Console(stderr=True), None if start is None else load_weights(start)
    given = {"epochs": epochs, "steps": steps, "learning_rate": lr, "seed": seed}
    changes = read_settings(settings or []) | {name: value for name, value in given.items() if value is not None}
    run_settings = {name: changes.pop(name) for name in RUN_SETTINGS if name in changes}
    config = choose_config(RunFolder(out) if resume else None, preset, beginning).with_settings(changes)
    config, teachers = load_teachers(config, None if teacher is None else load_weights(teacher), new=not resume)
    result = training.train(
        options.source_of(source),
        out,
        config,
        cache=cache,
        resume=resume,
        options=RunOptions(
            accelerator=accelerator,
            devices=devices,
            nodes=nodes,
            precision=precision,
            tensorboard=tensorboard,
            max_minutes=max_minutes,
            **run_settings,
        ),
        workers=options.readers_of(workers),
        console=console,
        start=beginning,
        teachers=teachers,
    )
    print_result(result, console)


def read_settings(settings: list[str]) -> dict[str, Any]:
    """Values of NAME=VALUE arguments, read as JSON if they are JSON."""
    from discopatch.training.config import RUN_SETTINGS, SETTINGS

    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in SETTINGS + RUN_SETTINGS:
            known = ", ".join(SETTINGS + RUN_SETTINGS)
            raise typer.BadParameter(f"{setting!r}: give NAME=VALUE, NAME one of {known}", param_hint="--set")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def choose_config(resumed: "RunFolder | None", preset: str | None, beginning: "Weights | None") -> "TrainingConfig":
    """The config of the resumed run, of the preset, or of the preset that the weights to begin with fit."""
    from discopatch.errors import RunError
    from discopatch.training.config import TrainingConfig, get_preset, preset_of

    if resumed is not None:
        config = TrainingConfig.from_dict(resumed.read()["config"])
        if preset not in (None, config.preset):
            raise RunError(f"{resumed.path} has the preset {config.preset}: drop --preset, or start a new run")
        return config
    if preset is None and beginning is not None:
        return preset_of(beginning.discriminator.architecture)
    return get_preset(preset or "paper")


def load_teachers(
    config: "TrainingConfig", given: "Weights | None", *, new: bool
) -> "tuple[TrainingConfig, dict[str, Teacher]]":
    """The teachers of the config, and the config with the given weights as a further teacher of a new run."""
    from discopatch.training.teachers import DISCRIMINATOR, BackboneTeacher, DiscriminatorTeacher

    found: dict[str, Teacher] = {}
    for name in config.teachers:
        if name != DISCRIMINATOR:
            from discopatch.bench.networks import load_backbone

            backbone = load_backbone(name)
            found[name] = BackboneTeacher(name, backbone.network, backbone.digest)
    if given is not None:
        found[DISCRIMINATOR] = DiscriminatorTeacher(given, config.architecture)
        if new:
            digests = {**config.teachers, DISCRIMINATOR: given.digest}
            config = replace(config, teachers=digests, weight_distilled=config.weight_distilled or 1.0)
    return config, found


def print_result(result: "TrainingResult", console: "Console") -> None:
    """Prints where the weights are and how to continue an incomplete run; once, not on every rank."""
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    from discopatch.images.stores import without_options
    from discopatch.training import Ending

    # Paths may hold [brackets].
    print_once = rank_zero_only(partial(console.print, markup=False, emoji=False, highlight=False, soft_wrap=True))
    print_once(f"{result.ending} after step {result.step:,}: {result.weights}")
    if result.ending is not Ending.COMPLETE:
        arguments = [without_options(argument) for argument in sys.argv[1:] if argument != "--resume"]
        print_once(f"continue with: discopatch {shlex.join(arguments)} --resume")
    if result.ending is Ending.INTERRUPTED:
        raise typer.Exit(130)
