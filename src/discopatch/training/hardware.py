"""What a run computes on: processes, devices and precision, the images that all ranks share, and signals to stop."""

import inspect
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

from discopatch.errors import ParameterError
from discopatch.images import DEFAULT_LIMITS, DEFAULT_WORKERS, PixelCache, Transform, open_cache
from discopatch.training.config import Hardware

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


def open_shared_cache(
    fabric: Fabric, source: object, transform: Transform, folder: Path, hardware: Hardware, console: Console
) -> PixelCache:
    """The decoded images; the first rank decodes them, the others find the cache ready."""

    def open_it(report: Any = None) -> PixelCache:
        workers = DEFAULT_WORKERS if hardware.workers is None else hardware.workers
        limits = hardware.limits or DEFAULT_LIMITS
        return open_cache(source, transform, folder, workers=workers, limits=limits, progress=report)

    if fabric.is_global_zero:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("decoding", total=None)
            cache = open_it(lambda done, total: progress.update(task, completed=done, total=total))
    fabric.barrier()
    return cache if fabric.is_global_zero else open_it()


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
