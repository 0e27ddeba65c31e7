"""The folder of one run: its description, its losses and samples, and the checkpoints to resume from."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.optim import Optimizer

import discopatch
from discopatch.errors import DiscopatchError, RunError, WeightsError
from discopatch.images.tensors import to_pixels
from discopatch.model import read_safetensors, write_safetensors
from discopatch.schema import Count, Digest, Name, load_json, read_fields
from discopatch.training.config import TrainingConfig
from discopatch.training.step import Losses
from discopatch.utils import strip_prefix, write_atomically, write_json

CHECKPOINTS_KEPT = 2
MAY_CHANGE = {"epochs", "steps"}
MAX_DESCRIPTION_BYTES = 2**20
COLUMNS = ("step", *Losses._fields)

Trainables = Mapping[str, tuple[nn.Module, Optimizer]]  # networks by name, each with its optimiser


@dataclass(frozen=True)
class RunDescription:
    """Fields of run.json that are used."""

    config: TrainingConfig
    run_id: Name
    data_digest: Name
    start: Digest | None = None


@dataclass(frozen=True)
class Place:
    """Place of a checkpoint in its run."""

    step: Count = 0
    images_seen: Count = 0


class RunFolder:
    """Files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / "run.json"  # the config, the digest of the data, and versions
        self.losses = path / "losses.csv"  # one line a step
        self.weights = path / "discriminator.safetensors"  # as of the newest checkpoint

    def checkpoints(self) -> list[Path]:
        """Checkpoints, the newest first."""
        return sorted((self.path / "checkpoints").glob("step-?????????.safetensors"), reverse=True)

    @property
    def last_good(self) -> str:
        """Name of the newest checkpoint as a part of an error message."""
        found = self.checkpoints()
        return f"the last good checkpoint is {found[0]}" if found else "there is no checkpoint yet"

    def check(self, *, resume: bool) -> None:
        """Raises RunError if there is no run to resume, or one that would be overwritten."""
        if resume:
            self.read()
        elif self.description.exists():
            raise RunError(f"{self.path} already holds a run: add --resume to continue it, or choose another --out")

    def read(self) -> dict[str, Any]:
        """Description of the run in this folder."""
        if not self.description.is_file():
            raise RunError(f"no run in {self.path} to resume: leave out --resume to start one")
        try:
            if self.description.stat().st_size > MAX_DESCRIPTION_BYTES:
                raise RunError(f"it has more than {MAX_DESCRIPTION_BYTES:,} bytes")
            content: dict[str, Any] = load_json(self.description.read_bytes())
            read_fields(RunDescription, content, where="run", ignore_unknown=True)
        except DiscopatchError as error:
            raise RunError(f"{self.description}: {error}; choose another --out") from None
        return content

    def config(self, preset: str | None = None) -> TrainingConfig:
        """Config of the run in this folder, which must be of the preset if one is given."""
        config = TrainingConfig.from_dict(self.read()["config"])
        if preset not in (None, config.preset):
            raise RunError(f"{self.path} has the preset {config.preset}: drop --preset, or start a new run")
        return config

    def begin(self, config: TrainingConfig, data_digest: str, start: str | None) -> None:
        """Writes the description of a new run; `start` is the digest of the weights that it begins with."""
        description = {
            "run_id": uuid4().hex,
            "config": config.to_dict(),
            "start": start,
            "data_digest": data_digest,
            "transform_digest": config.transform.digest,
            "discopatch": discopatch.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        write_json(self.description, description)

    def resume(self, config: TrainingConfig, data_digest: str, start: str | None) -> None:
        """Checks that config and images of a resumed run are the same; only its length may change."""
        description = self.read()
        before, now = description["config"], config.to_dict()
        changed = {name for name in now if before.get(name) != now[name]} - MAY_CHANGE
        if changed:
            listed = ", ".join(f"{name} was {before.get(name)}, now {now[name]}" for name in sorted(changed))
            raise RunError(f"a resumed run keeps its settings, but {listed}: drop the option, or start a new run")
        if description["data_digest"] != data_digest:
            raise RunError(
                f"the images are not those that {self.path} was trained on "
                f"(digest {data_digest[:16]}, not {description['data_digest'][:16]}): "
                "give the same ones, or start a new run"
            )
        if not self.checkpoints() and description["start"] != start:
            raise RunError(
                f"{self.path} was stopped before its first checkpoint and begins again with the weights "
                f"{description['start']}: give the same --from, or start a new run"
            )
        write_json(self.description, {**description, "config": now})

    def open_losses(self, step: int) -> TextIO:
        """The CSV of losses, to append lines after that step; those of steps that are repeated are dropped."""
        lines = self.losses.read_text().splitlines(keepends=True)[1:] if self.losses.exists() else []
        kept = [line for line in lines if line.endswith("\n") and int(line.partition(",")[0]) <= step]
        content = "".join([",".join(COLUMNS) + "\n", *kept])
        write_atomically(self.losses, lambda partial: partial.write_text(content))
        return self.losses.open("a", buffering=1)

    def save_samples(self, step: int, rows: Sequence[Tensor]) -> None:
        """Writes a PNG with one row of patches for each tensor (N, 3, S, S) in [-1, 1]."""
        pixels = [to_pixels(row).permute(0, 2, 3, 1).cpu().numpy() for row in rows]
        sheet = np.concatenate([np.concatenate(list(row), axis=1) for row in pixels], axis=0)
        path = self.path / "samples" / f"step-{step:09d}.png"
        write_atomically(path, lambda partial: Image.fromarray(sheet).save(partial, format="PNG"))

    def save(self, place: Place, trainables: Trainables) -> None:
        """Writes a checkpoint. The newest two are kept, so that one is always complete."""
        path = self.path / "checkpoints" / f"step-{place.step:09d}.safetensors"
        tensors = {
            f"{name}/{key}": value for name, part in trainables.items() for key, value in state_of(*part).items()
        }
        write_safetensors(path, tensors, kind="checkpoint", header=asdict(place))
        for old in self.checkpoints()[CHECKPOINTS_KEPT:]:
            old.unlink()

    def restore(self, trainables: Trainables) -> Place:
        """Loads the newest readable checkpoint; a run without any begins again."""
        reasons = []
        for path in self.checkpoints():
            try:
                content, tensors = read_safetensors(path, kind="checkpoint")
            except WeightsError as error:
                reasons.append(str(error))
                continue
            for name, part in trainables.items():
                load_state(*part, strip_prefix(tensors, name))
            return read_fields(Place, content, where="checkpoint", ignore_unknown=True)
        if reasons:
            raise RunError(f"no readable checkpoint: {'; '.join(reasons)}. Start again without --resume")
        return Place()


def state_of(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """All tensors of a network and of its optimiser, by the names of the parameters."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in network.named_parameters()}
    found = {f"network/{name}": value for name, value in network.state_dict().items()}
    for parameter, slots in optimiser.state.items():
        found |= {f"optimiser/{names[parameter]}/{slot}": value for slot, value in slots.items()}
    return found


def load_state(network: nn.Module, optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Inverse of `state_of`."""
    network.load_state_dict(strip_prefix(tensors, "network"))
    parameters = dict(network.named_parameters())
    order = {parameter: number for number, parameter in enumerate(optimiser.param_groups[0]["params"])}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in strip_prefix(tensors, "optimiser").items():
        name, slot = key.rsplit("/", 1)
        parameter = parameters[name]
        if parameter in order:  # the fused passes do not train a bias that was trained before
            # The fused optimiser needs the memory order of the parameter.
            same = torch.empty_like(parameter, device=value.device, dtype=value.dtype)
            found = same.copy_(value) if value.shape == parameter.shape else value
            state.setdefault(order[parameter], {})[slot] = found
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
