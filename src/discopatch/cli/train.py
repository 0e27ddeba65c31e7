"""discopatch train"""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from discopatch.cli.options import PROCESSES, source_of, workers_of

if TYPE_CHECKING:
    from discopatch.training.recipe import Recipe

RECIPE = "Recipe (unset: as the preset has it)"
MACHINE = "Machine"
HABITS = "What is written, and when"


def train(
    images: Annotated[list[str], typer.Argument(help="Files, folders, patterns or tar shards of normal images.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    preset: Annotated[
        str | None, typer.Option(help="paper (unless said otherwise), natural, full, small or tiny.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    normalisation: Annotated[
        str | None, typer.Option(help="patch, batch, group or instance.", rich_help_panel=RECIPE)
    ] = None,
    grouping: Annotated[
        str | None, typer.Option(help="PatchNorm's group: batch (the paper) or image.", rich_help_panel=RECIPE)
    ] = None,
    fit: Annotated[str | None, typer.Option(help="To the square: crop or squash.", rich_help_panel=RECIPE)] = None,
    batch_images: Annotated[
        int | None, typer.Option("--images", help="Images a step and device.", rich_help_panel=RECIPE)
    ] = None,
    patches: Annotated[int | None, typer.Option(help="Patches an image.", rich_help_panel=RECIPE)] = None,
    epochs: Annotated[float | None, typer.Option(help="How often each image is seen.", rich_help_panel=RECIPE)] = None,
    steps: Annotated[int | None, typer.Option(help="Length in steps, instead.", rich_help_panel=RECIPE)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of both networks.", rich_help_panel=RECIPE)] = None,
    beta1: Annotated[float | None, typer.Option(help="Of Adam.", rich_help_panel=RECIPE)] = None,
    beta2: Annotated[float | None, typer.Option(help="Of Adam.", rich_help_panel=RECIPE)] = None,
    weight_kl: Annotated[float | None, typer.Option(help="Of the KL divergence.", rich_help_panel=RECIPE)] = None,
    weight_reconstructed: Annotated[
        float | None, typer.Option(help="Of reconstructions that fool.", rich_help_panel=RECIPE)
    ] = None,
    weight_generated: Annotated[
        float | None, typer.Option(help="Of generations that fool.", rich_help_panel=RECIPE)
    ] = None,
    weight_spoiled: Annotated[
        float | None, typer.Option(help="Of spoiled pictures as negatives.", rich_help_panel=RECIPE)
    ] = None,
    weight_named: Annotated[
        float | None, typer.Option(help="Of naming what spoiled them.", rich_help_panel=RECIPE)
    ] = None,
    decay: Annotated[
        float | None, typer.Option(help="Share of the run in which --lr falls to 0.", rich_help_panel=RECIPE)
    ] = None,
    smallest_scale: Annotated[
        float | None, typer.Option(help="Shrink pictures at random, down to this.", rich_help_panel=RECIPE)
    ] = None,
    forgeries: Annotated[
        bool | None, typer.Option("--forgeries/--no-forgeries", help="With a VAE (yes).", rich_help_panel=RECIPE)
    ] = None,
    start: Annotated[
        Path | None, typer.Option(help="Weights that the discriminator begins with.", rich_help_panel=RECIPE)
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Weights to learn from: released ones, or a file.", rich_help_panel=RECIPE)
    ] = None,
    weight_taught: Annotated[
        float | None, typer.Option(help="Of seeing as the teacher does (1).", rich_help_panel=RECIPE)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.", rich_help_panel=RECIPE)] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=MACHINE)] = "auto",
    devices: Annotated[int, typer.Option(help="Devices on each node.", rich_help_panel=MACHINE)] = 1,
    nodes: Annotated[int, typer.Option(help="Machines, started by torchrun.", rich_help_panel=MACHINE)] = 1,
    precision: Annotated[
        Literal["auto", "32-true", "bf16-mixed"],
        typer.Option(help="auto: bf16-mixed on a GPU.", rich_help_panel=MACHINE),
    ] = "auto",
    compile: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Fused, compiled passes (yes on a GPU).", rich_help_panel=MACHINE),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="How many decode.", min=1, rich_help_panel=MACHINE)] = None,
    processes: Annotated[bool, typer.Option("--processes", help=PROCESSES, rich_help_panel=MACHINE)] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Where decoded images go (~/.cache/discopatch).", rich_help_panel=MACHINE)
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Steps.", rich_help_panel=HABITS)] = 1000,
    samples_every: Annotated[int, typer.Option(help="Steps.", rich_help_panel=HABITS)] = 1000,
    log_every: Annotated[int, typer.Option(help="Steps.", rich_help_panel=HABITS)] = 20,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", rich_help_panel=HABITS)] = False,
    wandb: Annotated[str | None, typer.Option(help="Project of Weights & Biases.", rich_help_panel=HABITS)] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="Save and stop after that long.", rich_help_panel=HABITS)
    ] = None,
) -> None:
    """Train the paper's model on normal images and leave its discriminator in OUT."""
    from rich.console import Console

    from discopatch.model.weights import Weights
    from discopatch.training import loop, machine
    from discopatch.weights import load_weights

    console = Console(stderr=True)
    teaching = None if teacher is None else load_weights(teacher)
    recipe = choose_recipe(
        stored=out if resume else None,
        preset=preset,
        normalisation=normalisation,
        fit=fit,
        grouping=grouping,
        images=batch_images,
        patches=patches,
        epochs=epochs,
        steps=steps,
        learning_rate=lr,
        beta1=beta1,
        beta2=beta2,
        weight_kl=weight_kl,
        weight_reconstructed=weight_reconstructed,
        weight_generated=weight_generated,
        weight_spoiled=weight_spoiled,
        weight_named=weight_named,
        decay=decay,
        smallest_scale=smallest_scale,
        forgeries=forgeries,
        weight_taught=1.0 if teaching and weight_taught is None and not resume else weight_taught,
        teacher=None if teaching is None else teaching.digest,
        seed=seed,
    )
    outcome = loop.train(
        source_of(images),
        out,
        recipe,
        cache=cache,
        resume=resume,
        machine=machine.Machine(
            accelerator, devices, nodes, precision, compile, workers_of(workers, processes=processes)
        ),
        habits=loop.Habits(checkpoint_every, samples_every, log_every, tensorboard, wandb, max_minutes),
        console=console,
        start=None if start is None or resume else Weights.load(start),
        teacher=teaching,
    )
    finish(outcome, console)


def choose_recipe(
    *, stored: Path | None, preset: str | None, normalisation: str | None, fit: str | None, **changes: Any
) -> "Recipe":
    """The preset's recipe or the stored run's, with what the flags change; `Run.resume` refuses what may not change."""
    from discopatch.training.recipe import Recipe
    from discopatch.training.run import Run, RunError

    if stored is None:
        recipe = Recipe.of(preset or "paper", **changes)
    else:
        recipe = Recipe.from_dict(Run(stored).read()["recipe"])
        if preset not in (None, recipe.preset):
            raise RunError(f"{stored} was begun with the preset {recipe.preset}: drop --preset, or start a new run")
        recipe = replace(recipe, **{name: value for name, value in changes.items() if value is not None})
    parts: dict[str, Any] = {}
    if normalisation is not None:
        parts["architecture"] = replace(recipe.architecture, normalisation=normalisation)  # type: ignore[arg-type]
    if fit is not None:
        parts["transform"] = replace(recipe.transform, fit=fit)  # type: ignore[arg-type]
    return replace(recipe, **parts)


def finish(outcome: Any, console: Any) -> None:
    """Says where the weights are, and how to go on with a run that is not complete; once, not on every rank."""
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    from discopatch.training.loop import Ending

    # Paths may hold [brackets].
    say = rank_zero_only(partial(console.print, markup=False, emoji=False, highlight=False, soft_wrap=True))
    say(f"{outcome.ending} after step {outcome.step:,}: {outcome.weights}")
    if outcome.ending is not Ending.COMPLETE:
        again = [word for word in sys.argv[1:] if word != "--resume"]
        say(f"go on with: discopatch {shlex.join(again)} --resume")
    if outcome.ending is Ending.INTERRUPTED:
        raise typer.Exit(130)
