"""All studies in one go: first one training of each kind, each followed by what is measured on it."""

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

import discopatch
from common import OutOfTimeError, Timer
from discopatch.bench.dataset import ImageSet
from discopatch.bench.store import ResultStore
from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError
from discopatch.model import Weights
from discopatch.pretrained import load_pretrained
from discopatch.training import Ending
from paper.batchnorm import batchnorm_bias
from paper.dataset import Dataset, list_sets, prepare_dataset
from paper.losses import write_losses
from paper.plan import RELEASED, WITH_SPECTRA, Job, Plan, all_jobs
from paper.results import FORMAT, LOSSES, NAME
from paper.scoring import count_patches, evaluate, probed_images
from paper.spectra import vae_spectra
from paper.trainings import Trainings

PARTS = ("train", "evaluate", "counts", "bias", "spectra", "losses")
NEED_IMAGES = {"evaluate", "counts", "bias", "spectra"}
MIN_GPU_MINUTES = 0.75  # a training that must compile first is not begun with less

Measure = Callable[[Weights, Dataset, Plan, str], dict[str, Any]]


class Studies:
    """What all parts share. Images are prepared by other processes while the first training is under way."""

    def __init__(
        self, plan: Plan, data: Path, out: Path, trainings: Trainings, timer: Timer, *, device: str, workers: int
    ) -> None:
        self.plan, self.data, self.out, self.trainings, self.timer = plan, data, out, trainings, timer
        self.device, self.workers = str(resolve_device(device)), workers
        # Kept beside the trainings, where the next call with the same plan finds it, and copied to `out`.
        paths = (trainings.folder / f"studies-{plan_key(plan)}.json", out / NAME)
        self.store = ResultStore(paths, stop=(OutOfTimeError,), log=timer.note)
        self.results = self.store.results
        self.results |= {"format": FORMAT, "plan": plan.to_dict()}
        self.preparing: Future[Dataset]

    @cached_property
    def jobs(self) -> list[Job]:
        return all_jobs(self.plan)

    def run(self, parts: Sequence[str] = PARTS, runs: Sequence[str] = ()) -> None:
        """These parts of these runs, all unless given, in the order in which they are worth most if time runs out."""
        names = [*(job.name for job in self.jobs), RELEASED]
        check_known("part", parts, PARTS)
        check_known("run", runs, names)
        self.parts, wanted = set(parts), set(runs or names)
        jobs = [job for job in self.jobs if job.name in wanted]
        sets = list_sets(self.data, self.plan)
        self.results["made"] = self.provenance()
        with ThreadPoolExecutor(1) as background:
            if NEED_IMAGES & self.parts:
                self.preparing = background.submit(self.prepare, sets)
            try:
                for job in jobs:
                    if job.config.seed == 0:
                        self.run_job(job)
                if RELEASED in self.plan.counted and RELEASED in wanted:
                    self.measure_patches(RELEASED, load_pretrained)
                for job in jobs:
                    if job.config.seed != 0:
                        self.run_job(job)
            finally:
                self.finish()

    def run_job(self, job: Job) -> None:
        """The training, and all that is measured on its networks."""
        if "train" in self.parts:
            self.train(job)
        if not self.trainings.is_complete(job):
            self.timer.note(f"{job.name} is not trained: left out")
            return
        run = self.trainings.run_folder(job)
        self.keep("runs", job.name, run.path.name, lambda: self.trainings.describe(job))
        if job.name in WITH_SPECTRA and "spectra" in self.parts:
            self.measure_vae(job)
        if job.of_patches:
            self.measure_patches(job.name, lambda: self.trainings.weights(job))
        elif "bias" in self.parts:
            self.measure("batch normalisation", job.name, self.trainings.weights(job), batchnorm_bias)

    def train(self, job: Job) -> None:
        """Until the training is complete, or time is over."""
        if self.trainings.is_complete(job):
            return
        self.timer.check(MIN_GPU_MINUTES if self.device == "cuda" else 0.0)
        ending = None
        with self.store.attempt(f"training, {job.name}"), self.timer.part(f"training, {job.name}"):
            keep_vae = job.name in WITH_SPECTRA
            ending = self.trainings.train(job, minutes=self.timer.minutes_left, keep_vae=keep_vae)
        if ending is Ending.INTERRUPTED:
            raise KeyboardInterrupt(f"{job.name} was stopped: the same command goes on from here")
        if ending is Ending.OUT_OF_TIME:
            self.timer.check()

    def measure_patches(self, name: str, load: Callable[[], Weights]) -> None:
        """What a model of patches is worth, and by how many of them."""
        if "evaluate" in self.parts:
            self.measure("evaluation", name, load(), evaluate)
        if "counts" in self.parts and name in self.plan.counted:
            self.measure("patch counts", name, load(), count_patches)

    def measure_vae(self, job: Job) -> None:
        """The spectra of its patches, and its last sheet of samples."""
        run, config = self.trainings.run_folder(job), job.config
        key = f"{self.trainings.weights(job).digest}-{self.dataset.key}"
        self.keep("spectra", job.name, key, lambda: vae_spectra(run, config, self.dataset, self.plan, self.device))
        if config.steps is not None and (samples := run.samples(config.steps)).exists():
            shutil.copyfile(samples, self.out / f"samples-{job.name}.png")

    def measure(self, section: str, name: str, weights: Weights, measure: Measure) -> None:
        """Other weights or other images make other results."""
        key = f"{weights.digest}-{self.dataset.key}"
        self.keep(section, name, key, lambda: measure(weights, self.dataset, self.plan, self.device))

    def keep(self, section: str, name: str, key: str, make: Callable[[], dict[str, Any]]) -> None:
        """Stores what `make` returns, if it is not stored yet and there is time."""

        def timed() -> dict[str, Any]:
            with self.timer.part(f"{section}, {name}"):
                return make()

        self.store.keep(section, name, key, timed)

    @cached_property
    def dataset(self) -> Dataset:
        """The images, once they are ready."""
        dataset = self.preparing.result()
        self.results["data"] = dataset.summary
        return dataset

    def prepare(self, sets: list[ImageSet]) -> Dataset:
        """In another thread, while the first training is under way."""
        start = self.timer.seconds
        dataset = prepare_dataset(sets, self.trainings.folder, workers=self.workers)
        probed_images(dataset, self.plan.seed)
        self.timer.note(f"{len(dataset.pixels):,} images are ready after {self.timer.seconds - start:.1f} s")
        return dataset

    def finish(self) -> None:
        """Writes the losses of all complete runs, and how many seconds each part of this call took."""
        runs = {job.name: self.trainings.run_folder(job).losses for job in self.jobs if self.trainings.is_complete(job)}
        if runs and "losses" in self.parts:
            write_losses(self.out / LOSSES, runs)
        call = {"all": round(self.timer.seconds, 1), **self.timer.spent}
        self.results["calls"] = [*self.results.get("calls", []), call]
        self.store.write()

    def provenance(self) -> dict[str, Any]:
        """All that the figures depend on beside the images."""
        return {
            "discopatch": discopatch.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "CPU",
            "training precision": "bfloat16 autocast" if self.device == "cuda" else "float32",
        }


def check_known(noun: str, given: Collection[str], known: Collection[str]) -> None:
    if unknown := set(given) - set(known):
        raise ParameterError(f"no {noun} is called {', '.join(sorted(unknown))}: choose from {', '.join(known)}")


def plan_key(plan: Plan) -> str:
    """Stands for all that figures depend on; more seeds only add to them."""
    values = json.dumps([FORMAT, {**plan.to_dict(), "seeds": None}], sort_keys=True)
    return hashlib.sha256(values.encode()).hexdigest()[:8]
