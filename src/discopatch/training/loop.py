"""The run around the step: devices, precision, data, checkpoints, and what can go wrong."""

import time
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.text import Text
from torch import Tensor

from discopatch.defects import DEFECTS
from discopatch.extras import check_installed
from discopatch.images import PixelCache
from discopatch.images.cache import default_root
from discopatch.model import Discriminator, Pair
from discopatch.model.weights import Weights
from discopatch.patches import cut, random_corners, to_unit
from discopatch.training.checkpoint import Trained, all_finite
from discopatch.training.critic import Critic
from discopatch.training.display import Display
from discopatch.training.interrupt import interruptible
from discopatch.training.lesson import Lesson
from discopatch.training.log import CsvLog, Log, Logs, TensorBoardLog, WandbLog, save_patches
from discopatch.training.machine import Machine, decode, leave_together, start_fabric, total_over_ranks
from discopatch.training.order import pictures_at, step_generator
from discopatch.training.pictures import Pictures, shrunk
from discopatch.training.recipe import Recipe
from discopatch.training.run import Run
from discopatch.training.step import Losses, Noise, adversarial_step, learnable, lesson_step
from discopatch.training.teacher import Teacher, check_can_teach

SAMPLES = 12
TEACHER_LOOKS_AT = 512
SECONDS_BETWEEN_LOOKS = 2.0
NO_RANK = 2**32 - 1  # draws for pictures must be nobody's draws for training


class TrainingDiverged(RuntimeError):  # noqa: N818 - it says what happened
    """A loss or a weight is no longer a number."""


class Ending(StrEnum):
    """Why a run came to its end."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class Habits:
    """How often a run writes what; counted in steps."""

    checkpoint_every: int = 1000
    samples_every: int = 1000
    log_every: int = 20
    tensorboard: bool = False
    wandb: str | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "samples_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and where its weights are."""

    ending: Ending
    step: int
    weights: Path


def train(
    source: object,
    out: Path,
    recipe: Recipe,
    *,
    cache: Path | None = None,
    resume: bool = False,
    machine: Machine = Machine(),  # noqa: B008 - frozen
    habits: Habits = Habits(),  # noqa: B008 - frozen
    console: Console | None = None,
    start: Weights | None = None,
    teacher: Weights | None = None,
) -> Outcome:
    """Trains both networks on the pictures of `source` and leaves the discriminator in `out`.

    Decoded pictures are kept in `cache`, the user's cache folder unless given, and found there by the next run.
    Several devices or nodes train together under Fabric's DDP, each on its own pictures; `torchrun` starts them.
    `start` is a discriminator that already knows something; the VAE always begins anew. `teacher` is one whose eyes the
    new one gets, as much as the recipe says.
    """
    check_teacher(recipe, teacher)
    console = console or Console(stderr=True)
    run = Run(out)
    if resume:
        run.read()
    else:
        run.check_free()
    if habits.tensorboard:
        check_installed("tensorboard", extra="tensorboard")
    if habits.wandb:
        check_installed("wandb", extra="wandb")
    fabric = start_fabric(machine)
    pictures = decode(fabric, source, recipe, cache or default_root(), machine, console)
    if fabric.is_global_zero:
        description = (run.resume if resume else run.begin)(recipe, pictures.digest)
        if pictures.report:
            console.print(Text(pictures.report.summary(), style="yellow"))  # names may hold [brackets]
    fabric.barrier()
    if not fabric.is_global_zero:
        description = run.read()
    training = Training(fabric, recipe, pictures, run, machine, habits, teacher)
    if start is not None:
        training.pair.discriminator.load_state_dict(start.discriminator.state_dict())
    if resume:
        training.restore()
    with closing(training.open_logs(description, resume)) as logs:
        outcome = training.go_on(console, logs)
    leave_together(fabric, occasion=f"{description['run_id']}/{outcome.step}")
    return outcome


@dataclass
class Training:
    """A run in memory: the networks, their optimisers, and the place in the stream of pictures."""

    fabric: Fabric
    recipe: Recipe
    cache: PixelCache
    run: Run
    machine: Machine
    habits: Habits
    teacher_weights: Weights | None = None
    step: int = 0
    seen: int = 0
    pending: list[Tensor] = field(default_factory=list)  # losses of the last steps, still on the device

    def __post_init__(self) -> None:
        fabric, recipe = self.fabric, self.recipe
        on_gpu = fabric.device.type == "cuda"
        self.pictures = Pictures(self.cache, fabric.device)
        self.total = recipe.total_steps(len(self.pictures), fabric.world_size)
        self.pair = Pair.from_seed(recipe.architecture, recipe.seed)
        if on_gpu if self.machine.compile is None else self.machine.compile:
            self.pair.fuse()
        self.teacher = self.prepare_teacher()
        critic = critic_of(self.pair.discriminator, recipe, taught=self.teacher.statistics if self.teacher else 0)
        self.trained, self.wrapped = {}, {}
        networks = {"vae": self.pair.vae, "critic": critic} if recipe.forgeries else {"critic": critic}
        for name, network in networks.items():
            optimiser = torch.optim.Adam(
                learnable(network),
                lr=recipe.learning_rate,
                betas=(recipe.beta1, recipe.beta2),
                fused=on_gpu,
            )
            self.wrapped[name] = fabric.setup(network, optimiser)
            self.trained[name] = Trained(network, optimiser)

    def restore(self) -> None:
        """Goes back to where the newest checkpoint stands."""
        self.step, self.seen = self.run.checkpoints.restore(self.trained)

    def open_logs(self, description: dict[str, Any], resume: bool) -> Logs:
        """The places that losses go to; on the first rank only."""
        if not self.fabric.is_global_zero:
            return Logs([])
        logs: list[Log] = [CsvLog(self.run.losses, step=self.step)]
        if self.habits.tensorboard:
            logs.append(TensorBoardLog(self.run.folder / "tensorboard", step=self.step))
        if self.habits.wandb:
            logs.append(WandbLog(self.habits.wandb, self.run.folder, config=description, resume=resume))
        return Logs(logs)

    def go_on(self, console: Console, logs: Logs) -> Outcome:
        """Steps until the end, an interruption, or the time limit; the state is saved in each case."""
        ending = Ending.COMPLETE
        deadline = time.monotonic() + 60 * (self.habits.max_minutes or float("inf"))
        quiet = console if self.fabric.is_global_zero else Console(quiet=True)
        alone = self.fabric.world_size == 1
        saved = self.step
        started = (time.monotonic(), self.step)
        with Display(quiet, total=self.total, step=self.step) as display, interruptible() as interrupt:
            while self.step < self.total:
                self.pending.append(torch.stack(self.one_step()))
                log_due = self.step % self.habits.log_every == 0 or self.step == self.total
                if log_due or (alone and time.monotonic() - started[0] > SECONDS_BETWEEN_LOOKS):
                    losses = self.write_losses(logs)
                    seconds, steps = time.monotonic() - started[0], self.step - started[1]
                    display.update(self.step, losses, self.patches_per_step * steps / max(seconds, 1e-9))
                    started = (time.monotonic(), self.step)
                if self.step % self.habits.samples_every == 0 or self.step == self.total:
                    self.save_samples()
                if self.step % self.habits.checkpoint_every == 0 or self.step == self.total:
                    self.save(logs)
                    saved = self.step
                # Several ranks must stop at the same step, so they only ask each other when they meet anyway.
                if log_due or alone:
                    if self.anywhere(interrupt.requested):
                        ending = Ending.INTERRUPTED
                        break
                    if self.anywhere(time.monotonic() > deadline):
                        ending = Ending.OUT_OF_TIME
                        break
            if saved < self.step:
                self.save(logs)
        return Outcome(ending, self.step, self.run.weights)

    def one_step(self) -> Losses:
        """The next step of the run."""
        recipe, rank = self.recipe, self.fabric.global_rank
        generator = step_generator(recipe.seed, self.step, rank, self.fabric.device)
        for _, optimiser in self.wrapped.values():
            for group in optimiser.param_groups:
                group["lr"] = recipe.learning_rate_at(self.step, self.total)
        pictures = shrunk(self.next_pictures(), recipe.smallest_scale, generator)
        critic, critic_optimiser = self.wrapped["critic"]
        if recipe.forgeries:
            vae, vae_optimiser = self.wrapped["vae"]
            real = self.patches_of(pictures, generator)
            noise = Noise.draw(len(real), recipe.architecture.latent, generator)
            lesson = self.lesson(pictures, generator) if recipe.weight_spoiled else None
            losses = adversarial_step(
                vae,
                critic,
                (vae_optimiser, critic_optimiser),
                real,
                noise,
                recipe,
                lesson=lesson,
                backward=self.fabric.backward,
            )
        else:
            lesson = self.lesson(pictures, generator)
            losses = lesson_step(critic, critic_optimiser, lesson, recipe, backward=self.fabric.backward)
        self.step += 1
        self.seen += recipe.images * self.fabric.world_size
        return losses

    def next_pictures(self) -> Tensor:
        """This rank's share of the next pictures."""
        start = self.seen + self.recipe.images * self.fabric.global_rank
        which = pictures_at(start, self.recipe.images, pictures=len(self.pictures), seed=self.recipe.seed)
        return self.pictures.batch(which)

    def patches_of(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        """Real patches at random places."""
        recipe = self.recipe
        size, patch_size = pictures.shape[1], recipe.architecture.patch_size
        corners = random_corners(len(pictures), recipe.patches, size=size, patch_size=patch_size, generator=generator)
        return to_unit(cut(pictures, corners, patch_size))

    def lesson(self, pictures: Tensor, generator: torch.Generator) -> Lesson:
        """The whole pictures beside spoiled copies; every step begins with another defect."""
        lesson = Lesson.draw(to_unit(pictures).permute(0, 3, 1, 2), generator, first=self.step)
        return lesson if self.teacher is None else self.teacher.teach(lesson)

    def prepare_teacher(self) -> Teacher | None:
        """Shown the first pictures of the run, whichever step it goes on from."""
        if self.teacher_weights is None:
            return None
        recipe, device = self.recipe, self.fabric.device
        first = pictures_at(0, min(TEACHER_LOOKS_AT, len(self.pictures)), pictures=len(self.pictures), seed=recipe.seed)
        batches = (
            shrunk(
                self.pictures.batch(which), recipe.smallest_scale, step_generator(recipe.seed, step, NO_RANK, device)
            )
            for step, which in enumerate(np.array_split(first, -(-len(first) // recipe.images)))
        )
        shown = (to_unit(batch).permute(0, 3, 1, 2) for batch in batches)
        return Teacher.prepare(self.teacher_weights, shown, device)

    @property
    def patches_per_step(self) -> int:
        """Over all ranks."""
        return self.recipe.images * self.recipe.patches * self.fabric.world_size

    def anywhere(self, happened: bool) -> bool:
        """Whether it happened on any rank."""
        if self.fabric.world_size == 1:
            return happened
        here = torch.tensor(float(happened), device=self.fabric.device)
        return bool(total_over_ranks(self.fabric, here) > 0)

    def write_losses(self, logs: Logs) -> list[float]:
        """Notes the pending losses, averaged over ranks, and returns the last; one that is no number ends the run."""
        if not self.pending:
            return []
        table = torch.stack(self.pending)
        if self.fabric.world_size > 1:
            table = total_over_ranks(self.fabric, table) / self.fabric.world_size
        first = self.step - len(self.pending) + 1
        self.pending.clear()
        lines: list[list[float]] = table.tolist()
        for step, losses in enumerate(lines, start=first):
            logs.write(step, losses)
            if not all(isfinite(loss) for loss in losses):
                raise self.diverged(step, losses)
        logs.flush()
        return lines[-1]

    def diverged(self, step: int, losses: list[float]) -> TrainingDiverged:
        """Says where it went wrong and what is left."""
        listed = ", ".join(f"{name} {value:.4g}" for name, value in zip(Losses._fields, losses, strict=True))
        return TrainingDiverged(
            f"step {step}: a loss is no longer a number ({listed}); {self.run.checkpoints.last_good()}. "
            "Lower --lr or choose --precision 32-true in a new run"
        )

    def save(self, logs: Logs) -> None:
        """A checkpoint and the weights, after all losses up to here are noted and found to be numbers."""
        losses = self.write_losses(logs)
        if self.fabric.is_global_zero:
            if not all(all_finite(part.network) for part in self.trained.values()):
                raise self.diverged(self.step, losses or [float("nan")] * len(Losses._fields))
            self.run.checkpoints.save(self.step, self.seen, self.trained)
            Weights(self.pair.discriminator, self.recipe.transform, self.origin()).save(self.run.weights)
        self.fabric.barrier()

    def origin(self) -> dict[str, Any]:
        """What the weights say about where they come from."""
        description = self.run.read()
        return {**description, "step": self.step, "pictures_seen": self.seen}

    @torch.no_grad()
    def save_samples(self) -> None:
        """A picture of real, reconstructed and generated patches, from draws of its own that no step sees."""
        if not self.fabric.is_global_zero or not self.recipe.forgeries:
            return
        generator = step_generator(self.recipe.seed, self.step, NO_RANK, self.fabric.device)
        real = self.patches_of(self.next_pictures(), generator)[:: self.recipe.patches][:SAMPLES]
        noise = Noise.draw(len(real), self.recipe.architecture.latent, generator)
        self.pair.vae.eval()
        forged = self.pair.vae(real, noise.latent, noise.prior)
        self.pair.vae.train()
        save_patches(self.run.samples(self.step), (real, forged.reconstructed, forged.generated))


def check_teacher(recipe: Recipe, teacher: Weights | None) -> None:
    """The one that the recipe names, who looks at patches as the pupil does."""
    given = None if teacher is None else teacher.digest
    if given != recipe.teacher:
        raise ValueError(f"the recipe's teacher is {recipe.teacher}, given is {given}: give the weights of that digest")
    if teacher is not None:
        check_can_teach(teacher.discriminator.architecture, recipe.architecture)


def critic_of(discriminator: Discriminator, recipe: Recipe, *, taught: int = 0) -> Critic:
    """The discriminator, ready to learn by the recipe; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        defects = len(DEFECTS) if recipe.weight_spoiled and recipe.weight_named else 0
        return Critic(discriminator, defects=defects, taught=taught)
