"""What is at a path, a pattern or a URI: images and shards, in the order of their names, none of them opened."""

import glob
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from discopatch.errors import ImageError, StoreError
from discopatch.images.files import unreadable
from discopatch.images.formats import (
    IMAGE_SUFFIXES,
    LANCE_SUFFIX,
    LIST_SUFFIX,
    is_archive,
    is_image_name,
    is_parquet,
    is_shard,
    is_table,
)
from discopatch.images.huggingface import DICT_FILE, INFO_FILE, STATE_FILE, saved_dataset
from discopatch.images.image import DEFAULT_LIMITS, RefusalReason
from discopatch.images.items import Item, Place, Shard
from discopatch.images.lance_tables import lance_shards
from discopatch.images.name_lists import is_name_list, listed_names
from discopatch.images.stores import StorePath, is_uri, parse, without_options
from discopatch.images.tables import ArrowShard, ParquetShard
from discopatch.images.tar import TarShard
from discopatch.utils import require

Entry: TypeAlias = Item | Shard
Identity: TypeAlias = tuple[int, int] | StorePath  # of a folder: its device and number there

_LANCE_MARK = "_versions"
_MARKS = {_LANCE_MARK, DICT_FILE, INFO_FILE, STATE_FILE}
_MAX_VISITS = 100  # of one folder in a walk; with links that lead to each other there would be no end


def entries_at(source: str) -> Iterator[Entry]:
    """At least one entry: where there is no image it is a refusal with the reason MISSING.

    StoreError where a store cannot be reached, MissingExtraError where what is named takes a package that is missing.
    """
    found = _in_store(source) if is_uri(source) else _at_path(source)
    first = next(found, None)
    if first is None:
        first = Item(without_options(source), ImageError(RefusalReason.MISSING, _nothing_at(source)))
    yield first
    yield from found


def is_folder(place: Place) -> bool:
    if isinstance(place, StorePath):
        return place.is_folder
    try:
        return place.is_dir()
    except OSError:  # reading it will say why
        return False


def _at_path(path: str) -> Iterator[Entry]:
    """What is at a local path; Path("") would be the current folder."""
    try:
        found = _named(Path(path), stat.S_ISDIR(Path(path).stat().st_mode)) if path else iter(())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        table, column = _split_column(path)
        if column is not None and Path(table).exists():
            return _named(Path(table), Path(table).is_dir(), column)
        return _matching(table, column)
    except OSError as error:
        return iter([Item(path, unreadable(error))])
    return found


def _in_store(uri: str) -> Iterator[Entry]:
    place = parse(uri)
    if isinstance(place, Path):
        return _at_path(str(place))
    found = place.found()
    if found is not None:
        return _named(found, found.is_folder)
    table, column = _split_column(place.path)
    place = StorePath(place.store, table.rstrip("/"))
    found = place.found() if column is not None else None
    if found is not None:
        return _named(found, found.is_folder, column)
    place.store.check()
    return _matching_in_store(place, column)


def _split_column(path: str) -> tuple[str, str | None]:
    """A table or a folder of tables, and the column that is named behind it: photos.parquet#thumbnail."""
    table, mark, column = path.rpartition("#")
    return (table, column) if mark and column and (is_table(table) or table.endswith("/")) else (path, None)


def _named(place: Place, is_folder: bool, column: str | None = None) -> Iterator[Entry]:
    """What a user names, in which lists are read too, and a table without images is an error."""
    if is_folder:
        return _walk(place, column, tables_found=column is None)
    if place.name.lower().endswith(LIST_SUFFIX) and is_name_list(place):
        return (place if isinstance(place, Item) else _from_file(place) for place in listed_names(place))
    entry = _from_file(place, column)
    if isinstance(entry, ParquetShard | ArrowShard):
        require("pyarrow", extra="parquet")
        if isinstance(entry, ParquetShard) and entry.names_files():
            return entry.items(DEFAULT_LIMITS)  # one by one, and no shard: nothing of theirs is read yet
    return iter([entry])


def _from_file(place: Place, column: str | None = None, *, found: bool = False) -> Entry:
    """An image or a shard; a table that was `found`, and not named, need not hold images."""
    if is_shard(place.name):
        return TarShard(place)
    if is_parquet(place.name):
        return ParquetShard(place, column, found)
    if is_table(place.name):
        return ArrowShard(place, column)
    if is_archive(place.name):
        detail = "an archive of another compression, which is not read: pack it again as .tar or .tar.gz"
        return Item(str(place), ImageError(RefusalReason.UNSUPPORTED, detail))
    return Item(str(place), place)


def _is_wanted(name: str) -> bool:
    """Whether a file that is found in a folder is read; tables are passed over where nothing can read them."""
    return is_archive(name) or is_image_name(name) or (is_parquet(name) and find_spec("pyarrow") is not None)


def _walk(
    top: Place,
    column: str | None = None,
    *,
    enter: Callable[[Place], bool] = lambda folder: True,
    by_path: bool = False,
    tables_found: bool = True,
) -> Iterator[Entry]:
    """The images and shards of a folder and all below it, by name; links are followed, but never in a circle.

    Folders are passed over that are not to be entered. The order is that of names, folder by folder, or `by_path` that
    of the paths as texts. Tables without images are passed over where they were `tables_found`, and not asked for.
    """
    visits: Counter[Identity] = Counter()
    opened: list[tuple[Identity, Iterator[Place]]] = []  # from the top down to where the walk is
    waiting: Place | None = top
    while waiting is not None or opened:
        if waiting is not None:
            try:
                identity, inside = _list_folder(waiting)
            except OSError as error:
                yield Item(str(waiting), _unlisted(error))
            else:
                visits[identity] += 1
                if visits[identity] > _MAX_VISITS:
                    detail = "a folder that links lead to again and again: remove the links"
                    yield Item(str(waiting), ImageError(RefusalReason.UNREADABLE, detail))
                elif (tables := _tables_in(waiting, inside, column, found=waiting != top)) is not None:
                    yield from tables
                elif all(identity != above for above, _ in opened):
                    inside.sort(key=_path_order if by_path else lambda place: place.name)
                    opened.append((identity, iter(inside)))
            waiting = None
        elif (place := next(opened[-1][1], None)) is None:
            opened.pop()
        elif is_folder(place):
            waiting = place if enter(place) else None
        elif _is_wanted(place.name):
            yield _from_file(place, column, found=tables_found)


def _tables_in(folder: Place, inside: list[Place], column: str | None, *, found: bool) -> Iterator[Entry] | None:
    """The shards of a folder that is one table or dataset as a whole, or None; if `found`, it may be passed over."""
    names = {place.name for place in inside if place.name in _MARKS}
    if folder.name.endswith(LANCE_SUFFIX) and _LANCE_MARK in names:
        return iter(()) if found and find_spec("lance") is None else lance_shards(folder, column)
    if DICT_FILE in names or {INFO_FILE, STATE_FILE} <= names:
        return iter(()) if found and find_spec("pyarrow") is None else saved_dataset(folder, column)
    return None


def _list_folder(folder: Place) -> tuple[Identity, list[Place]]:
    """What the folder is, wherever it is found, and what is not hidden in it."""
    if isinstance(folder, StorePath):
        return folder, list(folder.children())
    status = folder.stat()
    names = (name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208 - the names alone
    return (status.st_dev, status.st_ino), [folder / name for name in names]


def _unlisted(error: OSError) -> ImageError:
    if isinstance(error, StoreError):
        return ImageError(RefusalReason.UNREADABLE, str(error))
    return unreadable(error)


def _path_order(place: Place) -> str:
    return f"{place.name}/" if is_folder(place) else place.name


def _matching(pattern: str, column: str | None) -> Iterator[Entry]:
    if not glob.has_magic(pattern) or "\0" in pattern:
        return
    segments = Path(pattern).parts
    if "**" in segments:
        fixed = _first_wildcard(segments)
        top = Path(*segments[:fixed])
        if is_folder(top):
            inside = _walk(top, column, by_path=True, tables_found=not is_parquet(pattern))
            yield from _filtered(inside, len(top.parts), segments[fixed:])
        return
    found = glob.glob(pattern)  # noqa: PTH207 - Path.glob knows no absolute patterns
    for name in sorted(found):
        path = Path(name)
        if not is_folder(path):
            if _is_wanted(path.name):
                yield _from_file(path, column, found=not is_parquet(pattern))
        elif path.name.endswith(LANCE_SUFFIX):
            yield from _walk(path, column)


def _matching_in_store(pattern: StorePath, column: str | None) -> Iterator[Entry]:
    """Only folders that the pattern can reach are listed."""
    if not glob.has_magic(pattern.path):
        return iter(())
    segments = pattern.path.split("/")
    fixed = _first_wildcard(segments)
    top = StorePath(pattern.store, "/".join(segments[:fixed]), is_folder=True)
    depth = len(_parts(top))

    def reachable(folder: Place) -> bool:
        return folder.name.endswith(LANCE_SUFFIX) or _may_lead(_parts(folder)[depth:], segments[fixed:])

    inside = _walk(top, column, enter=reachable, by_path=True, tables_found=not is_parquet(pattern.name))
    return _filtered(inside, depth, segments[fixed:])


def _filtered(entries: Iterator[Entry], depth: int, segments: Sequence[str]) -> Iterator[Entry]:
    for entry in entries:
        place = entry.place if isinstance(entry, Shard) else entry.content
        parts = _parts(place if isinstance(place, Path | StorePath) else Path(entry.name))
        if _matches(parts[depth:], segments):
            yield entry


def _parts(place: Place) -> Sequence[str]:
    return [part for part in place.path.split("/") if part] if isinstance(place, StorePath) else place.parts


def _first_wildcard(segments: Sequence[str]) -> int:
    return next(place for place, segment in enumerate(segments) if glob.has_magic(segment))


def _matches(parts: Sequence[str], segments: Sequence[str]) -> bool:
    """Whether a path goes with a pattern; ** stands for any number of folders."""
    if not segments:
        return not parts
    if segments[0] == "**":
        return any(_matches(parts[place:], segments[1:]) for place in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], segments[0]) and _matches(parts[1:], segments[1:])


def _may_lead(parts: Sequence[str], segments: Sequence[str]) -> bool:
    """Whether something below the folder can go with the pattern."""
    for part, segment in zip(parts, segments, strict=False):
        if segment == "**":
            return True
        if not fnmatchcase(part, segment):
            return False
    return len(parts) < len(segments)


def _nothing_at(source: str) -> str:
    if not source:
        return "an empty path: name a file or a folder, such as . for the current one"
    shown = without_options(source)
    if not is_uri(source) and is_folder(Path(source)):
        tables = "tables" if find_spec("pyarrow") is not None else "not tables, which need discopatch[parquet]"
        searched = f"searched for {', '.join(IMAGE_SUFFIXES)}, tar shards and {tables}"
        return f"no images in the folder {shown} ({searched}): check the path"
    if glob.has_magic(shown):
        return f"no image matches {shown}: check the pattern; ** also searches folders"
    if is_uri(source):
        return f"no images at {shown}: check the bucket and the path"
    return f"no such file or folder: {shown}: check the path"
