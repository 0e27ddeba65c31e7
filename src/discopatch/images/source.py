"""Where images come from: files, folders, patterns, tar shards, PIL images, arrays, tensors, and mixtures."""

import glob
import os
import stat
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ImageError, NoImagesError, ParameterError
from discopatch.images.decode import rgb_from_array, rgb_from_bytes, rgb_from_image
from discopatch.images.files import (
    Readable,
    check_binary,
    check_bytes,
    is_readable,
    is_seekable,
    out_of_memory,
    read_file,
    read_object,
    read_start,
    unreadable,
)
from discopatch.images.formats import (
    IMAGE_SUFFIXES,
    OTHER_FORMATS,
    SIGNATURE_LENGTH,
    identify,
    is_archive,
    is_image_name,
    is_shard,
    suffix_of,
)
from discopatch.images.image import ONE_IMAGE, Limits, NamedImage, Refusal, RefusalReason
from discopatch.images.tar import Member, TarError, TarReader

if TYPE_CHECKING:
    import torch

Identity = tuple[int, int]  # of a folder: its device and number there
Encoded = bytes | bytearray | memoryview
Content = Path | bytes | Image.Image | NDArray[Any] | Exception

_MAX_VISITS = 100  # of one folder in a walk; with links that lead to each other there would be no end


@dataclass(frozen=True, slots=True)
class Item:
    """One image that is not decoded yet; an exception takes the place of one that could not be reached."""

    name: str
    content: Content

    @property
    def size(self) -> int:
        """Bytes of an encoded image that are in memory already."""
        return len(self.content) if isinstance(self.content, bytes) else 0

    def decode(self, limits: Limits, *, side: int | None = None) -> Image.Image:
        """The image in RGB, or ImageError; `side` as in `rgb_from_bytes`."""
        match self.content:
            case Path():
                suffix = suffix_of(self.name)
                if suffix in OTHER_FORMATS:  # known without reading all of it
                    identify(read_start(self.content, SIGNATURE_LENGTH), suffix)
                return rgb_from_bytes(read_file(self.content, limits), limits, suffix, side=side)
            case bytes():
                return rgb_from_bytes(self.content, limits, suffix_of(self.name), side=side)
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
        except ImageError as error:
            yield Item(str(self.path), error)
        except OSError as error:
            yield Item(str(self.path), unreadable(error))
        except TarError as error:
            detail = f"archive cut short or damaged ({error}): copy or pack it again; what came before was read"
            yield Item(str(self.path), ImageError(RefusalReason.TRUNCATED, detail))

    def _members(self, limits: Limits) -> Iterator[Item]:
        found = False
        with TarReader(self.path) as archive:
            for member in archive:
                if not member.is_file or member.name.rpartition("/")[2].startswith("."):
                    continue
                if is_image_name(member.name) or is_archive(member.name):
                    found = True
                    yield Item(f"{self.path}/{member.name}", _member_content(archive, member, limits))
        if not found:
            yield Item(str(self.path), ImageError(RefusalReason.MISSING, "no images in the archive: add some"))


def _member_content(archive: TarReader, member: Member, limits: Limits) -> bytes | ImageError:
    if is_archive(member.name):
        return ImageError(RefusalReason.UNSUPPORTED, "an archive inside an archive, which is not read: unpack it")
    if member.is_sparse:
        return ImageError(RefusalReason.UNSUPPORTED, "a member with holes: pack the archive without tar's --sparse")
    try:
        check_bytes(member.size, limits)
    except ImageError as error:
        return error
    try:
        return archive.read(member)
    except MemoryError:
        return out_of_memory(member.size)


def list_entries(source: object, limits: Limits) -> Iterator[Item | Shard]:
    """Every image and every shard of the source, in order; shards stay closed, file objects are read.

    A path or pattern without any image raises NoImagesError at once; in an iterable it is one refused entry.
    """
    if isinstance(source, str | os.PathLike):
        found = _from_path(os.fspath(source))
        first = next(found)
        match first:
            case Item(content=ImageError(reason=RefusalReason.MISSING) as error):
                raise NoImagesError(error.detail)
        return chain([first], found)
    if is_readable(source):
        check_binary(source)
    elif not isinstance(source, NamedImage | Iterable | Image.Image) and not _is_tensor(source):
        raise ParameterError(
            f"cannot read images from {type(source).__name__}: give a path, folder, pattern, tar shard, bytes, "
            "open file, PIL image, array, tensor, or an iterable of these"
        )
    return _from_anything(source, count(), limits)


def check_single(source: object) -> None:
    """ParameterError for a folder or an archive, where one image is to be explained; nothing is read."""
    if isinstance(source, str | os.PathLike) and (is_shard(os.fspath(source)) or _is_folder(Path(source))):
        raise ParameterError(f"{os.fspath(source)} is no image: {ONE_IMAGE}")


def held(source: object, limits: Limits) -> object:
    """The same images as a source that can be read twice."""
    if is_readable(source) and not is_seekable(source):
        return list(_from_anything(source, count(), limits))
    if isinstance(source, list | tuple) or (isinstance(source, Iterator) and not is_readable(source)):
        return [held(one, limits) for one in source]
    return source


def count_images(source: object) -> int | None:
    """How many images the source holds, as far as that is known without reading it: shards and iterators hide it."""
    if isinstance(source, str | os.PathLike):
        found = 0
        for entry in _from_path(os.fspath(source)):
            if isinstance(entry, Shard):
                return None
            found += 1
        return found
    if isinstance(source, np.ndarray) or _is_tensor(source):
        return len(source) if source.ndim == 4 else 1
    if isinstance(source, NamedImage | Refusal | Encoded | Image.Image | Item) or is_readable(source):
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


def _from_anything(source: object, numbers: "count[int]", limits: Limits) -> Iterator[Item | Shard]:
    if isinstance(source, str | os.PathLike):
        yield from _from_path(os.fspath(source))
    elif isinstance(source, NamedImage):
        yield Item(source.name, source.pixels)
    elif isinstance(source, Refusal):
        yield Item(source.name, ImageError(source.reason, source.detail))
    elif isinstance(source, Item):
        yield source
    elif isinstance(source, bytes | Image.Image):
        yield _unnamed(source, numbers)
    elif isinstance(source, bytearray | memoryview):
        yield _unnamed(_copied(source, limits), numbers)
    elif is_readable(source):
        yield _from_object(source, numbers, limits)
    elif isinstance(source, np.ndarray):
        yield from (_unnamed(array, numbers) for array in _arrays(source))
    elif _is_tensor(source):
        yield from (_unnamed(array, numbers) for array in _tensor_arrays(source))
    elif isinstance(source, Iterable):
        for one in source:
            yield from _from_anything(one, numbers, limits)
    else:
        detail = f"{type(source).__name__} is no image: give a path, PIL image, array or tensor"
        yield _unnamed(ImageError(RefusalReason.UNSUPPORTED, detail), numbers)


def _unnamed(content: Content, numbers: "count[int]") -> Item:
    return Item(f"image-{next(numbers):06d}", content)


def _copied(source: bytearray | memoryview, limits: Limits) -> bytes | ImageError:
    """The bytes as they are now, since a buffer may be filled again."""
    try:
        check_bytes(memoryview(source).nbytes, limits)
    except ImageError as error:
        return error
    return bytes(source)


def _from_object(source: Readable, numbers: "count[int]", limits: Limits) -> Item:
    """An open file, named after the file or the upload where it has a name."""
    content: bytes | ImageError
    try:
        content = read_object(source, limits)
    except ImageError as error:
        content = error
    for attribute in ("filename", "name"):
        name = getattr(source, attribute, None)
        if isinstance(name, str) and name:
            return Item(name, content)
    return _unnamed(content, numbers)


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
        found = _from_folder(Path(path)) if is_folder else iter([_from_file(Path(path))] if path else [])
    first = next(found, None)
    yield Item(path, ImageError(RefusalReason.MISSING, _nothing_at(path))) if first is None else first
    yield from found


def _from_file(path: Path) -> Item | Shard:
    if is_shard(path.name):
        return Shard(path)
    if is_archive(path.name):
        detail = "an archive of another compression, which is not read: pack it again as .tar or .tar.gz"
        return Item(str(path), ImageError(RefusalReason.UNSUPPORTED, detail))
    return Item(str(path), path)


def _from_folder(top: Path) -> Iterator[Item | Shard]:
    """The images and shards of a folder and all below it, by name; links are followed, but never in a circle."""
    visits: Counter[Identity] = Counter()
    opened: list[tuple[Identity, Iterator[Path]]] = []  # from the top down to where the walk is
    waiting: Path | None = top
    while waiting is not None or opened:
        if waiting is not None:
            try:
                identity, inside = _list_folder(waiting)
            except OSError as error:
                yield Item(str(waiting), unreadable(error))
            else:
                visits[identity] += 1
                if visits[identity] > _MAX_VISITS:
                    detail = "a folder that links lead to again and again: remove the links"
                    yield Item(str(waiting), ImageError(RefusalReason.UNREADABLE, detail))
                elif all(identity != above for above, _ in opened):
                    opened.append((identity, inside))
            waiting = None
        elif (path := next(opened[-1][1], None)) is None:
            opened.pop()
        elif _is_folder(path):
            waiting = path
        elif is_archive(path.name) or is_image_name(path.name):
            yield _from_file(path)


def _list_folder(folder: Path) -> tuple[Identity, Iterator[Path]]:
    """What the folder is, wherever it is found, and the paths of what is not hidden in it, by name."""
    status = folder.stat()
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208 - the names alone
    return (status.st_dev, status.st_ino), (folder / name for name in names)


def _from_pattern(pattern: str) -> Iterator[Item | Shard]:
    if not glob.has_magic(pattern) or "\0" in pattern:
        return
    segments = Path(pattern).parts
    if "**" in segments:
        yield from _from_deep_pattern(segments)
        return
    found = glob.glob(pattern)  # noqa: PTH207 - Path.glob knows no absolute patterns
    for name in sorted(found):
        path = Path(name)
        if (is_archive(path.name) or is_image_name(path.name)) and not _is_folder(path):
            yield _from_file(path)


def _from_deep_pattern(segments: tuple[str, ...]) -> Iterator[Item | Shard]:
    """What is found below the folder before the first wildcard; glob itself would follow links in circles."""
    fixed = next(place for place, segment in enumerate(segments) if glob.has_magic(segment))
    top = Path(*segments[:fixed])
    if _is_folder(top):
        found = {str(each.path) if isinstance(each, Shard) else each.name: each for each in _from_folder(top)}
        for name in sorted(found):
            if _matches(Path(name).parts[len(top.parts) :], segments[fixed:]):
                yield found[name]


def _matches(parts: Sequence[str], segments: Sequence[str]) -> bool:
    """Whether a path goes with a pattern; ** stands for any number of folders."""
    if not segments:
        return not parts
    if segments[0] == "**":
        return any(_matches(parts[place:], segments[1:]) for place in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], segments[0]) and _matches(parts[1:], segments[1:])


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # reading it will say why
        return False


def _nothing_at(path: str) -> str:
    if not path:
        return "an empty path: name a file or a folder, such as . for the current one"
    if _is_folder(Path(path)):
        suffixes = ", ".join(IMAGE_SUFFIXES)
        return f"no images in the folder {path} (searched for {suffixes} and tar shards): check the path"
    if glob.has_magic(path):
        return f"no image matches {path}: check the pattern; ** also searches folders"
    return f"no such file or folder: {path}: check the path"
