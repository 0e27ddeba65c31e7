"""The folder of one run: what was asked for, what came out, and the checkpoints to resume from."""

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import discopatch
from discopatch.errors import CheckpointError, OutputError, RunError, SchemaError, WeightsError
from discopatch.model import Architecture, Networks, read_safetensors, write_safetensors
from discopatch.model.weights import check_names, check_tensors, refused
from discopatch.schema import Count, Digest, Name, load_json, read_fields
from discopatch.training.config import TrainingConfig
from discopatch.utils import strip_prefix, write_json

CHECKPOINTS_KEPT = 2
MAY_CHANGE = {"epochs", "steps"}
MAX_DESCRIPTION_BYTES = 2**20
VAE_PREFIX, DISCRIMINATOR_PREFIX = "vae/network/", "discriminator/network/discriminator."


@dataclass(frozen=True)
class RunDescription:
    """What the description of a run says that is used."""

    config: TrainingConfig
    run_id: Name
    data_digest: Name
    start: Digest | None = None


@dataclass(frozen=True)
class CheckpointHeader:
    """What the header of a checkpoint says, beyond its format."""

    step: Count
    images_seen: Count
    replaced: Count = 0  # of the images seen, those that stand for others that could not be read


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files, and its description: config, data digest, versions."""

    path: Path

    @property
    def description(self) -> Path:
        return self.path / "run.json"

    @property
    def losses(self) -> Path:
        return self.path / "losses.csv"

    @property
    def weights(self) -> Path:
        """The discriminator as of the newest checkpoint."""
        return self.path / "discriminator.safetensors"

    def kept(self, step: int) -> Path:
        """The discriminator of that step, for a look back at how it learnt."""
        return self.path / "kept" / f"step-{step:09d}.safetensors"

    @property
    def checkpoints(self) -> "Checkpoints":
        return Checkpoints(self.path / "checkpoints")

    @property
    def has_results(self) -> bool:
        """Whether the run came as far as its first checkpoint; before that, nothing is lost when it begins again."""
        return self.weights.exists() or bool(self.checkpoints.newest_first())

    def samples(self, step: int) -> Path:
        """The sheet of real, reconstructed and generated patches after that step."""
        return self.path / "samples" / f"step-{step:09d}.png"

    def read(self) -> dict[str, Any]:
        """The description of the run in this folder."""
        try:
            with self.description.open("rb") as file:
                content = file.read(MAX_DESCRIPTION_BYTES + 1)
        except OSError:
            raise RunError(f"no run in {self.path} to resume: leave out --resume to start one") from None
        try:
            if len(content) > MAX_DESCRIPTION_BYTES:
                raise SchemaError(f"it has more than {MAX_DESCRIPTION_BYTES:,} bytes")
            description: dict[str, Any] = load_json(content)
            read_fields(RunDescription, description, where="run", ignore_unknown=True)
        except (SchemaError, RunError) as error:
            raise RunError(
                f"{self.description}: {error}; the run is damaged or of another version of discopatch: "
                "choose another --out"
            ) from None
        return description

    @property
    def streams(self) -> bool:
        """Whether the run in this folder reads its images from shards."""
        return TrainingConfig.from_dict(self.read()["config"]).stream or False

    def check_free(self) -> None:
        """Raises if the folder holds a run already: none is ever overwritten."""
        if self.description.exists():
            raise RunError(f"{self.path} already holds a run: add --resume to continue it, or choose another --out")

    def begin(self, config: TrainingConfig, data_digest: str, start: str | None = None) -> dict[str, Any]:
        """Writes and returns the description of a new run; `start` is the digest of the weights that it begins with."""
        self.check_free()
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
        return description

    def resume(self, config: TrainingConfig, data_digest: str, start: str | None = None) -> dict[str, Any]:
        """The description of a run that continues, provided that config and images are the same; it may get longer."""
        description = self.read()
        before, now = TrainingConfig.from_dict(description["config"]).to_dict(), config.to_dict()
        changed = {name for name in now if before.get(name) != now[name]} - MAY_CHANGE
        if changed:
            listed = ", ".join(f"{name} was {before.get(name)}, now {now[name]}" for name in sorted(changed))
            raise RunError(f"a resumed run keeps its settings, but {listed}: drop the flag, or start a new run")
        if description["data_digest"] != data_digest:
            raise RunError(
                f"the images are not those that {self.path} was trained on "
                f"(digest {data_digest[:16]}, not {description['data_digest'][:16]}): "
                "give the same ones, or start a new run"
            )
        if not self.has_results and description.get("start") != start:
            raise RunError(
                f"{self.path} was stopped before its first checkpoint and begins again, for which it needs the weights "
                f"that it began with ({description.get('start')}): give the same --start, or start a new run"
            )
        description["config"] = now
        write_json(self.description, description)
        return description


@dataclass(frozen=True)
class Trainable:
    """A network and the optimiser that trains it."""

    network: nn.Module
    optimiser: Optimizer

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the network and of its optimiser, under names that do not depend on order."""
        for name, value in self.network.state_dict().items():
            yield f"network/{name}", value
        names = self.parameter_names()
        for index, state in self.optimiser.state_dict()["state"].items():
            for name, value in state.items():
                yield f"optimiser/{names[index]}/{name}", value

    def check_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises WeightsError unless these are tensors that `state` could have given."""
        owner, parameters = type(self.network).__name__, dict(self.network.named_parameters())
        check_tensors(owner, strip_prefix(tensors, "network"), self.network.state_dict())
        slots: dict[str, dict[str, Tensor]] = {}
        for key, value in strip_prefix(tensors, "optimiser").items():
            name, _, slot = key.rpartition("/")
            slots.setdefault(name, {})[slot] = value
        check_names(f"the optimiser of {owner}", slots.keys() - parameters.keys(), ())
        for name, found in slots.items():
            shape = parameters[name].detach()
            check_tensors(name, found, {"step": shape.new_empty(()), "exp_avg": shape, "exp_avg_sq": shape})
            if found["step"] < 0 or found["exp_avg_sq"].min() < 0:
                raise WeightsError(f"the optimiser has numbers below 0 for {name}")
        for name, value in tensors.items():
            if not torch.isfinite(value).all():
                raise WeightsError(f"{name} holds numbers that are not finite")

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `state` gave."""
        self.network.load_state_dict(strip_prefix(tensors, "network"))
        parameters = dict(self.network.named_parameters())
        index = {name: number for number, name in enumerate(self.parameter_names())}
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in strip_prefix(tensors, "optimiser").items():
            name, slot = key.rsplit("/", 1)
            if name in index:  # a bias that the fused passes leave out may have been trained before
                state.setdefault(index[name], {})[slot] = in_memory_order_of(parameters[name], value)
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})

    def parameter_names(self) -> list[str]:
        """The names of the optimiser's parameters, in its order."""
        names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        return [names[id(parameter)] for group in self.optimiser.param_groups for parameter in group["params"]]

    def is_finite(self) -> bool:
        """Whether every parameter is a finite number: nothing else may become a checkpoint."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self.network.parameters())


def in_memory_order_of(parameter: Tensor, value: Tensor) -> Tensor:
    """The value in the parameter's memory order, which the fused optimiser insists on."""
    same = torch.empty_like(parameter, device=value.device, dtype=value.dtype)
    return same.copy_(value) if value.shape == parameter.shape else value


@dataclass(frozen=True)
class Checkpoints:
    """One safetensors file for each state of a run; the newest two are kept, so that one is always whole."""

    path: Path

    def save(self, step: int, images_seen: int, trainables: Mapping[str, Trainable], *, replaced: int = 0) -> Path:
        """Writes the state after `step` steps; older files stay until it is whole."""
        path = self.path / f"step-{step:09d}.safetensors"
        header = asdict(CheckpointHeader(step, images_seen, replaced))
        tensors = {f"{name}/{key}": value for name, part in trainables.items() for key, value in part.state()}
        try:
            write_safetensors(path, tensors, kind="checkpoint", header=header)
        except OutputError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written ({error.strerror}); {self.last_good()}. "
                "Free some disk space, then continue with --resume"
            ) from error
        for old in self.newest_first()[CHECKPOINTS_KEPT:]:
            old.unlink()
        return path

    def restore(self, trainables: Mapping[str, Trainable]) -> CheckpointHeader:
        """Loads the newest readable checkpoint into the networks and optimisers; returns its place in the run."""
        reasons = []
        for path in self.newest_first():
            try:
                content, tensors = read_safetensors(path, kind="checkpoint")
                with refused(path, "the one before is taken"):
                    header = read_fields(CheckpointHeader, content, where="header", ignore_unknown=True)
                    check_names("the checkpoint", {name.partition("/")[0] for name in tensors}, trainables)
                    for name, part in trainables.items():
                        part.check_state(strip_prefix(tensors, name))
            except WeightsError as error:
                reasons.append(str(error))
                continue
            for name, part in trainables.items():
                part.load_state(strip_prefix(tensors, name))
            return header
        raise CheckpointError(
            "; ".join([f"no readable checkpoint in {self.path}", *reasons]) + ". Start again without --resume"
        )

    def check_architecture(self, architecture: Architecture) -> None:
        """Raises RunError where the newest readable checkpoint has networks of another shape; takes no memory for them.

        A description from anyone could otherwise ask for networks of any size.
        """
        with torch.device("meta"):
            networks = Networks.from_seed(architecture, 0)
        expected = {
            f"{prefix}{name}": value
            for prefix, network in ((VAE_PREFIX, networks.vae), (DISCRIMINATOR_PREFIX, networks.discriminator))
            for name, value in network.state_dict().items()
        }
        for path in self.newest_first():
            try:
                _, tensors = read_safetensors(path, kind="checkpoint")
            except WeightsError:
                continue
            for name, tensor in tensors.items():
                if name in expected and expected[name].shape != tensor.shape:
                    raise RunError(
                        f"{path} has {name} of shape {tuple(tensor.shape)}, where the config of the run has "
                        f"{tuple(expected[name].shape)}: it was changed by hand; start a new run"
                    )
            return

    def newest_first(self) -> list[Path]:
        """The paths of the checkpoints that are there."""
        found = [path for path in self.path.glob("step-*.safetensors") if re.fullmatch(r"step-\d{9}", path.stem)]
        return sorted(found, reverse=True)

    def last_good(self) -> str:
        """Which checkpoint there is to go back to, as a part of an error message."""
        found = self.newest_first()
        return f"the last good checkpoint is {found[0]}" if found else "there is no checkpoint yet"
