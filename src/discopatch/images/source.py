"""Where images come from: files, folders, patterns, tar shards, PIL images, arrays, tensors, and mixtures."""

import glob
import os
import stat
import sys
import tarfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ImageError, NoImagesError, ParameterError
from discopatch.images.decode import check_bytes, read_file, rgb_from_array, rgb_from_bytes, rgb_from_image, unreadable
from discopatch.images.image import Limits, NamedImage, Refusal, RefusalReason

if TYPE_CHECKING:
    import torch

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif")
SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz")

Content = Path | bytes | Image.Image | NDArray[Any] | Exception


@dataclass(frozen=True, slots=True)
class Item:
    """One image that is not decoded yet; an exception takes the place of one that could not be reached."""

    name: str
    content: Content

    def decode(self, limits: Limits) -> Image.Image:
        """The image in RGB, or ImageError."""
        match self.content:
            case Path():
                return rgb_from_bytes(read_file(self.content, limits), limits)
            case bytes():
                return rgb_from_bytes(self.content, limits)
            case Image.Image():
                return rgb_from_image(self.content, limits)
            case np.ndarray():
                return rgb_from_array(self.content, limits)
            case _:
                raise self.content


@dataclass(frozen=True, slots=True)
class Shard:
    """A tar archive of images, the layout of WebDataset, read as a stream."""

    path: Path

    def items(self, limits: Limits) -> Iterator[Item]:
        """The images of the archive; nothing is extracted, so a member's path is only a name.

        Where the archive is cut short or damaged it is refused; the images before that place stay.
        """
        try:
            yield from self._members(limits)
        except FileNotFoundError:
            yield self._refused(RefusalReason.MISSING, "no such archive: check the path")
        except OSError as error:
            yield Item(str(self.path), unreadable(error))
        except Exception as error:  # compressions and headers break with many kinds of exception
            detail = f"archive cut short or damaged ({error}): copy it again; what came before was read"
            yield self._refused(RefusalReason.TRUNCATED, detail)

    def _members(self, limits: Limits) -> Iterator[Item]:
        found = False
        with tarfile.open(self.path, "r|*", tarinfo=_Header) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # or tarfile remembers every member
                path = Path(member.name)
                if member.isfile() and path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith("."):
                    found = True
                    yield Item(f"{self.path}/{member.name}", _member_content(archive, member, limits))
        if not found:
            yield self._refused(RefusalReason.MISSING, "no images in the archive: add some")

    def _refused(self, reason: RefusalReason, detail: str) -> Item:
        return Item(str(self.path), ImageError(reason, detail))


class _Header(tarfile.TarInfo):
    """Takes only the end mark for the end of an archive; tarfile itself takes a damaged header for it too."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # missing from typeshed
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no end mark: {error}") from error


def _member_content(archive: tarfile.TarFile, member: tarfile.TarInfo, limits: Limits) -> bytes | ImageError:
    try:
        check_bytes(member.size, limits)
    except ImageError as error:
        return error
    stream = archive.extractfile(member)
    return stream.read() if stream else b""


def list_entries(source: object) -> Iterator[Item | Shard]:
    """Every image and every shard of the source, in order; shards stay closed.

    A path or pattern without any image raises NoImagesError at once; in an iterable it is one refused entry.
    """
    if isinstance(source, str | os.PathLike):
        found = _from_path(os.fspath(source))
        first = next(found)
        match first:
            case Item(content=ImageError(reason=RefusalReason.MISSING) as error):
                raise NoImagesError(error.detail)
        return chain([first], found)
    if not isinstance(source, NamedImage | Iterable | Image.Image) and not _is_tensor(source):
        raise ParameterError(
            f"cannot read images from {type(source).__name__}: give a path, folder, pattern, tar shard, "
            "PIL image, array, tensor, or an iterable of these"
        )
    return _from_anything(source, count())


def count_images(source: object) -> int | None:
    """How many images the source holds, as far as that is known without reading it: shards and iterators hide it."""
    if isinstance(source, str | os.PathLike):
        entries = list(_from_path(os.fspath(source)))
        return None if any(isinstance(entry, Shard) for entry in entries) else len(entries)
    if isinstance(source, np.ndarray) or _is_tensor(source):
        return len(source) if source.ndim == 4 else 1
    if isinstance(source, NamedImage | Refusal | bytes | Image.Image):
        return 1
    if isinstance(source, Sequence):
        counts = [count_images(one) for one in source]
        return None if None in counts else sum(filter(None, counts))
    return None


def open_shards(entries: Iterable[Item | Shard], limits: Limits) -> Generator[Item, None, None]:
    """The images of the entries, those of a shard in its place."""
    for entry in entries:
        if isinstance(entry, Shard):
            yield from entry.items(limits)
        else:
            yield entry


def _from_anything(source: object, numbers: "count[int]") -> Iterator[Item | Shard]:
    if isinstance(source, str | os.PathLike):
        yield from _from_path(os.fspath(source))
    elif isinstance(source, NamedImage):
        yield Item(source.name, source.pixels)
    elif isinstance(source, Refusal):
        yield Item(source.name, ImageError(source.reason, source.detail))
    elif isinstance(source, bytes | Image.Image):
        yield _unnamed(source, numbers)
    elif isinstance(source, np.ndarray):
        yield from (_unnamed(array, numbers) for array in _arrays(source))
    elif _is_tensor(source):
        yield from (_unnamed(array, numbers) for array in _tensor_arrays(source))
    elif isinstance(source, Iterable):
        for one in source:
            yield from _from_anything(one, numbers)
    else:
        detail = f"{type(source).__name__} is no image: give a path, PIL image, array or tensor"
        yield _unnamed(ImageError(RefusalReason.UNSUPPORTED, detail), numbers)


def _unnamed(content: Content, numbers: "count[int]") -> Item:
    return Item(f"image-{next(numbers):06d}", content)


def _is_tensor(source: object) -> "TypeGuard[torch.Tensor]":
    """Without importing torch: who holds a tensor has imported it already."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _arrays(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """(H, W), (H, W, C) or each of (N, H, W, C); copies, since generators may refill one buffer."""
    for one in array if array.ndim == 4 else [array]:
        yield one.copy()


def _tensor_arrays(tensor: "torch.Tensor") -> Iterator[NDArray[Any]]:
    """(H, W), (C, H, W) or each of (N, C, H, W), as arrays with channels last."""
    for one in tensor.detach() if tensor.ndim == 4 else [tensor.detach()]:
        exact = one.float() if one.is_floating_point() else one  # numpy knows no bfloat16
        array = exact.cpu().numpy()
        yield from _arrays(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)


def _from_path(path: str) -> Iterator[Item | Shard]:
    """At least one entry: where there is no image it is a refusal with the reason MISSING."""
    found: Iterator[Item | Shard]
    try:
        is_folder = stat.S_ISDIR(Path(path).stat().st_mode) if path else False  # Path("") is the current folder
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        found = _from_pattern(path)
    except OSError as error:
        found = iter([Item(path, unreadable(error))])
    else:
        found = _from_folder(Path(path), frozenset()) if is_folder else iter([_from_file(Path(path))] if path else [])
    first = next(found, None)
    yield Item(path, ImageError(RefusalReason.MISSING, _nothing_at(path))) if first is None else first
    yield from found


def _from_file(path: Path) -> Item | Shard:
    return Shard(path) if path.name.lower().endswith(SHARD_SUFFIXES) else Item(str(path), path)


def _from_folder(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Item]:
    """The images of a folder and all below it, by name; links are followed, but never in a circle."""
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
            yield from _from_folder(path, above | {identity})
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            yield Item(str(path), path)


def _from_pattern(pattern: str) -> Iterator[Item | Shard]:
    if not glob.has_magic(pattern) or "\0" in pattern:
        return
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - Path.glob knows no absolute patterns
    for name in sorted(found):
        path = Path(name)
        if path.name.lower().endswith((*SHARD_SUFFIXES, *IMAGE_SUFFIXES)) and not _is_folder(path):
            yield _from_file(path)


def _is_folder(path: Path | os.DirEntry[str]) -> bool:
    try:
        return path.is_dir()
    except OSError:  # reading it will say why
        return False


def _nothing_at(path: str) -> str:
    if not path:
        return "an empty path: name a file or a folder, such as . for the current one"
    if _is_folder(Path(path)):
        suffixes = ", ".join(IMAGE_SUFFIXES)
        return f"no images in the folder {path} (searched for {suffixes}): for tar shards give {path}/*.tar"
    if glob.has_magic(path):
        return f"no image matches {path}: check the pattern; ** also searches folders"
    return f"no such file or folder: {path}: check the path"
