"""Sources of images, listed once: paths, patterns, URIs, lists of names, shards, images in memory, and mixtures."""

import csv
import glob
import io
import os
import re
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from itertools import count, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discopatch.errors import DiscopatchError, ImageError, NoImagesError, ParameterError
from discopatch.images.decode import (
    IMAGE_SUFFIXES,
    SHARD_SUFFIXES,
    identify,
    is_archive,
    is_image_name,
    is_note,
    is_parquet,
)
from discopatch.images.image import DEFAULT_LIMITS, EXAMPLES, Limits, NamedImage, Refusal, RefusalReason
from discopatch.images.items import (
    Content,
    Item,
    Place,
    Reading,
    is_readable,
    read_bytes,
    read_object,
    starts_as_image,
    unreadable,
)
from discopatch.images.shards import MAX_NAME, Shard
from discopatch.images.stores import StorePath, parse, without_options
from discopatch.utils import counted, escaped, require

if TYPE_CHECKING:
    import torch

Entry: TypeAlias = Item | Shard
Listed: TypeAlias = str | Item | Shard  # a local image is its path as str, which takes least memory

PATH_COLUMNS = ("path", "file_name", "filename", "file", "name", "uri", "image")  # of CSV, the first that is there
_BRACES = re.compile(r"\{(?:(?P<first>\d+)\.\.(?P<last>\d+)|(?P<words>[^{}]*,[^{}]*))\}")
_OTHER_ARCHIVE = "an archive that is not read: unpack it, or pack it again as .tar or .tar.gz"
_LIST_LIMITS = Limits(max_bytes=2**30)  # a list of ten million names


class Source:
    """The images of a source in order, listed once; shards stay closed, and no image is read.

    count: number of images, or None where shards or an iterator hide it.
    reading: notes what is not read.
    """

    def __init__(self, parts: Sequence[object], reading: Reading | None = None, member: str | None = None) -> None:
        """`parts` are entries, paths of local images as str, and iterables of sources."""
        self._parts, self._member = parts, member
        self.reading = Reading() if reading is None else reading
        self.count = len(parts) if all(isinstance(part, str | Item) for part in parts) else None

    def entries(self, limits: Limits = DEFAULT_LIMITS) -> Iterator[Entry]:
        """The images and the shards."""
        named = sum(isinstance(part, Item) for part in self._parts)  # at most so many numbers are in use
        for entry in _entries(self._parts, count(named), self.reading, limits):
            if isinstance(entry, Shard):
                chosen = self._member if entry.column is None and not is_parquet(entry.place.name) else entry.column
                entry = replace(entry, column=chosen, reading=self.reading)
            yield entry

    def items(self, limits: Limits = DEFAULT_LIMITS) -> Generator[Item, None, None]:
        """The images, those of a shard in its place."""
        for entry in self.entries(limits):
            yield from entry.items(limits) if isinstance(entry, Shard) else (entry,)

    def repeatable(self, limits: Limits = DEFAULT_LIMITS) -> "Source":
        """The same images as a source that can be read several times: iterators and open files are held in memory."""
        once = any(
            isinstance(part, Iterator) or (isinstance(part, Item) and is_readable(part.content)) for part in self._parts
        )
        return Source(list(self.entries(limits))) if once else self

    def without(self, names: Collection[str], limits: Limits = DEFAULT_LIMITS) -> "Source":
        """The other images of a source without iterators; ParameterError if a name is that of no image.

        Control characters in names may be escaped. Shards are read once to find the names.
        """
        wanted = {escaped(name): name for name in ([names] if isinstance(names, str) else names)}
        seen, kept = set[str](), list[object]()
        for part, entry in zip(self._parts, self.entries(limits), strict=True):
            if isinstance(entry, Shard):
                numbers = count() if entry.numbers is None else sorted(entry.numbers)
                found = {number: escaped(item.name) for number, item in zip(numbers, entry.items(limits), strict=False)}
                kept.append(replace(entry, numbers=frozenset(each for each in found if found[each] not in wanted)))
                seen.update(found.values())
            else:
                seen.add(name := escaped(entry.name))
                kept += [part] * (name not in wanted)
        if missing := [name for name in wanted if name not in seen]:
            shown = ", ".join([*missing[:EXAMPLES], *["..."] * (len(missing) > EXAMPLES)])
            raise ParameterError(
                f"{counted(len(missing), 'name')} to leave out that no image has ({shown}): give images by the same "
                "path as for `discopatch audit`, or remove these names"
            )
        return Source(kept, self.reading, self._member)

    def total(self) -> int:
        """The number of images of a source without iterators; those of shards are counted."""
        return int(self._counts().sum()) if self.count is None else self.count

    def _counts(self) -> NDArray[np.int64]:
        return np.array([part.count() if isinstance(part, Shard) else 1 for part in self._parts], np.int64)

    def draw(self, most: int) -> "Source":
        """At most `most` images, evenly spread over the source and in its order.

        Members of tar shards and rows of tables are counted first, without reading the images. Of an iterator, whose
        length is unknown, these are the first `most` images.
        """
        if self.count is not None and self.count <= most:
            return self
        if not all(isinstance(part, Listed) for part in self._parts):
            return Source([islice(self.items(), most)])
        counts = self._counts()
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if total <= most:
            return self
        places = np.arange(most) * total // most
        parts = np.searchsorted(ends, places, side="right")
        within = places - (ends - counts)[parts]  # the number of each image in its part
        drawn: list[object] = []
        for number, pairs in groupby(zip(parts.tolist(), within.tolist(), strict=True), key=itemgetter(0)):
            part, numbers = self._parts[number], frozenset(place for _, place in pairs)
            drawn.append(replace(part, numbers=numbers) if isinstance(part, Shard) else part)
        return Source(drawn)


def list_source(source: object, *, member: str | None = None) -> Source:
    """The listing of a source: a path, folder, pattern, URI, shard, image in memory, or an iterable of these.

    A path or pattern without any image raises NoImagesError, and a store that cannot be reached StoreError; inside an
    iterable each is one refused entry. An iterator is not read. `member` names the images of tar shards that are read,
    such as "jpg" of 000.jpg and 000.seg.png.
    """
    if isinstance(source, Source) and member is None:
        return source
    reading = Reading()
    return Source(list(_list(source, count(), reading)), reading, member)


# Images in memory and iterables.


def _list(source: object, numbers: "count[int]", reading: Reading) -> Iterator[object]:
    """The parts of a source: paths are listed and sequences flattened; `numbers` name images without a name."""
    match source:
        case Source():
            yield from source._parts
        case str() | os.PathLike():
            yield from _list_path(os.fspath(source), reading)
        case Item() | Shard():
            yield source
        case NamedImage():
            yield Item(source.name, source.pixels, source.size, source.out_of_range)
        case Refusal():
            yield Item(source.name, ImageError(source.reason, source.detail))
        case bytes() | bytearray() | memoryview():
            yield Item(_number(numbers), bytes(source))  # a buffer may be filled again
        case Image.Image():
            yield Item(_number(numbers), source)
        case _ if _is_dataset(source):
            if isinstance(source, Iterable):
                yield map(_image_of, source)
            else:
                for index in range(len(source)):
                    yield Item(_number(numbers), partial(_read_sample, source, index))
        case np.ndarray():
            for array in source if source.ndim == 4 else [source]:
                yield Item(_number(numbers), array)
        case _ if _is_tensor(source):
            for one in source if source.ndim == 4 else [source]:
                yield Item(_number(numbers), _array_of(one))
        case _ if is_readable(source):
            names = (getattr(source, key, None) for key in ("filename", "name"))
            name = next((name for name in names if isinstance(name, str) and name), None)
            yield Item(_number(numbers) if name is None else name, source)
        case Sequence():
            for one in source:
                yield from _list_inner(one, numbers, reading)
        case Iterable():
            yield source
        case _:
            raise ParameterError(
                f"cannot read images from {type(source).__name__}: give a path, folder, pattern, URI, shard, bytes, "
                "open file, PIL image, array, tensor, dataset of torch, or an iterable of these"
            )


def _list_inner(source: object, numbers: "count[int]", reading: Reading) -> Iterator[object]:
    """The parts of a source inside an iterable, where a failure is a refusal."""
    try:
        yield from _list(source, numbers, reading)
    except DiscopatchError as error:
        yield _refused(os.fspath(source) if isinstance(source, str | os.PathLike) else _number(numbers), error)


def _refused(name: str, error: DiscopatchError) -> Item:
    reasons = {NoImagesError: RefusalReason.MISSING, ParameterError: RefusalReason.UNSUPPORTED}
    return Item(without_options(name), ImageError(reasons.get(type(error), RefusalReason.UNREADABLE), str(error)))


def _entries(parts: Iterable[object], numbers: "count[int]", reading: Reading, limits: Limits) -> Iterator[Entry]:
    for part in parts:
        if isinstance(part, str):
            yield Item(part, Path(part))
        elif isinstance(part, Item) and is_readable(part.content):
            yield Item(part.name, read_object(part.content, limits))
        elif isinstance(part, Item) and isinstance(part.content, partial):
            yield Item(part.name, part.content(reading, limits))  # here, as datasets need not be safe for threads
        elif isinstance(part, Entry):
            yield part
        else:
            assert isinstance(part, Iterable)
            for one in part:
                copied = one.copy() if isinstance(one, np.ndarray) else one  # generators may refill one buffer
                yield from _entries(_list_inner(copied, numbers, reading), numbers, reading, limits)


def _read_sample(dataset: Any, index: int, reading: Reading, limits: Limits) -> Content:
    """The image at that place of a dataset of torch, or why there is none."""
    try:
        sample = _list_inner(_image_of(dataset[index]), count(), reading)
        found = [*Source([sample], reading).items(limits)]
    except Exception as error:  # anything that code of a user raises
        return ImageError(RefusalReason.UNREADABLE, f"the dataset raises {type(error).__name__}: {error}")
    if len(found) != 1:
        return ImageError(RefusalReason.UNSUPPORTED, f"the dataset gives {len(found)} images in place of one")
    return found[0].content


def _image_of(sample: Any) -> Any:
    """The image of (image, label), or the sample itself."""
    return sample[0] if isinstance(sample, tuple | list) and sample else sample


def _is_dataset(source: object) -> "TypeGuard[Any]":
    """Whether it is a dataset of torch with a length or an iterator; torch is not imported for this."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(source, data.Dataset) and isinstance(source, Sized | Iterable)


def _number(numbers: "count[int]") -> str:
    return f"image-{next(numbers):06d}"


def _is_tensor(source: object) -> "TypeGuard[torch.Tensor]":
    """Whether it is a tensor; torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _array_of(tensor: "torch.Tensor") -> NDArray[Any]:
    """(H, W) or (C, H, W) as an array with channels last."""
    exact = tensor.detach().float() if tensor.is_floating_point() else tensor  # numpy has no bfloat16
    array = exact.cpu().numpy()
    return np.moveaxis(array, 0, -1) if array.ndim == 3 else array


# Paths.


def _list_path(path: str, reading: Reading) -> list[Listed]:
    """The images and shards at a path, a pattern or a URI; NoImagesError where there are none."""
    if not path:  # Path("") would be the current folder
        raise NoImagesError("an empty path: name a file or a folder, such as . for the current one")
    found = [] if "\0" in path else _list_place(parse(path), reading)
    if not found:
        searched = f"{', '.join(IMAGE_SUFFIXES)}, tar shards, and tables with discopatch[parquet]"
        raise NoImagesError(
            f"no images at {without_options(path)}: check the path or the pattern (searched for {searched})"
        )
    return found


def _list_place(place: Place, reading: Reading) -> list[Listed]:
    text = place.path if isinstance(place, StorePath) else str(place)
    table, _, column = text.rpartition("#")  # a shard, and what is named behind it: photos.parquet#thumbnail
    try:
        if (found := _find(place, text)) is not None:
            return _list_named(found, reading)
        if column and _is_shard(table) and (found := _find(place, table)) is not None:
            return _list_named(found, reading, column)
    except OSError as error:
        if isinstance(error, DiscopatchError):
            raise
        return [Item(str(place), unreadable(error, place))]
    if (braces := _BRACES.search(text)) is not None:
        return [entry for each in _expand(text, braces) for entry in _list_braced(place, each, reading)]
    return _from_files(_matching(place), reading) if glob.has_magic(text) else []


def _expand(text: str, braces: re.Match[str]) -> list[str]:
    """The paths that shard-{000..099}.tar or {train,test} stand for."""
    first, last = braces["first"], braces["last"]
    inner = (
        braces["words"].split(",")
        if first is None
        else [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    )
    return [f"{text[: braces.start()]}{each}{text[braces.end() :]}" for each in inner]


def _list_braced(place: Place, path: str, reading: Reading) -> list[Listed]:
    found = _list_place(replace(place, path=path) if isinstance(place, StorePath) else Path(path), reading)
    if not found:
        raise NoImagesError(f"no images at {path}, of a pattern with braces: check the numbers and the names")
    return found


def _is_shard(name: str) -> bool:
    return name.lower().endswith(SHARD_SUFFIXES) or is_parquet(name)


def _find(place: Place, path: str) -> Place | None:
    """The place at another path of the same store or disk, if it is there."""
    if isinstance(place, StorePath):
        return replace(place, path=path).found()
    with suppress(FileNotFoundError, NotADirectoryError):
        Path(path).stat()
        return Path(path)
    return None


def _list_named(place: Place, reading: Reading, column: str | None = None) -> list[Listed]:
    """What a user names: a folder is searched, a list of names is read, a table must hold images."""
    if place.is_folder if isinstance(place, StorePath) else place.is_dir():
        return _from_files(_walk(place), reading)
    if isinstance(place, Path) and place.suffix.lower() in (".txt", ".csv"):
        if (names := _read_list(place)) is not None:
            return [_from_name(name, place.parent) for name in names]
    elif is_parquet(place.name):
        require("pyarrow", extra="parquet")
    elif is_archive(place.name) and not _is_shard(place.name):
        raise ParameterError(f"{place} is {_OTHER_ARCHIVE}")
    return [_from_file(place, column)]


def _read_list(path: Path) -> list[str] | None:
    """The names in a text or CSV file; None for an image under the name of a list.

    Of a text file, empty lines and lines that begin with # are left out: a file of such a name is written as ./#1.jpg.
    """
    try:
        data = read_bytes(path, _LIST_LIMITS)
        identify(data)
        return None
    except ImageError as error:
        if error.reason is RefusalReason.EMPTY:
            return []
        if error.reason is not RefusalReason.NOT_AN_IMAGE:
            raise NoImagesError(f"{path}: {error}") from None
    text = data.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    if path.suffix.lower() != ".csv":
        return [line for line in text.replace("\r\n", "\n").split("\n") if line and not line.startswith("#")]
    rows = csv.DictReader(io.StringIO(text, newline=""))
    column = next((name for name in PATH_COLUMNS if name in (rows.fieldnames or ())), None)
    if column is None:
        raise ParameterError(f"{path} has no column of paths: name it {PATH_COLUMNS[0]}")
    return [row[column] for row in rows if row[column]]


def _from_name(name: str, folder: Path) -> Listed:
    """The image or shard that a list names; relative names begin at the folder of the list."""
    try:
        if "\0" in name or len(name) > MAX_NAME:
            raise NoImagesError("no name of a file: write one path or URI a line")
        place = parse(name)
        return _from_file(place if isinstance(place, StorePath) else folder / place)
    except DiscopatchError as error:
        return _refused(name, error)


def _from_files(files: Iterable[Place | Item], reading: Reading) -> list[Listed]:
    """Images and shards among files, by name; tables are left out where pyarrow is not installed.

    Files of other suffixes are images if their first bytes are, and else noted as passed over.
    """
    tables, wanted = find_spec("pyarrow") is not None, list[str | StorePath | Item]()  # a Path takes most memory
    for file in files:
        name = file.name
        is_wanted = isinstance(file, Item) or is_image_name(name) or is_archive(name) or (tables and is_parquet(name))
        if is_wanted or (not is_note(name) and not isinstance(file, Item) and starts_as_image(file)):
            wanted.append(str(file) if isinstance(file, Path) else file)
        elif not is_note(name):
            reading.pass_over(str(file))
    wanted.sort(key=_in_order)
    places = (Path(each) if isinstance(each, str) else each for each in wanted)
    return [each if isinstance(each, Item) else _from_file(each, found=True) for each in places]


def _in_order(file: str | StorePath | Item) -> str:
    """The name, so that a folder sorts before all files whose names begin with its own."""
    if isinstance(file, StorePath):
        return file.path.replace("/", "\0")
    return (file.name if isinstance(file, Item) else file).replace(os.sep, "\0")


def _from_file(place: Place, column: str | None = None, *, found: bool = False) -> Listed:
    """An image or a shard; a table that was `found` in a folder need not hold images."""
    if _is_shard(place.name):
        return Shard(place, column, found)
    if is_archive(place.name):
        return Item(str(place), ImageError(RefusalReason.UNSUPPORTED, _OTHER_ARCHIVE))
    return Item(str(place), place) if isinstance(place, StorePath) else str(place)


def _walk(top: Place) -> Iterator[Place | Item]:
    """All files below a folder that are not hidden; links are followed, and each folder is read once."""
    if isinstance(top, StorePath):
        depth = len(top.parts)
        yield from (file for file in top.below() if not any(part.startswith(".") for part in file.parts[depth:]))
        return
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
            yield Item(str(folder), unreadable(error, folder))
            continue
        waiting += [folder / name for name, is_folder in reversed(inside) if is_folder]
        yield from (folder / name for name, is_folder in inside if not is_folder)


def _is_entered(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a folder or a link to one; without a request to the system for a file."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir(follow_symlinks=False)  # noqa: PTH112 - never raises


def _matching(pattern: Place) -> Iterator[Place | Item]:
    """The files whose paths match a pattern."""
    parts = pattern.parts
    if isinstance(pattern, Path) and "**" not in parts:
        names = glob.iglob(str(pattern))  # noqa: PTH207 - Path.glob takes no absolute patterns
        yield from (Path(name) for name in names if not os.path.isdir(name))  # noqa: PTH112 - never raises
        return
    fixed = parts[: next(place for place, part in enumerate(parts) if glob.has_magic(part))]
    top = Path(*fixed) if isinstance(pattern, Path) else replace(pattern, path="/".join(fixed))
    if isinstance(top, StorePath) or top.is_dir():
        yield from (file for file in _walk(top) if isinstance(file, Item) or _matches(file.parts, parts))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern; ** stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[place:], pattern[1:]) for place in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
