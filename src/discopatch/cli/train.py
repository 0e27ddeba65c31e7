"""discopatch train"""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli import options

if TYPE_CHECKING:
    from discopatch.training import TrainingConfig
    from discopatch.training.teachers import Teacher

PRESET = (
    "paper, natural-v3, natural-small-v2, small or tiny. Default: paper."  # written here: --help does not import torch
)
SET = "Another field of `TrainingConfig`; may be repeated."


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
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET)] = None,
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
    from lightning_fabric.utilities.rank_zero import rank_zero_only
    from rich.console import Console

    from discopatch import training
    from discopatch.images.stores import without_options
    from discopatch.pretrained import load_weights
    from discopatch.training.config import RUN_SETTINGS, preset_of
    from discopatch.training.folder import RunFolder
    from discopatch.training.teachers import DISCRIMINATOR, DiscriminatorTeacher

    given = {"epochs": epochs, "steps": steps, "learning_rate": lr, "seed": seed}
    changes = read_settings(settings or []) | {name: value for name, value in given.items() if value is not None}
    run_settings = {name: changes.pop(name) for name in RUN_SETTINGS if name in changes}
    beginning = None if start is None else load_weights(start)
    if resume:
        config = RunFolder(out).config(preset)
    elif preset is None and beginning is not None:
        config = preset_of(beginning.discriminator.architecture)
    else:
        config = training.get_preset(preset or "paper")
    config = config.with_settings(changes)
    teachers = load_teachers(config)
    if teacher is not None:
        weights = load_weights(teacher)
        teachers[DISCRIMINATOR] = DiscriminatorTeacher(weights, config.architecture)
        if not resume:
            digests = {**config.teachers, DISCRIMINATOR: weights.digest}
            config = replace(config, teachers=digests, weight_distilled=config.weight_distilled or 1.0)

    console = Console(stderr=True)
    run_options = training.RunOptions(
        accelerator, devices, nodes, precision, tensorboard=tensorboard, max_minutes=max_minutes, **run_settings
    )
    result = training.train(
        options.source_of(source),
        out,
        config,
        cache=cache,
        resume=resume,
        options=run_options,
        workers=options.readers_of(workers),
        console=console,
        start=beginning,
        teachers=teachers,
    )
    print_once = rank_zero_only(options.notice)
    print_once(console, f"{result.ending} after step {result.step:,}: {result.weights}")
    if result.ending is not training.Ending.COMPLETE:
        arguments = [without_options(argument) for argument in sys.argv[1:] if argument != "--resume"]
        print_once(console, f"continue with: discopatch {shlex.join(arguments)} --resume")
    if result.ending is training.Ending.INTERRUPTED:
        raise typer.Exit(130)


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


def load_teachers(config: "TrainingConfig") -> "dict[str, Teacher]":
    """The teachers of the config that have names of their own: released networks, and classifiers."""
    from discopatch.bench.networks.fetch import load_backbone
    from discopatch.pretrained import PRETRAINED, load_pretrained
    from discopatch.training.teachers import DISCRIMINATOR, BackboneTeacher, DiscriminatorTeacher

    found: dict[str, Teacher] = {}
    for name in (each for each in config.teachers if each != DISCRIMINATOR):
        if name in PRETRAINED:
            found[name] = DiscriminatorTeacher(load_pretrained(name), config.architecture)
        else:
            backbone = load_backbone(name)
            found[name] = BackboneTeacher(name, backbone.network, backbone.digest)
    return found
