"""Weights of a discriminator in a safetensors file, with the architecture and the transform that belong to it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from discopatch.errors import DiscopatchError, WeightsError
from discopatch.images import Transform
from discopatch.model.config import Architecture
from discopatch.model.layers import BATCHNORM_BUFFERS, channels_last
from discopatch.model.networks import Discriminator
from discopatch.model.patches import check_fits
from discopatch.schema import Digest, load_json, read_fields, shorten
from discopatch.utils import write_atomically

N = TypeVar("N", bound=nn.Module)

FORMATS = {"discriminator": 1, "checkpoint": 3, "detector": 9, "backbone": 2}  # of each kind of file
WRITERS = {"discriminator": "train", "checkpoint": "train", "detector": "fit", "backbone": "data fetch"}  # commands
HEADER = "discopatch"  # the one key of the metadata of a file: several would be written in any order
DIGEST = "sha256"  # field of the header

# Reading takes about three times the size of the file in memory; these bounds limit what an untrusted file can demand.
MAX_BYTES = {"discriminator": 2**28, "checkpoint": 2**32, "detector": 2**28, "backbone": 2**30}
MAX_HEADER_BYTES = 2**22
LARGEST_WEIGHT = 1e6  # no activation overflows up to this value, for any number of channels
LONGEST_REASON = 500  # characters; a hostile file may have any number of names


@dataclass(frozen=True)
class Weights:
    """A discriminator, the transform of its images, and how it was trained (`origin`)."""

    discriminator: Discriminator
    transform: Transform
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits of all parameters, and of a pixel range other than [-1, 1]."""
        digest = parameters_digest(self.discriminator)
        if self.transform.pixels == "symmetric":
            return digest
        return hashlib.sha256(f"{digest} {self.transform.pixels}".encode()).hexdigest()[:16]

    def save(self, path: Path | str, *, dtype: torch.dtype = torch.float32) -> None:
        """Writes one safetensors file, atomically; float16 halves it.

        It rounds everything but the running statistics of a BatchNorm, which may exceed its range.
        """
        header = {
            "architecture": self.discriminator.architecture.to_dict(),
            "transform": self.transform.to_dict(),
            "transform_digest": self.transform.digest,
            "origin": self.origin,
        }
        tensors = {
            name: value if name.endswith(BATCHNORM_BUFFERS) else value.to(dtype)
            for name, value in self.discriminator.state_dict().items()
        }
        write_safetensors(Path(path), tensors, kind="discriminator", header=header)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Weights that `save` wrote; WeightsError with the remedy for a damaged or foreign file."""
        content, tensors = read_safetensors(Path(path), kind="discriminator")
        with refused(path, "take the original, or write it again with `discopatch train`"):
            header = read_fields(WeightsHeader, content, where="header", ignore_unknown=True)
            if header.transform.digest != header.transform_digest:
                raise WeightsError(f"its digest of the transform is {header.transform_digest}, not that of its fields")
            return cls.from_tensors(tensors, header.architecture, header.transform, header.origin)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        architecture: Architecture,
        transform: Transform,
        origin: dict[str, Any] | None = None,
    ) -> Self:
        """Weights whose parameters are `tensors`, which must be those of the architecture."""
        check_fits(transform.size, architecture.patch_size)
        discriminator = load_network(lambda: Discriminator(architecture), tensors)
        return cls(channels_last(discriminator.eval()), transform, origin or {})


@dataclass(frozen=True)
class WeightsHeader:
    """Header of a discriminator, beside format and kind; whatever changes its meaning raises the format."""

    architecture: Architecture
    transform: Transform
    transform_digest: Digest
    origin: dict[str, Any] = field(default_factory=dict)


def parameters_digest(network: nn.Module) -> str:
    """16 hex digits of the values of all parameters; independent of the file that stores them."""
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def load_network(make: Callable[[], N], tensors: Mapping[str, Tensor]) -> N:
    """The network with these tensors; WeightsError if they do not fit, before it takes any memory."""
    with torch.device("meta"):
        expected = make()
    try:
        expected.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise WeightsError(f"its tensors do not fit: {' '.join(str(error).split())[:LONGEST_REASON]}") from None
    network = make()
    network.load_state_dict(tensors)
    for name, value in network.state_dict().items():
        least, most = value.aminmax()
        smallest = 0 if name.endswith("running_var") else -LARGEST_WEIGHT
        if value.is_floating_point() and not (smallest <= least and most <= LARGEST_WEIGHT):
            raise WeightsError(f"{name} holds numbers that are not finite, or beyond {LARGEST_WEIGHT:g}")
    return network


def check_names(owner: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Raises WeightsError unless both are the same names."""
    if missing := set(expected) - set(found):
        raise WeightsError(f"{owner} lacks {', '.join(sorted(missing))}")
    if unknown := set(found) - set(expected):
        raise WeightsError(f"{owner} has no {shorten.repr(sorted(unknown))}")


@contextmanager
def refused(path: Path | str, remedy: str) -> Iterator[None]:
    """Turns every DiscopatchError raised within into a WeightsError that names the file and the remedy."""
    try:
        yield
    except DiscopatchError as error:
        raise WeightsError(f"{path}: {error}; {remedy}") from None


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], *, kind: str, header: dict[str, Any]) -> None:
    """Writes tensors and their header with a digest of both, atomically; `kind` is one of FORMATS."""
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    content = {"format": FORMATS[kind], "kind": kind, **header}
    stored = json.dumps({**content, DIGEST: content_digest(content, contiguous)})
    load_json(stored)  # a header that could not be read again is not written

    def write(partial: Path) -> None:
        save_file(contiguous, partial, {HEADER: stored})
        check_size(partial, kind)

    write_atomically(path, write)


def content_digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a header, and of the name, type, shape and values of every tensor."""
    total = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_safetensors(path: Path, *, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file that `write_safetensors` wrote; WeightsError for any other or damaged file.

    The tensors are mapped from the file: they take memory when they are first used, so check their shapes before.
    """
    give = f"give a file that `discopatch {WRITERS[kind]}` wrote"
    if not path.is_file():
        raise WeightsError(f"no {kind} at {path}: {give}")
    check_size(path, kind)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except Exception as error:  # the library raises errors of several kinds for a damaged file
        raise WeightsError(f"{path} cannot be read as safetensors ({error}): copy it again") from error
    if HEADER not in metadata:
        raise WeightsError(f"{path} is not a file of discopatch: {give}")
    with refused(path, give):
        content = load_json(metadata[HEADER])
        found, number = (content.get(name) if isinstance(content, dict) else None for name in ("kind", "format"))
        if found != kind:
            raise WeightsError(f"it holds a {shorten.repr(found)}, not a {kind}")
        if number != FORMATS[kind]:
            raise WeightsError(
                f"it has format {shorten.repr(number)}, this version of discopatch reads {FORMATS[kind]}"
            )
        if content.pop(DIGEST, None) != content_digest(content, tensors):
            raise WeightsError("it is damaged: its content does not have its digest")
    return content, tensors


def check_size(path: Path, kind: str) -> None:
    """Raises WeightsError if a file of that kind, or its header, is too large to be read."""
    size = path.stat().st_size
    if size > MAX_BYTES[kind]:
        raise WeightsError(
            f"{path} has {size:,} bytes, and a {kind} has {MAX_BYTES[kind]:,} at most: "
            f"give a file that `discopatch {WRITERS[kind]}` wrote"
        )
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise WeightsError(f"{path} cannot be read as safetensors (a header of {length:,} bytes): copy it again")
