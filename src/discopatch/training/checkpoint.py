"""Where a run stands, as one safetensors file: both networks, both optimisers, the step."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from discopatch.files import below
from discopatch.model.weights import WeightsError, read_safetensors, write_safetensors

KEEP = 2


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or none can be read."""


@dataclass(frozen=True)
class Trained:
    """A network and the optimiser that trains it."""

    network: nn.Module
    optimiser: Optimizer


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run; the newest two are kept, so that one is always whole."""

    folder: Path

    def save(self, step: int, seen: int, trained: Mapping[str, Trained]) -> Path:
        """Writes the state after `step` steps that showed `seen` pictures; the older ones stay until it is whole."""
        path = self.folder / f"step-{step:09d}.safetensors"
        tensors = {f"{name}/{key}": value for name, part in trained.items() for key, value in named_state(part)}
        try:
            write_safetensors(path, tensors, kind="checkpoint", header={"step": step, "seen": seen})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written ({error}); {self.last_good()}. "
                "Free some disk space, then go on with --resume"
            ) from error
        for old in self.newest_first()[KEEP:]:
            old.unlink()
        return path

    def restore(self, trained: Mapping[str, Trained]) -> tuple[int, int]:
        """Puts the newest readable checkpoint into the networks and optimisers; returns its step and pictures seen."""
        reasons = []
        for path in self.newest_first():
            try:
                header, tensors = read_safetensors(path, kind="checkpoint")
            except WeightsError as error:
                reasons.append(str(error))
                continue
            for name, part in trained.items():
                put_state(part, below(tensors, name))
            return header["step"], header["seen"]
        raise CheckpointError(
            "; ".join([f"no readable checkpoint in {self.folder}", *reasons]) + ". Start again without --resume"
        )

    def newest_first(self) -> list[Path]:
        """The checkpoints that are there."""
        found = [path for path in self.folder.glob("step-*.safetensors") if re.fullmatch(r"step-\d{9}", path.stem)]
        return sorted(found, reverse=True)

    def last_good(self) -> str:
        """Words for messages: which checkpoint there is to go back to."""
        found = self.newest_first()
        return f"the last good checkpoint is {found[0]}" if found else "there is no checkpoint yet"


def named_state(part: Trained) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the network and of its optimiser, under names that do not depend on order."""
    for name, value in part.network.state_dict().items():
        yield f"network/{name}", value
    names = parameter_names(part)
    for index, state in part.optimiser.state_dict()["state"].items():
        for name, value in state.items():
            yield f"optimiser/{names[index]}/{name}", value


def put_state(part: Trained, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `named_state`."""
    part.network.load_state_dict(below(tensors, "network"))
    parameters = dict(part.network.named_parameters())
    index = {name: number for number, name in enumerate(parameter_names(part))}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in below(tensors, "optimiser").items():
        name, field = key.rsplit("/", 1)
        if name in index:  # a bias that rests in the fused passes may have moved before
            state.setdefault(index[name], {})[field] = laid_out_like(parameters[name], value)
    groups = part.optimiser.state_dict()["param_groups"]
    part.optimiser.load_state_dict({"state": state, "param_groups": groups})


def laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """In the parameter's memory order, which the fused optimiser insists on."""
    same = torch.empty_like(parameter, device=value.device, dtype=value.dtype)
    return same.copy_(value) if value.shape == parameter.shape else value


def parameter_names(part: Trained) -> list[str]:
    """The names of the optimiser's parameters, in its order."""
    names = {id(parameter): name for name, parameter in part.network.named_parameters()}
    return [names[id(parameter)] for group in part.optimiser.param_groups for parameter in group["params"]]


def all_finite(network: nn.Module) -> bool:
    """Whether every parameter is a number: nothing else may become a checkpoint."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in network.parameters())
