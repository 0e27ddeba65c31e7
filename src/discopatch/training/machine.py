"""Where a run happens: processes, devices, precision, and the decoded pictures that all of them share."""

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from discopatch.images import PixelCache, open_cache
from discopatch.images.workers import DEFAULT_WORKERS, Workers
from discopatch.training.recipe import Recipe

Precision = Literal["auto", "32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Machine:
    """Where the run happens and how fast; none of it changes what is learnt, but for rounding.

    compile: the fused and compiled passes; None for yes on a GPU and no on a CPU.
    """

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    precision: Precision = "auto"
    compile: bool | None = None
    workers: Workers = DEFAULT_WORKERS


def start_fabric(machine: Machine) -> Fabric:
    """The processes and the precision."""
    several = machine.devices * machine.nodes > 1
    strategy = DDPStrategy(**buffers_stay_apart()) if several else "auto"
    accelerator = machine.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    precision = machine.precision
    if precision == "auto":
        precision = "bf16-mixed" if accelerator == "cuda" else "32-true"
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its hints at other precisions are not for users
    fabric = Fabric(
        accelerator=accelerator,
        devices=machine.devices,
        num_nodes=machine.nodes,
        strategy=strategy,
        precision=precision,
    )
    fabric.launch()
    torch.backends.cudnn.benchmark = True  # shapes never change, so the search for the fastest kernel pays
    return fabric


def buffers_stay_apart() -> dict[str, Any]:
    """The option of DDP, under the name that this torch has for it.

    A broadcast between the discriminator's forward passes would spoil the backward pass of the first.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def decode(
    fabric: Fabric, source: object, recipe: Recipe, cache: Path, machine: Machine, console: Console
) -> PixelCache:
    """The decoded pictures; the first rank decodes, the others find the cache ready."""

    def open_it(report: Any = None) -> PixelCache:
        return open_cache(source, recipe.transform, cache, workers=machine.workers, progress=report)

    if fabric.is_global_zero:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("decoding", total=None)
            pictures = open_it(lambda done, total: progress.update(task, completed=done, total=total))
    fabric.barrier()
    return pictures if fabric.is_global_zero else open_it()


def leave_together(fabric: Fabric, occasion: str) -> None:
    """No rank hangs up while another is still within its last collective, which would then fail a complete run.

    They meet at the store, not in one more collective; the first rank, which may be the store's host, leaves last.
    """
    if fabric.world_size == 1:
        return
    store = torch.distributed.distributed_c10d._get_default_store()
    for phase in ("done", "leaving"):
        store.set(f"{occasion}/{phase}/{fabric.global_rank}", "1")
        if phase == "done" or fabric.is_global_zero:
            store.wait([f"{occasion}/{phase}/{rank}" for rank in range(fabric.world_size)])


def total_over_ranks(fabric: Fabric, values: Tensor) -> Tensor:
    """The sum of every rank's values."""
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, Tensor)
    return total
