"""What a run computes on: processes, devices and precision, the images that all ranks share, and signals to stop."""

import inspect
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from discopatch.errors import NoImagesError, ParameterError
from discopatch.images import (
    DEFAULT_LIMITS,
    DEFAULT_WORKERS,
    Limits,
    PixelCache,
    ShardIndex,
    Transform,
    find_cache,
    open_cache,
    open_index,
    tar_shards,
)
from discopatch.training.config import Hardware, TrainingConfig
from discopatch.utils import usable_memory

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHARE_OF_MEMORY = 0.5  # that decoded images may take
SMALLEST_MEMBER = 1024  # bytes of a tar file that an image takes at least


def start_fabric(hardware: Hardware) -> Fabric:
    """The processes, with device and precision chosen where the hardware says "auto"."""
    several = hardware.devices * hardware.nodes > 1
    strategy = DDPStrategy(**without_buffer_broadcast()) if several else "auto"
    accelerator = hardware.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and (found := torch.cuda.device_count()) < hardware.devices:
        raise ParameterError(
            f"accelerator cuda with {hardware.devices} devices, and {found} are there: choose auto or cpu, lower the "
            "number of devices, or install torch for your GPU"
        )
    precision = hardware.precision
    if precision == "auto":
        precision = "bf16-mixed" if accelerator == "cuda" else "32-true"
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its hints at other precisions are not for users
    fabric = Fabric(
        accelerator=accelerator,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=strategy,
        precision=precision,
    )
    fabric.launch()
    torch.backends.cudnn.benchmark = True  # shapes never change, so the search for the fastest kernel pays
    return fabric


def without_buffer_broadcast() -> dict[str, Any]:
    """The option of DDP, under the name that this torch has for it.

    A broadcast between the discriminator's forward passes would invalidate the backward pass of the first.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def open_shared_images(
    fabric: Fabric, source: object, config: TrainingConfig, folder: Path, hardware: Hardware, console: Console
) -> PixelCache | ShardIndex:
    """The decoded images, or where they are streamed the index of their shards.

    The first rank decodes or lists them, the others find all ready; where it is not said, it also chooses.
    """
    workers = DEFAULT_WORKERS if hardware.workers is None else hardware.workers
    limits = hardware.limits or DEFAULT_LIMITS
    stream = config.stream
    if stream is None:
        chosen = fabric.is_global_zero and is_beyond_memory(source, config.transform, folder, limits)
        stream = bool(fabric.broadcast(chosen))

    def open_it(report: Any = None) -> PixelCache | ShardIndex:
        if stream:
            return open_index(source, folder, limits=limits, progress=report)
        return open_cache(source, config.transform, folder, workers=workers, limits=limits, progress=report)

    if fabric.is_global_zero:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("listing" if stream else "decoding", total=None)
            images = open_it(lambda done, total: progress.update(task, completed=done, total=total))
    fabric.barrier()
    return images if fabric.is_global_zero else open_it()


def is_beyond_memory(source: object, transform: Transform, folder: Path, limits: Limits) -> bool:
    """Whether the images are in plain tar shards and decoded would take over half of the memory, or too much disk."""
    paths = source if isinstance(source, list | tuple) else [source]
    if not all(isinstance(path, str | os.PathLike) for path in paths):
        return False
    try:
        sizes = [(*shard.stamp, inf)[0] for shard in tar_shards(source)]
        most = sum(map(float, sizes)) // SMALLEST_MEMBER
        room = SHARE_OF_MEMORY * (usable_memory() or inf)
        if most * transform.size**2 * 3 <= min(room, free_disk(folder)):
            return False  # without listing them
        needed = len(open_index(source, folder, limits=limits)) * transform.size**2 * 3
    except (ParameterError, NoImagesError, OSError):
        return False  # what is not in plain shards is decoded, and who decodes says what is wrong
    if needed > room:
        return True
    return needed > free_disk(folder) and find_cache(source, transform, folder, limits) is None


def free_disk(folder: Path) -> int:
    """Bytes that can be written to the folder, which need not be there yet."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def sum_over_ranks(fabric: Fabric, values: Tensor) -> Tensor:
    """The sum of every rank's values; with one rank the values themselves."""
    if fabric.world_size == 1:
        return values
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, Tensor)
    return total


def leave_together(fabric: Fabric, occasion: str) -> None:
    """Returns when no rank is within its last collective any more, which would fail if another hung up.

    They meet at the store, not in one more collective; the first rank, which may be the store's host, leaves last.
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
    """An event that the first Ctrl-C or termination sets, so that a run ends between two steps.

    A second signal acts at once, as if nothing had been set up.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # signals are the main thread's
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
