"""A discriminator as a file: safetensors, with the architecture and the transform that belong to it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from discopatch.errors import WeightsError
from discopatch.images import Transform
from discopatch.model.config import Architecture
from discopatch.model.discriminator import Discriminator
from discopatch.model.layers import channels_last
from discopatch.utils import write_atomically

FORMATS = {"discriminator": 1, "checkpoint": 2, "detector": 2, "backbone": 1}  # of each kind of file
WRITERS = {
    "discriminator": "discopatch train",
    "checkpoint": "discopatch train",
    "detector": "discopatch fit",
    "backbone": "discopatch data fetch",
}
HEADER = "discopatch"


@dataclass(frozen=True)
class Weights:
    """A discriminator, the transform that its images must come through, and how it was trained (`origin`)."""

    discriminator: Discriminator
    transform: Transform
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits that stand for the values of all parameters."""
        return parameters_digest(self.discriminator)

    def save(self, path: Path | str, *, dtype: torch.dtype = torch.float32) -> None:
        """Writes one safetensors file, atomically; float16 halves it, and rounds."""
        header = {
            "architecture": self.discriminator.architecture.to_dict(),
            "transform": self.transform.to_dict(),
            "transform_digest": self.transform.digest,
            "origin": self.origin,
        }
        tensors = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in self.discriminator.state_dict().items()
        }
        write_safetensors(Path(path), tensors, kind="discriminator", header=header)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads what `save` wrote; a file that is damaged, foreign or newer is refused with the remedy."""
        header, tensors = read_safetensors(Path(path), kind="discriminator")
        weights = cls.from_tensors(tensors, header)
        if weights.transform.digest != header["transform_digest"]:
            raise WeightsError(
                f"{path} was made with the transform {header['transform_digest']}, but says it is {weights.transform}: "
                "the file was changed by hand; take the original"
            )
        return weights

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> Self:
        """The weights whose parameters are `tensors` and whose architecture and transform the header describes."""
        discriminator = Discriminator(Architecture.from_dict(header["architecture"]))
        discriminator.load_state_dict(tensors)
        transform = Transform.from_dict(header["transform"])
        return cls(channels_last(discriminator.eval()), transform, header.get("origin", {}))


def parameters_digest(network: nn.Module) -> str:
    """16 hex digits that stand for the values of all parameters, in whatever file they are stored."""
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], *, kind: str, header: dict[str, Any]) -> None:
    """Writes tensors and a header that says what they are, atomically; `kind` is one of FORMATS."""
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    metadata = {HEADER: json.dumps({"format": FORMATS[kind], "kind": kind, **header})}
    write_atomically(path, lambda partial: save_file(contiguous, partial, metadata))


def read_safetensors(path: Path, *, kind: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The header and tensors of one of our files, or a WeightsError that says what it is instead."""
    if not path.is_file():
        raise WeightsError(f"no {kind} at {path}: give the path of a file that `{WRITERS[kind]}` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors ({error}): copy it again") from error
    if HEADER not in metadata:
        raise WeightsError(f"{path} is not a file of discopatch: give a file that `{WRITERS[kind]}` wrote")
    header: dict[str, Any] = json.loads(metadata[HEADER])
    if not {"format", "kind"} <= header.keys():
        raise WeightsError(f"{path} has a header without format and kind: take a file that discopatch wrote")
    if header["kind"] != kind:
        raise WeightsError(f"{path} holds a {header['kind']}, not a {kind}: give a file that `{WRITERS[kind]}` wrote")
    if header["format"] > FORMATS[kind]:
        raise WeightsError(
            f"{path} has format {header['format']}, this discopatch reads {FORMATS[kind]}: update discopatch"
        )
    if header["format"] < FORMATS[kind]:
        raise WeightsError(
            f"{path} has format {header['format']} of an earlier discopatch: write it again with `{WRITERS[kind]}`"
        )
    return header, tensors
