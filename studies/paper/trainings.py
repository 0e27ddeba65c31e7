"""The trainings of the studies, all in one process, so that what is compiled for one serves the next."""

import gc
import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console

from discopatch.model import Weights
from discopatch.model.layers import Block
from discopatch.training import Ending, RunOptions, train
from discopatch.training.checkpoint import RunFolder
from discopatch.training.teachers import AuxiliaryDiscriminator, AuxiliaryOutput
from discopatch.utils import write_json
from paper.plan import Job

LOG_EVERY = 50
MIN_MINUTES = 0.01  # a limit of zero would be no limit


@dataclass(frozen=True)
class Trainings:
    """Where the trainings find their images, and where they leave their runs."""

    source: tuple[str, ...]
    folder: Path
    options: RunOptions
    console: Console

    def run_folder(self, job: Job) -> RunFolder:
        """Another config is another folder, so that no run is mistaken for another."""
        config = json.dumps(job.config.to_dict(), sort_keys=True)
        return RunFolder(self.folder / "runs" / f"{job.name}-{hashlib.sha256(config.encode()).hexdigest()[:8]}")

    def is_complete(self, job: Job) -> bool:
        return bool(self.note(job).get("complete"))

    def weights(self, job: Job) -> Weights:
        """The discriminator of a complete run."""
        return Weights.load(self.run_folder(job).weights)

    def train(self, job: Job, *, minutes: float | None = None, keep_vae: bool = False) -> Ending:
        """Begins the training, or continues from its last checkpoint; a complete run is left as it is.

        Checkpoints are written at the end alone, and dropped again unless the VAE is needed: they are large.
        """
        if self.is_complete(job):
            return Ending.COMPLETE
        run = self.run_folder(job)
        resume = bool(run.checkpoints())
        earlier = float(self.note(job).get("seconds", 0)) if resume else 0.0
        if not resume:
            shutil.rmtree(run.path, ignore_errors=True)
        steps = job.config.steps or 1
        limit = None if minutes is None else max(minutes, MIN_MINUTES)
        start = time.perf_counter()
        with plain_whole_images():
            result = train(
                list(self.source),
                run.path,
                job.config,
                cache=self.folder / "cache",
                resume=resume,
                options=replace(
                    self.options,
                    fused=self.options.fused if job.fused else False,
                    checkpoint_every=steps,
                    samples_every=steps,
                    log_every=LOG_EVERY,
                    max_minutes=limit,
                ),
                console=self.console,
            )
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # or the next training would not have the memory of this one
        complete = result.ending is Ending.COMPLETE
        if complete and not keep_vae:
            shutil.rmtree(run.path / "checkpoints")
        seconds = round(earlier + time.perf_counter() - start, 1)
        write_json(note_path(run), {"complete": complete, "seconds": seconds, "passes": self.passes(job)})
        return result.ending

    def passes(self, job: Job) -> str:
        """Which of the networks take the compiled passes."""
        on_gpu = self.options.accelerator != "cpu" and torch.cuda.is_available()
        if not job.fused or not (on_gpu if self.options.fused is None else self.options.fused):
            return "plain"
        if job.config.architecture.normalisation in ("group", "instance"):
            return "fused, discriminator plain"
        return "fused, whole images plain" if job.config.weight_degraded else "fused"

    def note(self, job: Job) -> Mapping[str, Any]:
        """What was noted at the end of the last attempt."""
        path = note_path(self.run_folder(job))
        note: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return note

    def describe(self, job: Job) -> dict[str, Any]:
        """A complete run, for JSON."""
        config, note = job.config, self.note(job)
        patch_size = config.architecture.patch_size
        return {
            "kind": job.kind,
            "seed": config.seed,
            "steps": config.steps,
            "patches": job.patches_seen,
            "patch size": patch_size,
            "pixels": job.patches_seen * patch_size**2,
            "seconds": note["seconds"],
            "passes": note["passes"],
            "weights digest": self.weights(job).digest,
            "data digest": self.run_folder(job).read()["data_digest"],
            "config": config.to_dict(),
        }


def note_path(run: RunFolder) -> Path:
    return run.path / "study.json"


def plain_whole_images() -> AbstractContextManager[object]:
    """Inside, whole images, whose size changes from step to step, take the plain passes, and patches the fused ones.

    Each size would be compiled anew, which takes minutes and would not pay in trainings as short as these.
    """
    original = AuxiliaryDiscriminator.forward

    def forward(network: AuxiliaryDiscriminator, *inputs: Any, auxiliary: bool = False) -> AuxiliaryOutput:
        blocks = [block for block in network.modules() if isinstance(block, Block)] if auxiliary else []
        fused = [block.fused for block in blocks]
        for block in blocks:
            block.fused = None
        output = original(network, *inputs, auxiliary=auxiliary)
        for block, before in zip(blocks, fused, strict=True):
            block.fused = before
        return output

    return patch.object(AuxiliaryDiscriminator, "forward", forward)
