"""Where images come from: files, folders, patterns, shards, PIL images, arrays, tensors, and mixtures."""

import glob
import os
import stat
import sys
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.images.decode import unreadable
from discopatch.images.item import IMAGE_SUFFIXES, Content, Item
from discopatch.images.picture import ImageRefused, Limits, NoImagesError, Picture, Reason, Refusal
from discopatch.images.shard import SHARD_SUFFIXES, Shard

if TYPE_CHECKING:
    import torch


def entries(source: object) -> Iterator[Item | Shard]:
    """Every image and every shard of the source, in order; shards stay closed.

    A path or pattern without any image raises NoImagesError at once; in an iterable it is one refused entry.
    """
    numbers = count()
    if not isinstance(source, str | os.PathLike):
        if not _is_source(source):
            raise TypeError(
                f"cannot read images from {type(source).__name__}: give a path, folder, pattern, tar shard, "
                "PIL image, array, tensor, or an iterable of these"
            )
        return _of_anything(source, numbers)
    found = _of_path(os.fspath(source))
    first = next(found, None)
    if first is None:
        raise NoImagesError(_nothing_at(os.fspath(source)))
    return chain([first], found)


def images(found: Iterable[Item | Shard], limits: Limits) -> Generator[Item, None, None]:
    """Open the shards among the entries, one after the other."""
    for entry in found:
        if isinstance(entry, Shard):
            yield from entry.members(limits)
        else:
            yield entry


def _of_anything(source: object, numbers: "count[int]") -> Iterator[Item | Shard]:
    if isinstance(source, str | os.PathLike):
        yield from _of_entry(os.fspath(source))
    elif isinstance(source, Picture):
        yield Item(source.name, source.pixels)
    elif isinstance(source, Refusal):
        yield Item(source.name, ImageRefused(source.reason, source.detail))
    elif isinstance(source, bytes | Image.Image):
        yield _unnamed(source, numbers)
    elif isinstance(source, np.ndarray):
        yield from (_unnamed(array, numbers) for array in _arrays(source))
    elif _is_tensor(source):
        yield from (_unnamed(array, numbers) for array in _arrays_of_tensor(source))
    elif isinstance(source, Iterable):
        for one in source:
            yield from _of_anything(one, numbers)
    else:
        detail = f"{type(source).__name__} is no image: give a path, PIL image, array or tensor"
        yield _unnamed(ImageRefused(Reason.UNSUPPORTED, detail), numbers)


def _unnamed(content: Content, numbers: "count[int]") -> Item:
    return Item(f"image-{next(numbers):06d}", content)


def _is_source(source: object) -> bool:
    return isinstance(source, Picture | Iterable | Image.Image) or _is_tensor(source)


def _is_tensor(source: object) -> "TypeGuard[torch.Tensor]":
    """Without importing torch: who holds a tensor has imported it already."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _arrays(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """(H, W), (H, W, C) or each of (N, H, W, C); copies, since generators may refill one buffer."""
    for one in array if array.ndim == 4 else [array]:
        yield one.copy()


def _arrays_of_tensor(tensor: "torch.Tensor") -> Iterator[NDArray[Any]]:
    """(H, W), (C, H, W) or (N, C, H, W) as arrays with channels last."""
    for one in tensor.detach() if tensor.ndim == 4 else [tensor.detach()]:
        exact = one.float() if one.is_floating_point() else one  # numpy knows no bfloat16
        array = exact.cpu().numpy()
        yield from _arrays(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)


def _of_entry(path: str) -> Iterator[Item | Shard]:
    """A path inside an iterable: nothing there is one refusal, not the end of all."""
    found = _of_path(path)
    first = next(found, None)
    if first is None:
        yield Item(path, ImageRefused(Reason.MISSING, _nothing_at(path)))
    else:
        yield first
        yield from found


def _of_path(path: str) -> Iterator[Item | Shard]:
    try:
        is_folder = stat.S_ISDIR(Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        yield from _of_pattern(path)
    except OSError as error:
        yield Item(path, unreadable(error))
    else:
        yield from _of_folder(Path(path), frozenset()) if is_folder else [_of_file(Path(path))]


def _of_file(path: Path) -> Item | Shard:
    return Shard(path) if path.name.lower().endswith(SHARD_SUFFIXES) else Item(str(path), path)


def _of_folder(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Item]:
    """Images of a folder and all below it, by name; links are followed, but never in a circle."""
    try:
        status = folder.stat()
        with os.scandir(folder) as listing:
            inside = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        yield Item(str(folder), unreadable(error))
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    for entry in inside:
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _of_folder(path, above | {identity})
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            yield Item(str(path), path)


def _of_pattern(pattern: str) -> Iterator[Item | Shard]:
    if not glob.has_magic(pattern) or "\0" in pattern:
        return
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob knows no absolute patterns
    for name in sorted(found):
        path = Path(name)
        if path.name.lower().endswith((*SHARD_SUFFIXES, *IMAGE_SUFFIXES)) and not _is_folder(path):
            yield _of_file(path)


def _is_folder(path: Path | os.DirEntry[str]) -> bool:
    try:
        return path.is_dir()
    except OSError:  # reading it will tell why
        return False


def _nothing_at(path: str) -> str:
    if _is_folder(Path(path)):
        suffixes = ", ".join(IMAGE_SUFFIXES)
        return f"no images in the folder {path} (looked for {suffixes}): for tar shards give {path}/*.tar"
    if glob.has_magic(path):
        return f"no image matches {path}: check the pattern; ** also looks into folders"
    return f"no such file or folder: {path}: check the path"
