"""The trainings of the studies, all in one process, so that what is compiled for one serves the next."""

import gc
import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from discopatch.benchmark.studies.jobs import Job
from discopatch.files import write_json
from discopatch.model import Pair
from discopatch.model.blocks import Block
from discopatch.model.weights import Weights
from discopatch.training.critic import Critic
from discopatch.training.loop import Ending, Habits, Training
from discopatch.training.machine import Machine, decode, start_fabric
from discopatch.training.run import Run

LOG_EVERY = 50
SHORTEST = 0.01  # minutes: a limit of none at all would be no limit


@dataclass(frozen=True)
class School:
    """Where the trainings happen, and where they leave their runs."""

    source: tuple[str, ...]
    folder: Path
    machine: Machine
    console: Console

    def run_of(self, job: Job) -> Run:
        """Its folder: another recipe is another folder, so that nothing is ever mistaken for something else."""
        recipe = json.dumps(job.recipe.to_dict(), sort_keys=True)
        return Run(self.folder / "runs" / f"{job.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}")

    def is_complete(self, job: Job) -> bool:
        """Whether there is nothing left to train."""
        return bool(self.note_of(job).get("complete"))

    def weights_of(self, job: Job) -> Weights:
        """The discriminator of a complete run."""
        return Weights.load(self.run_of(job).weights)

    def train(self, job: Job, *, minutes: float | None = None, keep_vae: bool = False) -> Ending:
        """Begins, or goes on from the last checkpoint; a complete run is left as it is.

        Checkpoints are written at the end alone, and dropped again unless the VAE is needed: they are large.
        """
        if self.is_complete(job):
            return Ending.COMPLETE
        run, recipe = self.run_of(job), job.recipe
        resume = bool(run.checkpoints.newest_first())
        before = float(self.note_of(job).get("seconds", 0)) if resume else 0.0
        if not resume:
            shutil.rmtree(run.folder, ignore_errors=True)
        machine = self.machine if job.fused else replace(self.machine, compile=False)
        steps = recipe.steps or 1
        limit = None if minutes is None else max(minutes, SHORTEST)
        habits = Habits(checkpoint_every=steps, samples_every=steps, log_every=LOG_EVERY, max_minutes=limit)
        fabric = start_fabric(machine)
        start = time.perf_counter()
        pictures = decode(fabric, list(self.source), recipe, self.folder / "cache", machine, self.console)
        description = (run.resume if resume else run.begin)(recipe, pictures.digest)
        training = Training(fabric, recipe, pictures, run, machine, habits)
        critic = training.trained["critic"].network
        assert isinstance(critic, Critic)
        plain_lessons(critic)
        passes = passes_of(training.pair, critic)
        if resume:
            training.restore()
        with closing(training.open_logs(description, resume)) as logs:
            outcome = training.go_on(self.console, logs)
        del training, critic  # or the next training would not have their memory
        free_memory()
        complete = outcome.ending is Ending.COMPLETE
        if complete and not keep_vae:
            shutil.rmtree(run.checkpoints.folder)
        seconds = round(before + time.perf_counter() - start, 1)
        write_json(note_path(run), {"complete": complete, "seconds": seconds, "passes": passes})
        return outcome.ending

    def note_of(self, job: Job) -> Mapping[str, Any]:
        """What was noted at the end of the last attempt."""
        path = note_path(self.run_of(job))
        note: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return note

    def describe(self, job: Job) -> dict[str, Any]:
        """A complete run, for JSON."""
        run, weights, recipe = self.run_of(job), self.weights_of(job), job.recipe
        note, description = self.note_of(job), run.read()
        side = recipe.architecture.patch_size
        return {
            "kind": job.kind,
            "seed": recipe.seed,
            "steps": recipe.steps,
            "patches": job.patches,
            "patch size": side,
            "pixels": job.patches * side**2,
            "seconds": note["seconds"],
            "passes": note["passes"],
            "weights digest": weights.digest,
            "data digest": description["data_digest"],
            "recipe": recipe.to_dict(),
        }


def note_path(run: Run) -> Path:
    """Beside what every run has."""
    return run.folder / "study.json"


def plain_lessons(critic: Critic) -> None:
    """Lets whole pictures, whose size changes from step to step, take the plain passes.

    Each size would be compiled anew, which takes minutes and would not pay in trainings this short.
    """
    fused = fused_blocks(critic)
    if critic.names is None or not fused:
        return

    def choose(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        for block in fused:
            block.fused = not options.get("whole", False)

    critic.register_forward_pre_hook(choose, with_kwargs=True)


def passes_of(pair: Pair, critic: Critic) -> str:
    """Which of the networks take the compiled passes."""
    if not pair.vae.fused:
        return "plain"
    if not fused_blocks(critic):
        return "fused, discriminator plain"
    return "fused" if critic.names is None else "fused, whole pictures plain"


def fused_blocks(network: nn.Module) -> list[Block]:
    """Those that take the compiled passes."""
    return [block for block in network.modules() if isinstance(block, Block) and block.fused]


def free_memory() -> None:
    """What the last training held goes back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
