"""A discriminator as a file: safetensors, with the architecture and the transform that belong to it."""

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
from discopatch.model.discriminator import Discriminator
from discopatch.model.layers import BATCHNORM_BUFFERS, channels_last
from discopatch.model.patches import check_fits
from discopatch.schema import Count, Digest, LongDigest, Name, load_json, read_fields, shorten
from discopatch.seal import UNSEALED, seal, sealed_digest
from discopatch.utils import write_atomically

N = TypeVar("N", bound=nn.Module)

FORMATS = {"discriminator": 1, "checkpoint": 2, "detector": 3, "backbone": 1}  # of each kind of file
WRITERS = {
    "discriminator": "discopatch train",
    "checkpoint": "discopatch train",
    "detector": "discopatch fit",
    "backbone": "discopatch data fetch",
}
HEADER = "discopatch"
WRITE_AGAIN = "take the original, or write it again with `{}`"

# Reading a file takes about three times its size in memory, so these bound what a file from anyone can ask for.
MAX_BYTES = {"discriminator": 2**28, "checkpoint": 2**32, "detector": 2**28, "backbone": 2**30}
MAX_HEADER_BYTES = 2**22
LARGEST_WEIGHT = 1e6  # up to which no activation overflows, however many channels there are
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@dataclass(frozen=True)
class Weights:
    """A discriminator, the transform that its images must come through, and how it was trained (`origin`)."""

    discriminator: Discriminator
    transform: Transform
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits that stand for the values of all parameters, and for a range of pixels that is not [-1, 1]."""
        digest = parameters_digest(self.discriminator)
        if self.transform.pixels == "symmetric":
            return digest
        return hashlib.sha256(f"{digest} {self.transform.pixels}".encode()).hexdigest()[:16]

    def save(self, path: Path | str, *, dtype: torch.dtype = torch.float32) -> None:
        """Writes one safetensors file, atomically; float16 halves it, and rounds all but running statistics.

        Those of a BatchNorm may be larger than float16 holds, and are few.
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
        """Reads what `save` wrote; a file that is damaged, foreign or newer is refused with the remedy."""
        content, tensors = read_safetensors(Path(path), kind="discriminator")
        with refused(path, WRITE_AGAIN.format(WRITERS["discriminator"])):
            header = read_fields(WeightsHeader, content, where="header", ignore_unknown=True)
            weights = cls.from_tensors(tensors, header.architecture, header.transform, header.origin)
        if weights.transform.digest != header.transform_digest:
            raise WeightsError(
                f"{path} was made with the transform {header.transform_digest}, but says it is {weights.transform}: "
                "the file was changed by hand; take the original"
            )
        return weights

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        architecture: Architecture,
        transform: Transform,
        origin: dict[str, Any] | None = None,
    ) -> Self:
        """The weights whose parameters are `tensors`, which must be those of the architecture."""
        check_fits(transform.size, architecture.patch_size)
        discriminator = load_network(lambda: Discriminator(architecture), tensors)
        return cls(channels_last(discriminator.eval()), transform, origin or {})


@dataclass(frozen=True)
class FileHeader:
    """What the header of every file says; fields that this version does not know are ignored.

    Whatever changes the meaning of a file raises its format.
    """

    format: Count
    kind: Name
    file_digest: LongDigest | None = None  # files of format 1 may lack it


@dataclass(frozen=True)
class WeightsHeader:
    """What the header of a discriminator says beyond that."""

    architecture: Architecture
    transform: Transform
    transform_digest: Digest
    origin: dict[str, Any] = field(default_factory=dict)


def parameters_digest(network: nn.Module) -> str:
    """16 hex digits that stand for the values of all parameters, in whatever file they are stored."""
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def load_network(make: Callable[[], N], tensors: Mapping[str, Tensor]) -> N:
    """The network with these tensors; WeightsError unless they are its own, before it takes any memory."""
    with torch.device("meta"):
        expected = make()
    check_tensors(type(expected).__name__, tensors, expected.state_dict())
    network = make()
    network.load_state_dict(tensors)
    for name, value in network.state_dict().items():
        least, most = value.aminmax()
        smallest = 0 if name.endswith("running_var") else -LARGEST_WEIGHT
        if value.is_floating_point() and not (smallest <= least and most <= LARGEST_WEIGHT):
            raise WeightsError(f"{name} holds numbers that are not finite, or beyond what a training finds")
    return network


def length_of(tensors: Mapping[str, Tensor], name: str) -> int:
    """The first dimension of a tensor that must be there."""
    if name not in tensors or not tensors[name].shape or not tensors[name].shape[0]:
        raise WeightsError(f"it lacks {name}")
    return tensors[name].shape[0]


def check_tensors(owner: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises WeightsError unless names, shapes and types are those expected; floating point may be of any width."""
    check_names(owner, found, expected)
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise WeightsError(
                f"{owner} has {name} of shape {tuple(tensor.shape)}, the file one of {tuple(found[name].shape)}"
            )
        if found[name].dtype not in (FLOATS if tensor.is_floating_point() else {tensor.dtype}):
            raise WeightsError(f"{owner} has {name} in {tensor.dtype}, the file in {found[name].dtype}")


def check_names(owner: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Raises WeightsError unless both are the same names."""
    if missing := set(expected) - set(found):
        raise WeightsError(f"{owner} lacks {', '.join(sorted(missing))}")
    if unknown := set(found) - set(expected):
        raise WeightsError(f"{owner} has no {shorten.repr(sorted(unknown))}")


@contextmanager
def refused(path: Path | str, remedy: str) -> Iterator[None]:
    """Makes one WeightsError, which names the file and the remedy, of whatever is refused within."""
    try:
        yield
    except DiscopatchError as error:
        raise WeightsError(f"{path}: {error}; {remedy}") from None


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], *, kind: str, header: dict[str, Any]) -> None:
    """Writes tensors and a header that says what they are, atomically; `kind` is one of FORMATS."""
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    content = json.dumps({"format": FORMATS[kind], "kind": kind, "file_digest": UNSEALED, **header})
    load_json(content)  # what could not be read again is not written

    def write(partial: Path) -> None:
        save_file(contiguous, partial, {HEADER: content})
        check_size(partial, kind)
        seal(partial)

    write_atomically(path, write)


def read_safetensors(path: Path, *, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and tensors of one of our files, or a WeightsError that says what it is instead.

    The tensors are mapped from the file: they take memory when they are first used, so check their shapes before.
    """
    if not path.is_file():
        raise WeightsError(f"no {kind} at {path}: give the path of a file that `{WRITERS[kind]}` wrote")
    check_size(path, kind)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except Exception as error:  # whatever the library makes of a damaged file
        raise WeightsError(f"{path} cannot be read as safetensors ({error}): copy it again") from error
    if HEADER not in metadata:
        raise WeightsError(f"{path} is not a file of discopatch: give a file that `{WRITERS[kind]}` wrote")
    with refused(path, f"give a file that `{WRITERS[kind]}` wrote"):
        content = load_json(metadata[HEADER])
        header = read_fields(FileHeader, content, where="header", ignore_unknown=True)
    check_header(path, header, kind)
    return content, tensors


def check_size(path: Path, kind: str) -> None:
    """Raises WeightsError where a file of that kind, or its header, is larger than any that is read."""
    size = path.stat().st_size
    if size > MAX_BYTES[kind]:
        raise WeightsError(
            f"{path} has {size:,} bytes, and a {kind} has {MAX_BYTES[kind]:,} at most: "
            f"give a file that `{WRITERS[kind]}` wrote"
        )
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise WeightsError(f"{path} cannot be read as safetensors (a header of {length:,} bytes): copy it again")


def check_header(path: Path, header: FileHeader, kind: str) -> None:
    """Raises WeightsError unless the file is of that kind, of this version's format, and unchanged."""
    if header.kind != kind:
        raise WeightsError(f"{path} holds a {header.kind}, not a {kind}: give a file that `{WRITERS[kind]}` wrote")
    if header.format > FORMATS[kind]:
        raise WeightsError(
            f"{path} has format {header.format}, this discopatch reads {FORMATS[kind]}: update discopatch"
        )
    if header.format < FORMATS[kind]:
        raise WeightsError(
            f"{path} has format {header.format} of an earlier discopatch: write it again with `{WRITERS[kind]}`"
        )
    if header.file_digest is None and header.format > 1:
        raise WeightsError(f"{path} has no digest of itself: {WRITE_AGAIN.format(WRITERS[kind])}")
    if header.file_digest is not None and sealed_digest(path, header.file_digest) != header.file_digest:
        raise WeightsError(f"{path} is damaged, its digest is another: {WRITE_AGAIN.format(WRITERS[kind])}")
