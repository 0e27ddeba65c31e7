"""The run around the step: networks, optimisers and data, checkpoints and logs, and what can go wrong."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from discopatch.errors import FULL, CheckpointError, DivergedError, WeightsError
from discopatch.images import DEFAULT_LIMITS, DEFAULT_WORKERS, PixelCache, ShardIndex, cache_root
from discopatch.model import Networks, Weights
from discopatch.model.fast import fuse
from discopatch.training.augment import CropBatch, DegradedBatch, shrink
from discopatch.training.auxiliary import AuxiliaryDiscriminator
from discopatch.training.batches import TrainingImages, random_patches, step_generator, whole_images
from discopatch.training.checkpoint import RunFolder, Trainable
from discopatch.training.config import Hardware, RunOptions, TrainingConfig
from discopatch.training.distill import Teachers, begin_as_teacher, check_range, load_teachers
from discopatch.training.hardware import interruptible, leave_together, open_shared_images, start_fabric, sum_over_ranks
from discopatch.training.logging import Display, Logs, describe_losses, open_logs, save_sample_sheet
from discopatch.training.losses import Losses
from discopatch.training.step import Noise, adversarial_step, degraded_step, learnable
from discopatch.training.stream import StreamedImages
from discopatch.utils import check_output, remove_leftovers, require

SAMPLES = 12  # patches in each row of a sample sheet
TEACHER_IMAGES = 512
NO_RANK = 2**32 - 1  # draws for samples and the teacher must be no rank's draws for training


class Ending(StrEnum):
    """Why a run came to its end."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended, after which step, and the file of its discriminator."""

    ending: Ending
    step: int
    weights: Path
    images_seen: int = 0
    replaced: int = 0  # of the images seen, those that stand for others that could not be read


def train(
    source: object,
    out: Path,
    config: TrainingConfig,
    *,
    cache: Path | None = None,
    resume: bool = False,
    hardware: Hardware = Hardware(),  # noqa: B008 - frozen
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    console: Console | None = None,
    start: Weights | None = None,
    teacher: Weights | None = None,
) -> TrainingResult:
    """Trains both networks on the images of `source` and leaves the discriminator in the folder `out`.

    Decoded images are kept in `cache`, the user's cache folder unless given, for the next run to find. Tar shards whose
    decoded images do not fit are streamed instead, as `config.stream` also says for itself. Several devices
    or nodes train together under Fabric's DDP, each on its own images; `torchrun` starts them. `start` holds a
    discriminator to begin with; the VAE always begins anew. `teacher` is the discriminator that the config names by its
    digest, which need not be given where it is a released one.
    """
    teachers = load_teachers(config, teacher)
    if start is not None:
        check_range(start)
    console = console or Console(stderr=True)
    folder = RunFolder(out)
    if resume:
        config = replace(config, stream=folder.streams if config.stream is None else config.stream)
        folder.checkpoints.check_architecture(config.architecture)
    else:
        folder.check_free()
    if options.tensorboard:
        require("tensorboard", extra="tensorboard")
    if options.wandb:
        require("wandb", extra="wandb")
    check_output(out, folder=True)
    remove_leftovers(out, below=True)
    fabric = start_fabric(hardware)
    images = open_shared_images(fabric, source, config, cache or cache_root(), hardware, console)
    config = replace(config, stream=isinstance(images, ShardIndex))
    if fabric.is_global_zero:
        start_digest = None if start is None else start.digest
        description = (folder.resume if resume else folder.begin)(config, images.digest, start_digest)
        if images.report:
            console.print(Text(images.report.summary(), style="yellow"))  # names may hold [brackets]
    fabric.barrier()
    if not fabric.is_global_zero:
        description = folder.read()
    trainer = Trainer(fabric, config, images, folder, hardware, options, teachers)
    if start is not None:
        trainer.networks.discriminator.load_state_dict(start.discriminator.state_dict())
    if resume:
        trainer.restore()
    logs = Logs([])
    if fabric.is_global_zero:
        logs = open_logs(folder, options, step=trainer.step, description=description, resume=resume)
    try:
        with closing(logs):
            result = trainer.run(console, logs)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise CheckpointError(
            f"the disk is full after step {trainer.step} ({error}); {folder.checkpoints.last_good()}. "
            "Free some disk space, then continue with --resume"
        ) from error
    finally:
        trainer.images.close()
    leave_together(fabric, occasion=f"{description['run_id']}/{result.step}")
    return result


class Trainer:
    """A run in memory: the networks, their optimisers, and the place in the stream of images."""

    def __init__(
        self,
        fabric: Fabric,
        config: TrainingConfig,
        data: PixelCache | ShardIndex,
        folder: RunFolder,
        hardware: Hardware,
        options: RunOptions,
        teachers: Mapping[str, nn.Module] | None = None,
    ) -> None:
        on_gpu = fabric.device.type == "cuda"
        self.fabric = fabric
        self.config = config
        self.folder = folder
        self.options = options
        self.step = 0
        self.images_seen = 0
        self.replaced = 0  # of those, on all ranks as of the last checkpoint
        self._replaced_here = 0  # since then, on this rank
        self.images = self.open_images(data, hardware)
        self.total = config.total_steps(len(self.images), fabric.world_size)
        self.networks = Networks.from_seed(config.architecture, config.seed)
        if config.architecture.kind == "plain" and (on_gpu if hardware.compile is None else hardware.compile):
            fuse(self.networks.vae, self.networks.discriminator)
        self.teachers: Teachers | None = None
        if teachers:
            left = begin_as_teacher(self.networks.discriminator, teachers)
            here = {name: each.to(fabric.device) for name, each in left.items()}
            self.teachers = Teachers.measured(here, self.teacher_batches())
        self.discriminator = AuxiliaryDiscriminator.from_config(
            self.networks.discriminator, config, targets=self.teachers.channels if self.teachers else {}
        )
        trained = {"vae": self.networks.vae} if config.vae else {}
        self.trainables, self.wrapped = {}, {}
        for name, network in {**trained, "discriminator": self.discriminator}.items():
            optimiser = torch.optim.AdamW(  # without decay of the weights it is Adam
                learnable(network),
                lr=config.learning_rate,
                betas=(config.beta1, config.beta2),
                weight_decay=config.weight_decay,
                fused=on_gpu,
            )
            self.wrapped[name] = fabric.setup(network, optimiser)
            self.trainables[name] = Trainable(network, optimiser)
        self._pending: list[Tensor] = []  # losses of the last steps, still on the device so that no step waits for them

    def open_images(self, data: PixelCache | ShardIndex, hardware: Hardware) -> TrainingImages | StreamedImages:
        """The images as a stream of batches, from the device, from memory, or from the shards themselves."""
        config, fabric = self.config, self.fabric
        if isinstance(data, PixelCache):
            return TrainingImages(data, fabric.device, seed=config.seed, share=config.epoch_share)
        return StreamedImages(
            data,
            fabric.device,
            config.transform,
            seed=config.seed,
            share=config.epoch_share,
            batch=config.images,
            stride=config.images * fabric.world_size,
            workers=DEFAULT_WORKERS if hardware.workers is None else hardware.workers,
            limits=hardware.limits or DEFAULT_LIMITS,
        )

    def restore(self) -> None:
        """Returns to the newest checkpoint; a run that was stopped before its first one begins again."""
        if not self.folder.has_results:
            return
        place = self.folder.checkpoints.restore(self.trainables)
        self.step, self.images_seen, self.replaced = place.step, place.images_seen, place.replaced
        if self.fabric.is_global_zero and not self.weights_are_current():
            self.save_weights(self.folder.weights)
        self.fabric.barrier()

    def weights_are_current(self) -> bool:
        """Whether the discriminator's file is that of this step; it is written after the checkpoint."""
        try:
            return bool(Weights.load(self.folder.weights).origin.get("step") == self.step)
        except WeightsError:
            return False

    def run(self, console: Console, logs: Logs) -> TrainingResult:
        """Steps until the end, an interruption, or the time limit; the state is saved in each case."""
        ending, options = Ending.COMPLETE, self.options
        deadline = time.monotonic() + 60 * (options.max_minutes or float("inf"))
        alone = self.fabric.world_size == 1
        saved = self.step
        patches = self.config.images * self.config.patches * self.fabric.world_size
        shown_on = console if self.fabric.is_global_zero else Console(quiet=True)
        display = Display(shown_on, total=self.total, step=self.step, patches_per_step=patches)
        with display, interruptible() as interrupted:
            while self.step < self.total:
                self._pending.append(torch.stack(self.one_step()))
                log_due = self.is_due(options.log_every)
                if log_due or (alone and display.is_due):
                    display.update(self.step, self.write_losses(logs))
                if self.is_due(options.samples_every):
                    self.save_samples()
                if self.is_due(options.checkpoint_every):
                    self.save(logs)
                    saved = self.step
                if options.keep_every and self.is_due(options.keep_every) and self.fabric.is_global_zero:
                    self.save_weights(self.folder.kept(self.step))
                # Several ranks must stop at the same step, so they only ask each other when they meet anyway.
                if log_due or alone:
                    if self.on_any_rank(interrupted.is_set()):
                        ending = Ending.INTERRUPTED
                        break
                    if self.on_any_rank(time.monotonic() > deadline):
                        ending = Ending.OUT_OF_TIME
                        break
            if saved < self.step:
                self.save(logs)
        return TrainingResult(ending, self.step, self.folder.weights, self.images_seen, self.replaced)

    def is_due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.total

    def on_any_rank(self, happened: bool) -> bool:
        if self.fabric.world_size == 1:
            return happened  # without waiting for the device
        return bool(sum_over_ranks(self.fabric, torch.tensor(float(happened), device=self.fabric.device)) > 0)

    def one_step(self) -> Losses:
        """The next step of the run, with all random draws from a generator of its own."""
        config, fabric = self.config, self.fabric
        generator = step_generator(config.seed, self.step, fabric.global_rank, fabric.device)
        for _, optimiser in self.wrapped.values():
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate_at(self.step, self.total)
        images = shrink(self.next_images(), config.min_scale, generator)
        self._replaced_here += self.images.replaced
        discriminator, discriminator_optimiser = self.wrapped["discriminator"]
        if config.vae:
            vae, vae_optimiser = self.wrapped["vae"]
            real = random_patches(images, config.patches, config.architecture.patch_size, generator)
            noise = Noise.draw(len(real), config.architecture.latent, generator)
            losses = adversarial_step(
                vae,
                discriminator,
                (vae_optimiser, discriminator_optimiser),
                real,
                noise,
                config,
                degraded=self.degrade(images, generator, self.step) if config.weight_degraded else None,
                backward=fabric.backward,
            )
        else:
            batch = self.degrade(images, generator, self.step)
            losses = degraded_step(discriminator, discriminator_optimiser, batch, config, backward=fabric.backward)
        self.step += 1
        self.images_seen += config.images * fabric.world_size
        return losses

    def next_images(self) -> Tensor:
        """This rank's share of the next images, (B, H, W, 3) in uint8."""
        return self.images.take(self.images_seen + self.config.images * self.fabric.global_rank, self.config.images)

    def degrade(self, images: Tensor, generator: torch.Generator, step: int) -> DegradedBatch | CropBatch:
        """Crops, or whole images beside degraded copies."""
        if self.config.crop is None:
            return DegradedBatch.draw(whole_images(images), generator, step=step, teachers=self.teachers)
        return CropBatch.draw(images, generator, step=step, config=self.config, teachers=self.teachers)

    def teacher_batches(self) -> Iterator[Tensor]:
        """The first images of the run, whichever step it continues from, as the student meets them."""
        config = self.config
        count = min(TEACHER_IMAGES, len(self.images))
        first = self.images.take(0, count)
        for step, places in enumerate(np.array_split(np.arange(count), -(-count // config.images))):
            generator = step_generator(config.seed, step, NO_RANK, self.fabric.device)
            images = shrink(first[places[0] : places[-1] + 1], config.min_scale, generator)
            yield whole_images(images) if config.crop is None else self.degrade(images, generator, step).images

    def write_losses(self, logs: Logs) -> list[float]:
        """Logs the pending losses, averaged over ranks, and returns the last; one that is not finite ends the run."""
        if not self._pending:
            return []
        table = sum_over_ranks(self.fabric, torch.stack(self._pending)) / self.fabric.world_size
        self._pending.clear()
        rows: list[list[float]] = table.tolist()
        for step, losses in enumerate(rows, start=self.step - len(rows) + 1):
            logs.write(step, losses)
            if not all(map(isfinite, losses)):
                raise self.diverged(step, losses)
        logs.flush()
        return rows[-1]

    def diverged(self, step: int, losses: list[float]) -> DivergedError:
        return DivergedError(
            f"step {step}: a loss or a weight is no longer a number ({describe_losses(losses, ', ')}); "
            f"{self.folder.checkpoints.last_good()}. Lower --lr or choose --precision 32-true in a new run"
        )

    def save(self, logs: Logs) -> None:
        """Saves a checkpoint and the weights, once all losses and weights up to here are known to be finite."""
        losses = self.write_losses(logs)
        here = torch.tensor(float(self._replaced_here), device=self.fabric.device)
        self.replaced += int(sum_over_ranks(self.fabric, here))
        self._replaced_here = 0
        if self.fabric.is_global_zero:
            if not all(part.is_finite() for part in self.trainables.values()):
                raise self.diverged(self.step, losses or [float("nan")] * len(Losses._fields))
            self.folder.checkpoints.save(self.step, self.images_seen, self.trainables, replaced=self.replaced)
            self.save_weights(self.folder.weights)
        self.fabric.barrier()

    def save_weights(self, path: Path) -> None:
        """Writes the discriminator of this step."""
        origin = {**self.folder.read(), "step": self.step, "images_seen": self.images_seen}
        Weights(self.networks.discriminator, self.config.transform, origin).save(path)

    @torch.no_grad()
    def save_samples(self) -> None:
        """Writes a sheet of real, reconstructed and generated patches, from draws that no step uses."""
        config = self.config
        if not self.fabric.is_global_zero or not config.vae:
            return
        generator = step_generator(config.seed, self.step, NO_RANK, self.fabric.device)
        real = random_patches(self.next_images(), config.patches, config.architecture.patch_size, generator)
        real = real[:: config.patches][:SAMPLES]
        noise = Noise.draw(len(real), config.architecture.latent, generator)
        vae = self.networks.vae.eval()
        fake = vae(real, noise.latent, noise.prior)
        vae.train()
        save_sample_sheet(self.folder.samples(self.step), (real, fake.reconstructed, fake.generated))
