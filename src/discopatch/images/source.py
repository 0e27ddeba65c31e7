"""Sources of images, listed once: paths, patterns, URIs, lists of names, shards, images in memory, and mixtures."""

import glob
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import ImageError, MissingExtraError, NoImagesError, ParameterError, StoreError
from discopatch.images.formats import (
    IMAGE_SUFFIXES,
    LIST_SUFFIXES,
    is_archive,
    is_image_name,
    is_parquet,
    is_shard,
)
from discopatch.images.image import DEFAULT_LIMITS, Limits, NamedImage, Refusal, RefusalReason
from discopatch.images.items import (
    Content,
    Item,
    Place,
    SelectedShard,
    Shard,
    is_readable,
    open_shards,
    read_object,
    unreadable,
)
from discopatch.images.stores import StorePath, is_uri, parse, without_options
from discopatch.images.tables import ParquetShard, listed_names
from discopatch.images.tar import NOT_STREAMED, Progress, ShardIndex, TarShard, index_shards
from discopatch.utils import require

if TYPE_CHECKING:
    import torch

Entry: TypeAlias = Item | Shard
Encoded = bytes | bytearray | memoryview


class Source:
    """The images of a source in order, listed once; shards stay closed, and no image is read.

    count: number of images, or None where shards or an iterator hide it.
    """

    def __init__(self, parts: Sequence[object]) -> None:
        """`parts` are paths of local files as str, entries, objects in memory, and iterables of sources."""
        self._parts = parts
        others = [part for part in parts if not isinstance(part, str)]
        counts = [_count(part) for part in others]
        self.count = None if None in counts else len(parts) - len(others) + sum(filter(None, counts))

    def entries(self, limits: Limits = DEFAULT_LIMITS) -> Iterator[Entry]:
        """The images and the shards."""
        numbers = count()
        for part in self._parts:
            if isinstance(part, str):
                yield Item(part, Path(part))
            else:
                yield from _from_part(part, numbers, limits)

    def items(self, limits: Limits = DEFAULT_LIMITS) -> Generator[Item, None, None]:
        """The images, those of a shard in its place."""
        return open_shards(self.entries(limits), limits)

    def repeatable(self, limits: Limits = DEFAULT_LIMITS) -> "Source":
        """The same images as a source that can be read several times: iterators and open files are held in memory."""
        once = any(isinstance(part, Iterator) or is_readable(part) for part in self._parts)
        return Source(list(self.entries(limits))) if once else self

    def draw(self, most: int) -> "Source":
        """At most `most` images, evenly spread over the source and in its order.

        Members of tar shards and rows of tables are counted first, without reading the images. Of an iterator, whose
        length is unknown, these are the first `most` images.
        """
        if self.count is not None and self.count <= most:
            return self
        found = [part.count() if isinstance(part, Shard) else _count(part) for part in self._parts]
        if None in found:
            return Source([islice(self.items(), most)])
        counts = np.array(found, np.int64)
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if total <= most:
            return self
        places = np.arange(most) * total // most
        parts = np.searchsorted(ends, places, side="right")
        within = places - (ends - counts)[parts]  # the number of each image in its part
        drawn: list[object] = []
        for number, pairs in groupby(zip(parts.tolist(), within.tolist(), strict=True), key=itemgetter(0)):
            drawn += _select(self._parts[number], [place for _, place in pairs])
        return Source(drawn)


def list_source(source: object) -> Source:
    """The listing of a source: a path, folder, pattern, URI, shard, image in memory, or an iterable of these.

    A path or pattern without any image raises NoImagesError, and a store that cannot be reached StoreError; inside an
    iterable each is one refused entry. An iterator is not read.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str | os.PathLike):
        found = _list_path(os.fspath(source))
        if not found:
            raise NoImagesError(_nothing_at(os.fspath(source)))
        return Source(found)
    known = isinstance(source, NamedImage | Refusal | Item | Shard | Iterable | Image.Image)
    if not (known or _is_tensor(source) or is_readable(source)):
        raise ParameterError(
            f"cannot read images from {type(source).__name__}: give a path, folder, pattern, URI, shard, bytes, "
            "open file, PIL image, array, tensor, or an iterable of these"
        )
    return Source(list(_flat(source)))


def open_index(
    source: object, *, limits: Limits = DEFAULT_LIMITS, workers: int = 4, progress: Progress | None = None
) -> ShardIndex:
    """The index of the tar shards of `source`; their headers are read, but no image.

    ParameterError where the source holds anything else than tar shards, or compressed ones.
    """
    shards = []
    for entry in list_source(source).entries():
        if not isinstance(entry, TarShard):
            raise ParameterError(f"{entry.name} is no tar shard, and only those are streamed: {NOT_STREAMED}")
        shards.append(entry)
    return index_shards(shards, limits=limits, workers=workers, progress=progress)


# Parts of a source: paths are listed, sequences flattened, everything else stays as it is.


def _flat(source: object) -> Iterator[object]:
    if isinstance(source, Source):
        yield from source._parts
    elif isinstance(source, str | os.PathLike):
        yield from _list_inner(os.fspath(source))
    elif isinstance(source, Sequence) and not isinstance(source, Encoded):
        for one in source:
            yield from _flat(one)
    else:
        yield source


def _list_inner(path: str) -> list[str | Entry]:
    """The listing of a path inside an iterable, where a failure is a refusal."""
    try:
        if found := _list_path(path):
            return found
        error = ImageError(RefusalReason.MISSING, _nothing_at(path))
    except (StoreError, MissingExtraError, ParameterError) as failure:
        error = ImageError(RefusalReason.UNREADABLE, str(failure))
    return [Item(without_options(path), error)]


def _count(part: object) -> int | None:
    if isinstance(part, Shard) or _is_iterable(part):
        return None
    if isinstance(part, np.ndarray) or _is_tensor(part):
        return len(part) if part.ndim == 4 else 1
    return 1


def _is_iterable(part: object) -> bool:
    """Whether it holds sources, in a number that is not known."""
    kinds = str | Item | Shard | Encoded | NamedImage | Refusal | Image.Image | np.ndarray
    return isinstance(part, Iterable) and not isinstance(part, kinds) and not _is_tensor(part) and not is_readable(part)


def _select(part: Any, places: list[int]) -> list[object]:
    """Some images of a part."""
    if isinstance(part, Shard):
        return [SelectedShard(part, frozenset(places))]
    return [part] if _count(part) == 1 else [part[place] for place in places]


def _from_part(source: object, numbers: "count[int]", limits: Limits) -> Iterator[Entry]:
    if isinstance(source, Item | Shard):
        yield source
    elif isinstance(source, NamedImage):
        yield Item(source.name, source.pixels)
    elif isinstance(source, Refusal):
        yield Item(source.name, ImageError(source.reason, source.detail))
    elif isinstance(source, Encoded | Image.Image):
        kept = source if isinstance(source, bytes | Image.Image) else bytes(source)  # a buffer may be filled again
        yield _unnamed(kept, numbers)
    elif is_readable(source):
        name = next((text for key in ("filename", "name") if isinstance(text := getattr(source, key, None), str)), "")
        content = read_object(source, limits)
        yield Item(name, content) if name else _unnamed(content, numbers)
    elif isinstance(source, np.ndarray):
        yield from (_unnamed(array, numbers) for array in _arrays(source))
    elif _is_tensor(source):
        yield from (_unnamed(array, numbers) for array in _tensor_arrays(source))
    elif isinstance(source, Iterable):
        for one in source:
            for part in _flat(one):
                yield from [Item(part, Path(part))] if isinstance(part, str) else _from_part(part, numbers, limits)
    else:
        detail = f"{type(source).__name__} is no image: give a path, PIL image, array or tensor"
        yield _unnamed(ImageError(RefusalReason.UNSUPPORTED, detail), numbers)


def _unnamed(content: Content, numbers: "count[int]") -> Item:
    return Item(f"image-{next(numbers):06d}", content)


def _is_tensor(source: object) -> "TypeGuard[torch.Tensor]":
    """Whether it is a tensor; torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _arrays(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """(H, W), (H, W, C) or each of (N, H, W, C); copies, since generators may refill one buffer."""
    for one in array if array.ndim == 4 else [array]:
        yield one.copy()


def _tensor_arrays(tensor: "torch.Tensor") -> Iterator[NDArray[Any]]:
    """(H, W), (C, H, W) or each of (N, C, H, W), as arrays with channels last."""
    for one in tensor.detach() if tensor.ndim == 4 else [tensor.detach()]:
        exact = one.float() if one.is_floating_point() else one  # numpy has no bfloat16
        array = exact.cpu().numpy()
        yield from _arrays(np.moveaxis(array, 0, -1) if array.ndim == 3 else array)


# Paths: images and shards in the order of their names; a local image is its path as str, which takes least memory.


def _list_path(path: str) -> list[str | Entry]:
    """The images and shards at a path, a pattern or a URI; StoreError where a store cannot be reached."""
    if not is_uri(path):
        return _list_local(path)
    place = parse(path)
    if isinstance(place, Path):
        return _list_local(str(place))
    if (found := place.found()) is not None:
        return _list_named(found)
    table, column = _split_column(place.path)
    if column is not None and (found := StorePath(place.store, table).found()) is not None:
        return _list_named(found, column)
    if not glob.has_magic(place.path):
        return []
    segments = place.path.split("/")
    top = StorePath(place.store, "/".join(segments[: _first_wildcard(segments)]), is_folder=True)
    return _from_files(_matching(_walk_store(top), segments))


def _list_local(path: str) -> list[str | Entry]:
    if not path or "\0" in path:  # Path("") would be the current folder
        return []
    try:
        Path(path).stat()
        return _list_named(Path(path))
    except (FileNotFoundError, NotADirectoryError):
        table, column = _split_column(path)
        if column is not None and Path(table).exists():
            return _list_named(Path(table), column)
    except OSError as error:
        return [Item(path, unreadable(error))]
    if not glob.has_magic(path):
        return []
    segments = Path(path).parts
    if "**" in segments:
        top = Path(*segments[: _first_wildcard(segments)])
        files = _matching(_walk(top), segments) if top.is_dir() else iter(())
    else:
        files = (Path(name) for name in glob.iglob(path))  # noqa: PTH207 - Path.glob takes no absolute patterns
    return _from_files(file for file in files if not _is_folder(file))


def _split_column(path: str) -> tuple[str, str | None]:
    """A table, and the column that is named behind it: photos.parquet#thumbnail."""
    table, _, column = path.rpartition("#")
    return (table, column) if column and is_parquet(table) else (path, None)


def _list_named(place: Place, column: str | None = None) -> list[str | Entry]:
    """What a user names: a folder is searched, a list of names is read, a table must hold images."""
    if _is_folder(place):
        return _from_files(_walk_store(place) if isinstance(place, StorePath) else _walk(place))
    if isinstance(place, Path) and place.name.lower().endswith(LIST_SUFFIXES):
        if (names := listed_names(place)) is not None:
            return [each if isinstance(each, Item) else _from_file(each) for each in names]
    elif is_parquet(place.name):
        require("pyarrow", extra="parquet")
    return [_from_file(place, column)]


def _from_files(files: Iterable[Place | Item]) -> list[str | Entry]:
    """Images and shards among files, by name."""
    wanted = [file for file in files if isinstance(file, Item) or _is_wanted(file.name)]
    wanted.sort(key=lambda file: (Path(file.name) if isinstance(file, Item) else file).parts)
    return [file if isinstance(file, Item) else _from_file(file, found=True) for file in wanted]


def _from_file(place: Place, column: str | None = None, *, found: bool = False) -> str | Entry:
    """An image or a shard; a table that was `found` in a folder need not hold images."""
    if is_shard(place.name):
        return TarShard(place)
    if is_parquet(place.name):
        return ParquetShard(place, column, found)
    if is_archive(place.name):
        detail = "an archive of another compression, which is not read: pack it again as .tar or .tar.gz"
        return Item(str(place), ImageError(RefusalReason.UNSUPPORTED, detail))
    return Item(str(place), place) if isinstance(place, StorePath) else str(place)


def _is_wanted(name: str) -> bool:
    """Whether a file in a folder is read; tables are left out where pyarrow is not installed."""
    return is_archive(name) or is_image_name(name) or (is_parquet(name) and find_spec("pyarrow") is not None)


def _is_folder(place: Place) -> bool:
    try:
        return place.is_folder if isinstance(place, StorePath) else place.is_dir()
    except OSError:
        return False


def _walk(top: Path) -> Iterator[Path | Item]:
    """All files below a folder that are not hidden; links are followed, and each folder is read once."""
    seen: set[tuple[int, int]] = set()
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as scan:
                inside = sorted((each.name, _is_entered(each)) for each in scan if not each.name.startswith("."))
        except OSError as error:
            yield Item(str(folder), unreadable(error))
            continue
        waiting += [folder / name for name, is_folder in reversed(inside) if is_folder]
        yield from (folder / name for name, is_folder in inside if not is_folder)


def _is_entered(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a folder or a link to one; without a request to the system for a file."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)  # noqa: PTH112 - never raises


def _walk_store(top: StorePath) -> Iterator[StorePath]:
    depth = len(top.parts)
    return (place for place in top.below() if not any(part.startswith(".") for part in place.parts[depth:]))


def _matching(files: Iterable[Any], segments: Sequence[str]) -> Iterator[Any]:
    """The files whose paths match a pattern."""
    for file in files:
        if _matches(Path(file.name).parts if isinstance(file, Item) else file.parts, segments):
            yield file


def _first_wildcard(segments: Sequence[str]) -> int:
    return next(place for place, segment in enumerate(segments) if glob.has_magic(segment))


def _matches(parts: Sequence[str], segments: Sequence[str]) -> bool:
    """Whether a path matches a pattern; ** stands for any number of folders."""
    if not segments:
        return not parts
    if segments[0] == "**":
        return any(_matches(parts[place:], segments[1:]) for place in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], segments[0]) and _matches(parts[1:], segments[1:])


def _nothing_at(source: str) -> str:
    if not source:
        return "an empty path: name a file or a folder, such as . for the current one"
    searched = f"{', '.join(IMAGE_SUFFIXES)}, tar shards, and tables with discopatch[parquet]"
    return f"no images at {without_options(source)}: check the path or the pattern (searched for {searched})"
