"""A training run: networks, optimisers and images around the step, with checkpoints and logs."""

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from inspect import signature
from math import inf, isfinite
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from lightning_fabric.strategies.ddp import DDPStrategy
from rich.console import Console
from rich.text import Text
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from discopatch.errors import FULL, ParameterError, RunError, WeightsError
from discopatch.images import DEFAULT_LIMITS, DEFAULT_WORKERS, Limits, ShardIndex, Workers, cache_root
from discopatch.model import VAE, Networks, Weights
from discopatch.model.kernels import fuse
from discopatch.training.augment import CropBatch, DegradedBatch, shrink
from discopatch.training.batches import (
    CachedImages,
    StreamedImages,
    open_images,
    random_patches,
    step_generator,
    whole_images,
)
from discopatch.training.checkpoint import Place, RunFolder
from discopatch.training.config import RunOptions, TrainingConfig
from discopatch.training.losses import Losses
from discopatch.training.progress import Display, LossFile, describe_losses, save_sample_sheet
from discopatch.training.step import Noise, adversarial_step, degraded_step, learnable
from discopatch.training.teachers import (
    AuxiliaryDiscriminator,
    Teacher,
    Teachers,
    begin_as_teacher,
    check_range,
    check_teachers,
)
from discopatch.utils import check_output, remove_leftovers, require

SAMPLES = 12  # patches in each row of a sample sheet
TEACHER_IMAGES = 512  # over which the outputs of teachers are measured
NO_RANK = 2**32 - 1  # draws for samples and teachers differ from every rank's draws for training
# A broadcast of buffers between the discriminator's forward passes would invalidate the backward pass of the first.
# The option has another name since torch 2.13.
DDP_OPTIONS = signature(DistributedDataParallel.__init__).parameters
DDP: dict[str, Any] = {"forward_sync_buffers" if "forward_sync_buffers" in DDP_OPTIONS else "broadcast_buffers": False}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Ending(StrEnum):
    """Reason why a run ended."""

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
    replaced: int = 0  # images seen that replace others that could not be read


def train(
    source: object,
    out: Path,
    config: TrainingConfig,
    *,
    cache: Path | None = None,
    resume: bool = False,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    workers: Workers = DEFAULT_WORKERS,
    limits: Limits = DEFAULT_LIMITS,
    console: Console | None = None,
    start: Weights | None = None,
    teachers: Mapping[str, Teacher] | None = None,
) -> TrainingResult:
    """Trains both networks on the images of `source` and leaves the discriminator in the folder `out`.

    Decoded images are kept in `cache`, by default the user's cache folder, for later runs. Tar shards whose decoded
    images do not fit are streamed instead. Several devices or nodes train together under Fabric's DDP, each on its own
    images; `torchrun` starts nodes. `start` is a discriminator to begin with; the VAE always begins anew. `teachers`
    are those that the config names by their digests.
    """
    console, folder, teachers = console or Console(stderr=True), RunFolder(out), teachers or {}
    check_teachers(config, teachers)
    if start is not None:
        check_range(start)
        if start.discriminator.architecture != config.architecture:
            raise ParameterError(
                "the weights to begin with have another architecture: choose the preset they came from"
            )
    if resume:
        stream = folder.read()["config"]["stream"]
        config = replace(config, stream=stream if config.stream is None else config.stream)
    else:
        folder.check_free()
    check_output(out, folder=True)
    remove_leftovers(out, below=True)

    # Devices and images
    fabric = start_fabric(options, out)
    device, rank, ranks = fabric.device, fabric.global_rank, fabric.world_size
    data = open_images(fabric, source, config, cache or cache_root(), workers=workers, limits=limits, console=console)
    config = replace(config, stream=isinstance(data, ShardIndex))
    if fabric.is_global_zero:
        (folder.resume if resume else folder.begin)(config, data.digest, None if start is None else start.digest)
        if data.report:
            console.print(Text(data.report.summary(), style="yellow"))  # names may hold [brackets]
    fabric.barrier()
    description, stride = folder.read(), config.images * ranks
    images: CachedImages | StreamedImages
    if isinstance(data, ShardIndex):
        images = StreamedImages(data, device, config, stride=stride, workers=workers, limits=limits)
    else:
        images = CachedImages(data, device, config)

    # Networks and optimisers
    networks = Networks.from_seed(config.architecture, config.seed)
    on_gpu = device.type == "cuda"
    if config.architecture.kind == "plain" and (on_gpu if options.fused is None else options.fused):
        fuse(networks.vae, networks.discriminator)
    teaching = None
    if teachers:
        left = {name: each.to(device) for name, each in begin_as_teacher(networks.discriminator, teachers).items()}
        teaching = Teachers.measured(left, teacher_batches(images, config, device))
    if start is not None:
        networks.discriminator.load_state_dict(start.discriminator.state_dict())
    auxiliary = AuxiliaryDiscriminator(networks.discriminator, config, teaching.channels if teaching else {})
    trainables, wrapped = {}, {}
    for name, network in {**({"vae": networks.vae} if config.vae else {}), "discriminator": auxiliary}.items():
        optimiser = torch.optim.AdamW(  # without weight decay it is Adam
            learnable(network),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
            fused=on_gpu,
        )
        wrapped[name] = fabric.setup(network, optimiser)
        trainables[name] = network, optimiser

    place = folder.restore(trainables) if resume else Place()
    step, seen, replaced_here = place.step, place.images_seen, 0
    total = config.total_steps(len(images), ranks)
    pending: list[Tensor] = []  # losses of the last steps, on the device so that no step waits for them
    losses_file = LossFile(folder.losses, step=step) if fabric.is_global_zero else None

    def write_losses() -> list[float]:
        """Logs the pending losses, averaged over ranks, and returns the last; RunError if one is not finite."""
        if not pending:
            return []
        rows: list[list[float]] = (sum_over_ranks(fabric, torch.stack(pending)) / ranks).tolist()
        pending.clear()
        for number, losses in enumerate(rows, start=step - len(rows) + 1):
            if losses_file is not None:
                losses_file.write([[number, *losses]])
            if options.tensorboard:
                named = zip(Losses._fields, losses, strict=True)
                fabric.log_dict({f"loss/{name}": value for name, value in named}, number)
            if not all(map(isfinite, losses)):
                raise diverged(number, describe_losses(losses, ", "))
        return rows[-1]

    def diverged(step: int, losses: str) -> RunError:
        return RunError(
            f"step {step}: a loss or a weight is not finite ({losses}); {folder.last_good}. "
            "Lower --lr or choose --precision 32-true in a new run"
        )

    def save() -> Place:
        """Saves a checkpoint and the weights, after all losses and weights are checked to be finite."""
        write_losses()
        replaced = place.replaced + int(sum_over_ranks(fabric, torch.tensor(float(replaced_here), device=device)))
        now = Place(step, seen, replaced)
        if fabric.is_global_zero:
            if not all(bool(torch.isfinite(each).all()) for each in auxiliary.parameters()):
                raise diverged(step, "weights")
            folder.save(now, trainables)
            save_weights(folder, networks, config, now)
        fabric.barrier()
        return now

    if resume and fabric.is_global_zero and folder.checkpoints() and weights_step(folder.weights) != step:
        save_weights(folder, networks, config, place)  # the run was killed between the checkpoint and its weights
    fabric.barrier()

    ending, deadline = Ending.COMPLETE, time.monotonic() + 60 * (options.max_minutes or inf)
    shown_on = console if fabric.is_global_zero else Console(quiet=True)
    display = Display(shown_on, total=total, step=step, patches_per_step=stride * config.patches)
    try:
        with display, interruptible() as interrupted:
            while step < total:
                generator = step_generator(config.seed, step, rank, device)
                for _, optimiser in wrapped.values():
                    for group in optimiser.param_groups:
                        group["lr"] = config.learning_rate_at(step, total)
                batch = shrink(images.take(seen + rank * config.images, config.images), config.min_scale, generator)
                replaced_here += images.replaced
                discriminator, discriminator_optimiser = wrapped["discriminator"]
                if config.vae:
                    vae, vae_optimiser = wrapped["vae"]
                    real = random_patches(batch, config.patches, config.architecture.patch_size, generator)
                    losses = adversarial_step(
                        vae,
                        discriminator,
                        (vae_optimiser, discriminator_optimiser),
                        real,
                        Noise.draw(len(real), config.architecture.latent, generator),
                        config,
                        degraded=degrade(batch, generator, step, config, teaching) if config.weight_degraded else None,
                        backward=fabric.backward,
                    )
                else:
                    degraded = degrade(batch, generator, step, config, teaching)
                    losses = degraded_step(
                        discriminator, discriminator_optimiser, degraded, config, backward=fabric.backward
                    )
                step, seen = step + 1, seen + stride
                pending.append(torch.stack(losses))

                last = step == total
                log_due = last or step % options.log_every == 0
                if log_due or (ranks == 1 and display.is_due):
                    display.update(step, write_losses())
                if config.vae and fabric.is_global_zero and (last or step % options.samples_every == 0):
                    save_samples(folder.samples(step), networks.vae, real[:: config.patches][:SAMPLES], config, step)
                if last or step % options.checkpoint_every == 0:
                    place, replaced_here = save(), 0
                # Several ranks stop at the same step, so they communicate only when they log anyway.
                if not last and (log_due or ranks == 1):
                    if on_any_rank(fabric, interrupted.is_set()):
                        ending = Ending.INTERRUPTED
                        break
                    if on_any_rank(fabric, time.monotonic() > deadline):
                        ending = Ending.OUT_OF_TIME
                        break
            if place.step < step:
                place, replaced_here = save(), 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunError(
            f"the disk is full after step {step} ({error}); {folder.last_good}. "
            "Free some disk space, then continue with --resume"
        ) from error
    finally:
        images.close()
        if losses_file is not None:
            losses_file.close()
    leave_together(fabric, occasion=f"{description['run_id']}/{step}")
    return TrainingResult(ending, step, folder.weights, place.images_seen, place.replaced)


def start_fabric(options: RunOptions, out: Path) -> Fabric:
    """The launched processes, with device and precision chosen for "auto"."""
    accelerator, precision = options.accelerator, options.precision
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and (found := torch.cuda.device_count()) < options.devices:
        raise ParameterError(
            f"accelerator cuda with {options.devices} devices, and {found} are there: choose auto or cpu, lower the "
            "number of devices, or install torch for your GPU"
        )
    if precision == "auto":
        precision = "bf16-mixed" if accelerator == "cuda" else "32-true"
    if options.tensorboard:
        require("tensorboard", extra="tensorboard")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # hides its hints at other precisions
    fabric = Fabric(
        accelerator=accelerator,
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=DDPStrategy(**DDP) if options.devices * options.nodes > 1 else "auto",
        precision=precision,
        loggers=TensorBoardLogger(out, name="tensorboard", version="") if options.tensorboard else [],
    )
    fabric.launch()
    torch.backends.cudnn.benchmark = True  # shapes do not change, so the search for the fastest kernel pays
    return fabric


def degrade(
    images: Tensor, generator: torch.Generator, step: int, config: TrainingConfig, teachers: Teachers | None
) -> DegradedBatch | CropBatch:
    """Crops, or whole images beside degraded copies."""
    if config.crop is None:
        return DegradedBatch.draw(whole_images(images), generator, step=step, teachers=teachers)
    return CropBatch.draw(images, generator, step=step, config=config, teachers=teachers)


def teacher_batches(
    images: CachedImages | StreamedImages, config: TrainingConfig, device: torch.device
) -> Iterator[Tensor]:
    """The first images of the run, augmented as in training; the same for every rank and every resumption."""
    for step in range(-(-min(TEACHER_IMAGES, len(images)) // config.images)):
        generator = step_generator(config.seed, step, NO_RANK, device)
        batch = shrink(images.take(step * config.images, config.images), config.min_scale, generator)
        yield whole_images(batch) if config.crop is None else degrade(batch, generator, step, config, None).images


def save_weights(folder: RunFolder, networks: Networks, config: TrainingConfig, place: Place) -> None:
    """Writes the discriminator of this step."""
    origin = {**folder.read(), "step": place.step, "images_seen": place.images_seen}
    Weights(networks.discriminator, config.transform, origin).save(folder.weights)


def weights_step(path: Path) -> int | None:
    """Step of the discriminator in a file; None if it cannot be read."""
    try:
        step: int | None = Weights.load(path).origin.get("step")
    except WeightsError:
        return None
    return step


@torch.no_grad()
def save_samples(path: Path, vae: VAE, real: Tensor, config: TrainingConfig, step: int) -> None:
    """Writes a sheet of real, reconstructed and generated patches."""
    generator = step_generator(config.seed, step, NO_RANK, real.device)
    noise = Noise.draw(len(real), config.architecture.latent, generator)
    vae.eval()
    fake = vae(real, noise.latent, noise.prior)
    vae.train()
    save_sample_sheet(path, (real, fake.reconstructed, fake.generated))


def sum_over_ranks(fabric: Fabric, values: Tensor) -> Tensor:
    """Sum of every rank's values."""
    if fabric.world_size == 1:
        return values
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, Tensor)
    return total


def on_any_rank(fabric: Fabric, happened: bool) -> bool:
    """Whether it happened on any rank; with one rank the device is not synchronised."""
    if fabric.world_size == 1:
        return happened
    return bool(sum_over_ranks(fabric, torch.tensor(float(happened), device=fabric.device)) > 0)


def leave_together(fabric: Fabric, occasion: str) -> None:
    """Waits until every rank has left its last collective, which fails if a peer exits before.

    The ranks meet at the store, not in one more collective; the first rank, which may host the store, leaves last.
    """
    if fabric.world_size == 1:
        return
    store = torch.distributed.distributed_c10d._get_default_store()
    for phase in ("done", "leaving"):
        store.set(f"{occasion}/{phase}/{fabric.global_rank}", "1")
        if phase == "done" or fabric.is_global_zero:
            store.wait([f"{occasion}/{phase}/{rank}" for rank in range(fabric.world_size)])


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Event that the first Ctrl-C or termination sets, so that a run ends between two steps; a second acts at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # only the main thread receives signals
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        restore()

    for number in STOP_SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield interrupted
    finally:
        restore()
