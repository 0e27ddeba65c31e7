"""Conversion of checkpoints of the paper's authors: their tensors under the names of this package."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from discopatch.errors import WeightsError
from discopatch.images import PixelRange, Transform
from discopatch.model.config import Architecture
from discopatch.model.layers import BATCHNORM_BUFFERS
from discopatch.model.weights import MAX_BYTES, Weights, refused
from discopatch.schema import shorten
from discopatch.utils import file_digest

TheirNormalisation = Literal["batch", "group"]

GROUPS = 32  # of their GroupNorm
MAX_PICKLE_BYTES = 2**20  # of names and shapes; those of their checkpoints take a few thousand
GIVE_THEIRS = "give a checkpoint of the authors' discriminator, such as Discriminator_imagenet.pt"
PARTS = ((0, "conv"), (1, "norm"))
PREFIXES = ("module.", "discriminator.")  # of a network in parallel, and of one inside the whole model
SPELLING = re.compile(r"(encoder\.\d+\.1\.)(gamma|beta)")
UNUSED = re.compile(rf"fc\.(weight|bias)|vae\..*|encoder\.\d+\.1\.({'|'.join(BATCHNORM_BUFFERS)})")


class Converted(NamedTuple):
    """Weights, and the names of tensors of the checkpoint that are not used."""

    weights: Weights
    dropped: tuple[str, ...]


def convert_checkpoint(path: Path | str, *, normalisation: TheirNormalisation, pixels: PixelRange) -> Converted:
    """Weights of a file that the authors' code saved; the file does not contain the two options.

    normalisation: `batch` for their BatchNorm, which scores as PatchNorm does, or `group` for their GroupNorm.
    pixels: the range that the network was trained on, `unit` for [0, 1] or `symmetric` for [-1, 1].
    The transform is that of their training images: the centre, by a Lanczos filter.
    """
    path = Path(path)
    with refused(path, GIVE_THEIRS):
        state = read_state(path)
        tensors, dropped = rename(state)
        architecture = read_architecture(tensors, normalisation)
        transform = Transform(resample="lanczos", pixels=pixels)
        origin = {"converted": {"sha256": file_digest(path), "normalisation": normalisation, "pixels": pixels}}
        return Converted(Weights.from_tensors(tensors, architecture, transform, origin), dropped)


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a file of `torch.save`, without running its code or taking memory beyond its size."""
    if not path.is_file():
        raise WeightsError("there is no such file")
    if (size := path.stat().st_size) > MAX_BYTES["discriminator"]:
        raise WeightsError(f"it has {size:,} bytes, and a discriminator has {MAX_BYTES['discriminator']:,} at most")
    try:
        check_archive(path)
        # Mapped tensors cannot reach beyond the file, whatever sizes it claims.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except WeightsError:
        raise
    except Exception as error:  # torch raises errors of several kinds for a damaged or hostile file
        reason = str(error).partition("\n")[0]
        raise WeightsError(f"it cannot be read as tensors alone ({type(error).__name__}: {reason})") from None
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise WeightsError("it holds no tensors by name")
    if others := [name for name, value in loaded.items() if value.layout != torch.strided or value.is_quantized]:
        raise WeightsError(f"{shorten.repr(others)} are sparse or quantized")
    return dict(loaded)


def check_archive(path: Path) -> None:
    """Raises WeightsError unless the file is an archive of torch with uncompressed parts."""
    if not zipfile.is_zipfile(path):
        raise WeightsError("it is no archive of `torch.save`, as torch 1.6 and later write it")
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size for part in parts):
        raise WeightsError("parts of it are compressed, which torch never does")
    if any(part.file_size > MAX_PICKLE_BYTES for part in parts if part.filename.endswith(".pkl")):
        raise WeightsError(f"its names and shapes take more than {MAX_PICKLE_BYTES:,} bytes")


def rename(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Their tensors under the names of this package, and the unused names: `fc` and running statistics."""
    found: dict[str, Tensor] = {}
    dropped = []
    for given, value in state.items():
        name = plain_name(given)
        if UNUSED.fullmatch(name):
            dropped.append(given)
        elif name in found:
            raise WeightsError(f"it has {name} twice, once as {given}")
        else:
            found[name] = value
    blocks = next(number for number in count() if f"encoder.{number}.0.weight" not in found)
    names = dict(name_pairs(max(blocks, 1)))
    if missing := names.keys() - found.keys():
        raise WeightsError(f"it lacks {', '.join(sorted(missing))}")
    if unknown := found.keys() - names.keys():
        raise WeightsError(f"it has {shorten.repr(sorted(unknown))}, which their discriminator has not")
    return {ours: found[theirs] for theirs, ours in names.items()}, tuple(dropped)


def plain_name(name: str) -> str:
    """module.encoder.2.1.gamma -> encoder.2.1.weight: without prefixes, in one spelling."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return SPELLING.sub(lambda found: found[1] + {"gamma": "weight", "beta": "bias"}[found[2]], name)


def name_pairs(blocks: int) -> Iterator[tuple[str, str]]:
    """Their names and those of this package; a layer without tensors flattens between blocks and linear layer."""
    parts = {
        f"encoder.{number}.{place}": f"blocks.{number}.{part}" for number in range(blocks) for place, part in PARTS
    }
    for theirs, ours in (*parts.items(), (f"encoder.{blocks + 1}", "head")):
        yield from ((f"{theirs}.{name}", f"{ours}.{name}") for name in ("weight", "bias"))


def read_architecture(tensors: Mapping[str, Tensor], normalisation: TheirNormalisation) -> Architecture:
    """Architecture with tensors of these shapes, as far as some of them show."""
    kernels = [value for name, value in tensors.items() if name.endswith("conv.weight")]
    hidden = tuple(kernel.shape[0] if kernel.ndim == 4 else 0 for kernel in kernels)
    head = tensors["head.weight"]
    flat = head.shape[1] if head.ndim == 2 else 0
    cells = round((flat / max(hidden[-1], 1)) ** 0.5)
    if not cells or cells**2 * hidden[-1] != flat:
        raise WeightsError(
            f"its last layer takes {flat:,} numbers, which is no square of {hidden[-1]:,} channels of the layer before"
        )
    if normalisation == "group" and (odd := [width for width in hidden if width % GROUPS]):
        raise WeightsError(f"{odd} channels do not divide into their {GROUPS} groups: its normalisation is `batch`")
    return Architecture(
        patch_size=cells * 2 ** len(hidden),
        hidden=hidden,
        latent=hidden[-1],  # as in the paper; a discriminator has no latent
        normalisation="patch" if normalisation == "batch" else "group",
    )
