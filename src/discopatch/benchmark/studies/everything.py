"""All studies in one go: trainings first of one of each kind, each followed by what is asked of it."""

import platform
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

import discopatch
from discopatch.benchmark.imagefile import File
from discopatch.benchmark.studies.bias import batchnorm_bias
from discopatch.benchmark.studies.clock import Clock
from discopatch.benchmark.studies.gallery import Gallery, chosen_files, prepare
from discopatch.benchmark.studies.jobs import Job, all_jobs
from discopatch.benchmark.studies.ledger import Ledger
from discopatch.benchmark.studies.looking import changed_pictures, evaluate, patch_counts
from discopatch.benchmark.studies.losses import write_losses
from discopatch.benchmark.studies.plan import RELEASED, SPECTRA, Plan
from discopatch.benchmark.studies.spectra import spectra
from discopatch.benchmark.studies.training import School
from discopatch.model.weights import Weights
from discopatch.scoring.scorer import chosen
from discopatch.training.loop import Ending
from discopatch.weights import released

PIECES = ("train", "evaluate", "counts", "bias", "spectra", "losses")
LEAST_ON_GPU = 0.75  # minutes: a training that must compile first is not begun with less
LOOKS = {"evaluate", "counts", "bias", "spectra"}  # those that need the pictures


@dataclass(frozen=True)
class Choice:
    """What is done in this call."""

    pieces: Collection[str] = PIECES
    runs: Collection[str] = ()  # of the trainings, by name; all unless given

    def __post_init__(self) -> None:
        if unknown := set(self.pieces) - set(PIECES):
            raise ValueError(f"no piece is called {', '.join(sorted(unknown))}: choose from {', '.join(PIECES)}")

    def has(self, name: str) -> bool:
        """Whether a training is wanted."""
        return not self.runs or name in self.runs


class Studies:
    """Everything that the pieces share. Pictures are prepared by other processes while the first training goes on."""

    def __init__(
        self, plan: Plan, data: Path, out: Path, school: School, clock: Clock, *, device: str, workers: int
    ) -> None:
        self.plan, self.data, self.out, self.school, self.clock = plan, data, out, school, clock
        self.device, self.workers = str(chosen(device)), workers
        self.ledger = Ledger(school.folder, out, plan, clock)
        self.preparing: Future[Gallery]

    def conduct(self, choice: Choice) -> None:
        """What is chosen, in the order in which it is worth most should time run out."""
        if unknown := set(choice.runs) - {*(job.name for job in self.jobs), RELEASED}:
            known = ", ".join(job.name for job in self.jobs)
            raise ValueError(f"no run is called {', '.join(sorted(unknown))}: choose from {known} and {RELEASED}")
        jobs = [job for job in self.jobs if choice.has(job.name)]
        files = chosen_files(self.data, self.plan.wanted)
        self.ledger.report["made"] = self.provenance()
        with ThreadPoolExecutor(1) as background:
            if LOOKS & set(choice.pieces):
                self.preparing = background.submit(self.prepare, files)
            try:
                for job in jobs:
                    if job.recipe.seed == 0:
                        self.of_job(job, choice)
                if RELEASED in self.plan.counted and choice.has(RELEASED):
                    self.of_weights(RELEASED, released, choice)
                for job in jobs:
                    if job.recipe.seed != 0:
                        self.of_job(job, choice)
            finally:
                self.finish(choice)

    @cached_property
    def jobs(self) -> list[Job]:
        """All trainings there are."""
        return all_jobs(self.plan)

    def of_job(self, job: Job, choice: Choice) -> None:
        """The training, and all that is asked of its weights."""
        if "train" in choice.pieces:
            self.train(job)
        if not self.school.is_complete(job):
            self.clock.tell(f"{job.name} is not trained: left out")
            return
        self.ledger.keep("runs", job.name, self.school.run_of(job).folder.name, partial(self.school.describe, job))
        if job.name in SPECTRA and "spectra" in choice.pieces:
            self.of_vae(job)
        if job.of_patches:
            self.of_weights(job.name, partial(self.school.weights_of, job), choice)
        elif "bias" in choice.pieces:
            weights = self.school.weights_of(job)
            make = partial(batchnorm_bias, weights, self.gallery, self.plan, self.device)
            self.ledger.keep("batch normalisation", job.name, self.key(weights), make)

    def train(self, job: Job) -> None:
        """Until it is complete, or time is over."""
        if self.school.is_complete(job):
            return
        self.clock.check(LEAST_ON_GPU if self.device == "cuda" else 0.0)
        ending = None
        with self.ledger.attempt(f"training, {job.name}"), self.clock.timed(f"training, {job.name}"):
            ending = self.school.train(job, minutes=self.clock.minutes_left, keep_vae=job.name in SPECTRA)
        if ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt(f"{job.name} was stopped: the same command goes on from here")
        if ending is Ending.OUT_OF_TIME:
            self.clock.check()

    def of_weights(self, name: str, load: Callable[[], Weights], choice: Choice) -> None:
        """What a model of patches is worth, and by how many of them."""
        wanted = [piece for piece in ("evaluate", "counts") if piece in choice.pieces]
        if not wanted:
            return
        weights = load()
        if "evaluate" in wanted:
            make = partial(evaluate, weights, self.gallery, self.plan, self.device)
            self.ledger.keep("evaluation", name, self.key(weights), make)
        if "counts" in wanted and name in self.plan.counted:
            make = partial(patch_counts, weights, self.gallery, self.plan, self.device)
            self.ledger.keep("patch counts", name, self.key(weights), make)

    def of_vae(self, job: Job) -> None:
        """The spectra of what it makes, and the last picture of it."""
        run, recipe = self.school.run_of(job), job.recipe
        make = partial(spectra, run, recipe, self.gallery, self.plan, self.device)
        self.ledger.keep("spectra", job.name, self.key(self.school.weights_of(job)), make)
        if recipe.steps is not None and (picture := run.samples(recipe.steps)).exists():
            shutil.copyfile(picture, self.out / f"samples-{job.name}.png")

    def key(self, weights: Weights) -> str:
        """Of a piece: other weights or other pictures make it another."""
        return f"{weights.digest}-{self.gallery.key}"

    @cached_property
    def gallery(self) -> Gallery:
        """The pictures, once they are ready."""
        found = self.preparing.result()
        self.ledger.report["data"] = found.data
        return found

    def prepare(self, files: dict[str, list[File]]) -> Gallery:
        """In another thread, while the first training goes on."""
        start = self.clock.seconds
        found = prepare(files, self.school.folder, self.plan.wanted, workers=self.workers)
        changed_pictures(found, self.plan.seed)
        self.clock.tell(f"{len(found.pixels):,} pictures are ready, prepared in {self.clock.seconds - start:.1f} s")
        return found

    def finish(self, choice: Choice) -> None:
        """The losses of all complete runs, and how many seconds each piece of this call took."""
        runs = [(job.name, self.school.run_of(job).losses) for job in self.jobs if self.school.is_complete(job)]
        if runs and "losses" in choice.pieces:
            write_losses(self.out / "losses.csv", runs)
        call = {"all": round(self.clock.seconds, 1), **self.clock.spent}
        self.ledger.report["calls"] = [*self.ledger.report.get("calls", []), call]
        self.ledger.write()

    def provenance(self) -> dict[str, Any]:
        """All that the figures depend on beside the pictures."""
        return {
            "discopatch": discopatch.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "CPU",
            "training precision": "bfloat16 autocast" if self.device == "cuda" else "float32",
        }
