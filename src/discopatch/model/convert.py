"""Conversion of checkpoints of the paper's authors: their tensors under the names of this package."""

import re
import zipfile
from collections.abc import Mapping
from math import isqrt, prod
from pathlib import Path
from typing import Literal

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
UNUSED = re.compile(rf"fc\.(weight|bias)|encoder\.\d+\.1\.({'|'.join(BATCHNORM_BUFFERS)})")
RENAMED = {
    r"encoder\.(\d+)\.0\.(weight|bias)": r"blocks.\1.conv.\2",
    r"encoder\.(\d+)\.1\.(weight|bias)": r"blocks.\1.norm.\2",
    r"encoder\.\d+\.(weight|bias)": r"head.\1",
}


def convert_checkpoint(
    path: Path | str, *, normalisation: TheirNormalisation, pixels: PixelRange
) -> tuple[Weights, tuple[str, ...]]:
    """Weights of a file that the authors' code saved, and the names of its tensors that are not used.

    normalisation: `batch` for their BatchNorm, which scores as PatchNorm does, or `group` for their GroupNorm.
    pixels: the range that the network was trained on, `unit` for [0, 1] or `symmetric` for [-1, 1].
    The file contains neither. The transform is that of their training images: the centre, by a Lanczos filter.
    """
    path = Path(path)
    with refused(path, GIVE_THEIRS):
        tensors, dropped = rename(read_state(path))
        architecture = read_architecture(tensors, normalisation)
        transform = Transform(resample="lanczos", pixels=pixels)
        origin = {"converted": {"sha256": file_digest(path), "normalisation": normalisation, "pixels": pixels}}
        return Weights.from_tensors(tensors, architecture, transform, origin), dropped


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
    dropped = tuple(name for name in state if UNUSED.fullmatch(name))
    found = {}
    for given in (each for each in state if each not in dropped):
        name = given
        for theirs, ours in RENAMED.items():
            name = re.sub(rf"{theirs}\Z", ours, name)
        found[name] = state[given]
    return found, dropped


def read_architecture(tensors: Mapping[str, Tensor], normalisation: TheirNormalisation) -> Architecture:
    """Architecture with tensors of these shapes, as far as some of them show."""
    hidden: list[int] = []
    while (kernel := tensors.get(f"blocks.{len(hidden)}.conv.weight")) is not None:
        hidden.append(prod(kernel.shape[:1]))
    head = tensors.get("head.weight")
    if not hidden or head is None:
        raise WeightsError("it lacks encoder.0.0.weight, or the linear layer after its convolutions")
    flat = prod(head.shape[1:])
    cells = isqrt(flat // max(hidden[-1], 1))
    if not cells or cells**2 * hidden[-1] != flat:
        raise WeightsError(
            f"its last layer takes {flat:,} numbers, which is no square of {hidden[-1]:,} channels of the layer before"
        )
    if normalisation == "group" and (odd := [width for width in hidden if width % GROUPS]):
        raise WeightsError(f"{odd} channels do not divide into their {GROUPS} groups: its normalisation is `batch`")
    return Architecture(
        patch_size=cells * 2 ** len(hidden),
        hidden=tuple(hidden),
        latent=hidden[-1],  # as in the paper; a discriminator has no latent
        normalisation="patch" if normalisation == "batch" else "group",
    )
