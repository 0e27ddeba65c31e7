"""Which share of the parts a process takes, and on which device, by what it was told or started under."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from discopatch.errors import ParameterError

# Variables of a rank, of how many there are, and of the rank on its machine, by who sets them.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "a step of SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


class Ranks(NamedTuple):
    """One of several processes: of the parts it takes number `rank`, `rank + world`, ..."""

    rank: int
    world: int
    local: int = 0  # its number on its machine
    by: str | None = None  # who said so, where it was not asked for

    def takes(self, number: int) -> bool:
        return number % self.world == self.rank


def find_ranks(rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ) -> Ranks:
    """What is given, or what torchrun or SLURM say, or the only process."""
    if (rank is None) != (world is None):
        raise ParameterError("rank and world belong together: give both, such as --rank 0 --world 4")
    if rank is not None and world is not None:
        return checked(Ranks(rank, world))
    for launcher, (own, count, local) in LAUNCHERS.items():
        if own in environment and count in environment:
            try:
                found = Ranks(int(environment[own]), int(environment[count]), int(environment.get(local, 0)), launcher)
            except ValueError:
                raise ParameterError(
                    f"{own}={environment[own]!r} and {count}={environment[count]!r} are no numbers: "
                    "give --rank and --world"
                ) from None
            return checked(found)
    return Ranks(0, 1)


def checked(ranks: Ranks) -> Ranks:
    if not 0 <= ranks.rank < ranks.world:
        raise ParameterError(f"rank {ranks.rank} of {ranks.world}: ranks count from 0 to below the number of processes")
    return ranks


def device_of(device: str, ranks: Ranks) -> str:
    """The device, where `auto` gives each process of a machine the next of its GPUs."""
    if device != "auto" or ranks.local == 0:
        return device
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{ranks.local % count}" if count else device
