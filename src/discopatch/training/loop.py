"""A training run: images, networks and optimisers around the step, with checkpoints and logs."""

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
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
from rich.progress import BarColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from discopatch.errors import FULL, ParameterError, RunError
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Limits,
    Workers,
    cache_root,
    list_source,
    open_cache,
)
from discopatch.model import Networks, Weights
from discopatch.model.kernels import fuse
from discopatch.training.batches import TrainingImages, draw_batches, random_patches, shrink, step_generator
from discopatch.training.beginning import begin_as_part
from discopatch.training.config import RunOptions, TrainingConfig
from discopatch.training.folder import Place, RunFolder
from discopatch.training.step import Losses, Noise, adversarial_step, learnable
from discopatch.training.teachers import (
    AuxiliaryDiscriminator,
    Teacher,
    Teachers,
    begin_as_teacher,
    check_range,
    measure_statistics,
)
from discopatch.utils import check_output, remove_leftovers, require

SAMPLES = 12  # patches in each row of a sample sheet
TEACHER_IMAGES = 512  # over which the outputs of teachers are measured
NATIVE_EVERY = 3  # steps from one with crops of larger copies to the next
NO_RANK = 2**32 - 1  # draws for samples and teachers differ from every rank's draws for training
SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_UPDATES = 2.0
# A broadcast of buffers between the discriminator's forward passes would invalidate the backward pass of the first.
# The option has another name since torch 2.13.
DDP_OPTIONS = signature(DistributedDataParallel.__init__).parameters
DDP: dict[str, Any] = {"forward_sync_buffers" if "forward_sync_buffers" in DDP_OPTIONS else "broadcast_buffers": False}


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

    Decoded images are kept in `cache`, by default the user's cache folder, for later runs. Several devices or nodes
    train together under Fabric's DDP, each on its own images; `torchrun` starts nodes. `start` is a discriminator to
    begin with; the VAE always begins anew. `teachers` are those that the config names by their digests.
    """
    console, folder, teachers = console or Console(stderr=True), RunFolder(out), teachers or {}
    digests = {name: each.digest for name, each in teachers.items()}
    if digests != config.teachers:
        raise ParameterError(f"the config's teachers are {config.teachers}, given are {digests}: give the same weights")
    if start is not None:
        check_range(start)
        if start.discriminator.architecture != config.architecture:
            raise ParameterError(
                "the weights to begin with have another architecture: choose the preset they came from"
            )
    folder.check(resume=resume)
    check_output(out, folder=True)
    remove_leftovers(out, below=True)

    # Devices and images
    fabric = start_fabric(options, out)
    device, rank, ranks, first = fabric.device, fabric.global_rank, fabric.world_size, fabric.is_global_zero
    decode = partial(
        open_cache, list_source(source).repeatable(limits), root=cache or cache_root(), workers=workers, limits=limits
    )
    copies = [(config.transform, 0)]  # and the smallest short side of their images
    if config.native is not None:
        copies.append((replace(config.transform, size=config.native), config.native))
    if first:
        decoded = []
        for transform, least in copies:
            with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
                show = partial(show_progress, bar, bar.add_task("decoding", total=None))
                decoded.append(decode(transform, least=least, progress=show))
        digest = " ".join(each.digest for each in decoded)
        (folder.resume if resume else folder.begin)(config, digest, None if start is None else start.digest)
        if decoded[0].report:
            console.print(Text(decoded[0].report.summary(), style="yellow"))  # names may hold [brackets]
    fabric.barrier()
    if not first:
        decoded = [decode(transform, least=least) for transform, least in copies]  # what the first rank has left
    description = folder.read()
    images, *native = (TrainingImages(each, device, config) for each in decoded)

    # Networks and optimisers
    networks, on_gpu = Networks.from_seed(config.architecture, config.seed), device.type == "cuda"
    if config.architecture.kind == "plain" and (on_gpu if options.fused is None else options.fused):
        fuse(networks.vae, networks.discriminator)
    teaching, left = None, dict[str, Teacher]()
    if teachers:
        left = {name: each.to(device) for name, each in begin_as_teacher(networks.discriminator, teachers).items()}
        teaching = Teachers.measured(left, teacher_batches(images, config, device))
    if start is not None:
        networks.discriminator.load_state_dict(start.discriminator.state_dict())
    else:
        begin_as_part(networks.discriminator.to(device), left, teacher_batches(images, config, device))
        if networks.discriminator.embed is not None:
            measure_statistics(networks.discriminator, teacher_batches(images, config, device))
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
    vae, _ = wrapped.get("vae", (None, None))
    discriminator, _ = wrapped["discriminator"]
    optimisers = [optimiser for _, optimiser in wrapped.values()]

    # Place in the run
    place = folder.restore(trainables) if resume else Place()
    step, seen, total = place.step, place.images_seen, config.total_steps(len(images), ranks)
    pending: list[Tensor] = []  # losses of the last steps, on the device, so that a step does not synchronise it
    ending, deadline = None, time.monotonic() + 60 * (options.max_minutes or inf)
    losses_file = folder.open_losses(step) if first else None
    display = Display(console if first else Console(quiet=True), step, total)

    def write_losses() -> list[float]:
        """Logs the pending losses, averaged over ranks, and returns the last; RunError if one is not finite."""
        if not pending:
            return []
        rows: list[list[float]] = over_ranks(fabric, torch.stack(pending), "mean").tolist()
        pending.clear()
        for number, losses in enumerate(rows, start=step - len(rows) + 1):
            if losses_file is not None:
                print(number, *losses, sep=",", file=losses_file)
            if options.tensorboard:
                named = zip(Losses._fields, losses, strict=True)
                fabric.log_dict({f"loss/{name}": value for name, value in named}, number)
            if not all(map(isfinite, losses)):
                raise diverged(number, describe(losses))
        return rows[-1]

    def diverged(step: int, losses: str) -> RunError:
        return RunError(
            f"step {step}: a loss or a weight is not finite ({losses}); {folder.last_good}. "
            "Lower --lr or choose --precision 32-true in a new run"
        )

    def save_weights() -> None:
        origin = {**description, "step": step, "images_seen": seen}
        Weights(networks.discriminator, config.transform, origin).save(folder.weights)

    def save() -> None:
        """Saves a checkpoint and the weights, after all losses and weights are checked to be finite."""
        write_losses()
        if first:
            if not all(bool(torch.isfinite(each).all()) for each in auxiliary.parameters()):
                raise diverged(step, "weights")
            folder.save(Place(step, seen), trainables)
            save_weights()
        fabric.barrier()

    if first and place.step:
        save_weights()  # the run may have been killed between the checkpoint and its weights
    try:
        with losses_file or nullcontext(), display, interruptible() as interrupted:
            while step < total and ending is None:
                generator = step_generator(config.seed, step, rank, device)
                for optimiser in optimisers:
                    for group in optimiser.param_groups:
                        group["lr"] = config.learning_rate_at(step, total)
                real = noise = None
                source_of_step = native[0] if native and step % NATIVE_EVERY == 0 else images
                taken = source_of_step.take(seen + rank * config.images, config.images)
                batch = shrink(taken, config.min_scale, generator)
                if config.vae:
                    real = random_patches(batch, config, generator)
                    noise = Noise.draw(len(real), config.architecture.latent, generator)
                further = draw_batches(batch, generator, step, config, teaching) if config.weight_degraded else []
                losses = adversarial_step(
                    vae, discriminator, optimisers, real, noise, config, further=further, backward=fabric.backward
                )
                step, seen = step + 1, seen + config.images * ranks
                pending.append(torch.stack(losses))

                last = step == total
                log_due = last or step % options.log_every == 0
                if log_due or (ranks == 1 and time.monotonic() - display.updated > SECONDS_BETWEEN_UPDATES):
                    display.show(step, write_losses())
                if real is not None and first and (last or step % options.samples_every == 0):
                    folder.save_samples(step, sample_rows(networks, real[:: config.patches][:SAMPLES], config, step))
                # Several ranks stop at the same step, so they communicate only when they log anyway.
                if not last and (log_due or ranks == 1):
                    if on_any_rank(fabric, interrupted.is_set()):
                        ending = Ending.INTERRUPTED
                    elif on_any_rank(fabric, time.monotonic() > deadline):
                        ending = Ending.OUT_OF_TIME
                if last or ending or step % options.checkpoint_every == 0:
                    save()
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunError(
            f"the disk is full after step {step} ({error}); {folder.last_good}. "
            "Free some disk space, then continue with --resume"
        ) from error
    leave_together(fabric, occasion=f"{description['run_id']}/{step}")
    return TrainingResult(ending or Ending.COMPLETE, step, folder.weights)


def show_progress(bar: Progress, task: TaskID, done: int, total: int | None) -> None:
    bar.update(task, completed=done, total=total)


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


def teacher_batches(images: TrainingImages, config: TrainingConfig, device: torch.device) -> Iterator[Tensor]:
    """The first images of the run, augmented as in training; the same for every rank and every resumption."""
    for step in range(-(-min(TEACHER_IMAGES, len(images)) // config.images)):
        generator = step_generator(config.seed, step, NO_RANK, device)
        batch = shrink(images.take(step * config.images, config.images), config.min_scale, generator)
        yield draw_batches(batch, generator, step, config)[0].images


@torch.no_grad()
def sample_rows(networks: Networks, real: Tensor, config: TrainingConfig, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Real, reconstructed and generated patches."""
    noise = Noise.draw(len(real), config.architecture.latent, step_generator(config.seed, step, NO_RANK, real.device))
    networks.vae.eval()
    fake = networks.vae(real, noise.latent, noise.prior)
    networks.vae.train()
    return real, fake.reconstructed, fake.generated


def over_ranks(fabric: Fabric, values: Tensor, operation: str) -> Tensor:
    """Sum or mean of every rank's values."""
    found = fabric.all_reduce(values, reduce_op=operation)
    assert isinstance(found, Tensor)
    return found


def on_any_rank(fabric: Fabric, happened: bool) -> bool:
    """Whether it happened on any rank; with one rank the device is not synchronised."""
    if fabric.world_size == 1:
        return happened
    return bool(over_ranks(fabric, torch.tensor(float(happened), device=fabric.device), "sum") > 0)


def leave_together(fabric: Fabric, occasion: str) -> None:
    """Returns when every rank has left its last collective, which fails if a peer exits before.

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
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        restore()

    if threading.current_thread() is threading.main_thread():  # no other thread receives signals
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        restore()


def describe(losses: list[float]) -> str:
    """Such as `vae 0.12  discriminator 0.7`."""
    return "  ".join(f"{name} {value:.4g}" for name, value in zip(Losses._fields, losses, strict=True))


class Display(Progress):
    """Progress bar with the losses on a terminal; elsewhere one line every half minute."""

    def __init__(self, console: Console, step: int, total: int) -> None:
        columns = ("step {task.completed:,.0f} of {task.total:,.0f}", BarColumn(bar_width=20), TimeElapsedColumn())
        left = ("eta", TimeRemainingColumn(), "{task.description}")
        super().__init__(*columns, *left, console=console, disable=not console.is_terminal)
        self._run = self.add_task("", total=total, completed=step)
        self._printed = self.updated = time.monotonic()

    def show(self, step: int, losses: list[float]) -> None:
        text, self.updated = describe(losses), time.monotonic()
        self.update(self._run, completed=step, description=text)
        if not self.console.is_terminal and self.updated - self._printed > SECONDS_BETWEEN_LINES:
            self._printed, (task, *_) = self.updated, self.tasks
            eta = "?" if task.time_remaining is None else timedelta(seconds=int(task.time_remaining))
            self.console.print(f"step {step} of {task.total:.0f}  eta {eta}  {text}", soft_wrap=True)
