"""A folder that results are written to, on a disk or in an object store; each file appears whole or not at all.

Predictions become Arrow tables and Parquet files: the same rows give the same bytes.
"""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.images.stores import Stamp, StorePath, parse, stamp_of_info, store_errors
from discopatch.results import CLASS, Prediction, as_row, column_types
from discopatch.utils import check_output, legible, remove_leftovers, require, write_atomically

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs

OBJECT_STORES = ("s3", "gcs", "abfs")  # a file becomes visible when its upload ends
ROW_GROUP = 10_000  # rows
SETTLED = 0.3  # seconds after which the last of several processes that create a file in a store at once has written it
_MARK = 4  # bytes of the mark at both ends of a Parquet file, and of the length of the footer


class OutputFolder:
    """Files of one folder of a pyarrow file system, which several processes may write to at once.

    On a disk files are written beside their place and renamed; OutputError if the disk is full. In an object store they
    are uploaded in one call; StoreError, without the secrets of its URI in the text, if the store refuses.
    """

    def __init__(self, filesystem: "pyarrow.fs.FileSystem", path: str, name: str, uri: str = "") -> None:
        self.filesystem, self.path, self.name, self._uri = filesystem, path.rstrip("/"), name.rstrip("/"), uri

    @classmethod
    def open(cls, out: "str | os.PathLike[str] | OutputFolder") -> "OutputFolder":
        """The folder at a path or an address such as s3://bucket/scores; nothing is written yet."""
        require("pyarrow", extra="parquet")
        if isinstance(out, OutputFolder):
            return out
        from pyarrow.fs import LocalFileSystem

        place = parse(os.fspath(out))
        if isinstance(place, StorePath):
            return cls(*place.connect(), str(place), place.root)
        return cls(LocalFileSystem(), str(place.absolute()), str(place))

    @property
    def local(self) -> Path | None:
        return Path(self.path) if self.filesystem.type_name == "local" else None

    def below(self, name: str) -> "OutputFolder":
        return OutputFolder(self.filesystem, self.place(name), f"{self.name}/{name}", self._uri)

    def place(self, name: str) -> str:
        return f"{self.path}/{name}"

    def prepare(self) -> None:
        """Raises an error, before long work, if nothing can be written; removes files of killed processes."""
        if self.local is None:
            self.names()
        else:
            check_output(self.local, folder=True)
            remove_leftovers(self.local)

    def names(self) -> set[str]:
        return set(self.stamps())

    def stamps(self) -> dict[str, Stamp]:
        """Size and time of change of all files by name; none if there is no folder yet."""
        import pyarrow.fs

        with store_errors(self.name, self._uri):
            found = self.filesystem.get_file_info(pyarrow.fs.FileSelector(self.path, allow_not_found=True))
        return {each.base_name: stamp_of_info(each) for each in found if each.type == pyarrow.fs.FileType.File}

    def stamp(self, name: str) -> Stamp | None:
        """Size and time of change of a file, if it is there."""
        import pyarrow.fs

        with store_errors(f"{self.name}/{name}", self._uri):
            found = self.filesystem.get_file_info(self.place(name))
        return stamp_of_info(found) if found.type == pyarrow.fs.FileType.File else None

    def has(self, name: str) -> bool:
        return self.stamp(name) is not None

    def read(self, name: str) -> bytes:
        with store_errors(f"{self.name}/{name}", self._uri), self.filesystem.open_input_file(self.place(name)) as file:
            content: bytes = file.read()
            return content

    def write(self, name: str, content: "bytes | pyarrow.Buffer") -> None:
        """Writes a file, in place of an older one if there is one."""
        if self.local is not None:
            write_atomically(self.local / name, lambda path: path.write_bytes(content))
            return
        renamed = self.filesystem.type_name not in OBJECT_STORES
        written = self.place(f".{name}.{os.getpid()}.partial" if renamed else name)
        with store_errors(f"{self.name}/{name}", self._uri):
            if renamed:
                self.filesystem.create_dir(self.path, recursive=True)
            with self.filesystem.open_output_stream(written, compression=None) as stream:
                stream.write(content)  # one call, since a stream that is closed early would leave a truncated file
            if renamed:
                self.filesystem.move(written, self.place(name))

    def remove(self, name: str) -> None:
        """Removes a file, unless another process has."""
        with suppress(FileNotFoundError), store_errors(f"{self.name}/{name}", self._uri):
            self.filesystem.delete_file(self.place(name))

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file unless there is one; returns whether the file now has this content."""
        if self.local is not None:
            write_atomically(self.local / name, lambda path: path.write_bytes(content), replace=False)
        elif not self.has(name):
            self.write(name, content)
            time.sleep(SETTLED)
        return self.read(name) == content


def arrow_schema(components: Sequence[str] = ()) -> "pyarrow.Schema":
    """The columns of `results.column_types` in Arrow's types."""
    import pyarrow

    types = {str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    return pyarrow.schema([(name, types[each]) for name, each in column_types(components).items()])


def to_table(predictions: Iterable[Prediction], components: Sequence[str] = ()) -> "pyarrow.Table":
    """One row per prediction; bytes of names that are not Unicode are escaped."""
    import pyarrow

    return pyarrow.Table.from_pylist([legible_row(each, components) for each in predictions], arrow_schema(components))


def part_schema(components: Sequence[str] = ()) -> "pyarrow.Schema":
    """The columns of a part: those of predictions, the shard, and the number of the image in it, from 0."""
    import pyarrow

    return pyarrow.schema([*arrow_schema(components), ("shard", pyarrow.string()), ("row", pyarrow.int64())])


def legible_row(prediction: Prediction, components: Sequence[str] = ()) -> dict[str, Any]:
    """The prediction as a row whose name and error are Unicode."""
    row = as_row(prediction, components)
    return row | {name: legible(row[name]) for name in ("name", "error") if row[name] is not None}


def to_parquet(table: "pyarrow.Table") -> "pyarrow.Buffer":
    """The bytes of a Parquet file with the rows, in row groups of at most `ROW_GROUP`."""
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(
        table.combine_chunks(),  # the bytes do not depend on how the rows were collected
        sink,
        row_group_size=ROW_GROUP,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in ("error", "caution", "significant", CLASS) if name in table.column_names],
    )
    return sink.getvalue()


def carrier(content: bytes, schema: "pyarrow.Schema") -> bytes:
    """A Parquet file without rows, with `content` between its first mark and its footer, unseen by readers."""
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.ParquetWriter(sink, schema, version="2.6").close()
    empty: bytes = sink.getvalue().to_pybytes()
    return empty[:_MARK] + content + empty[_MARK:]


def carried(data: bytes) -> bytes:
    return data[_MARK : -2 * _MARK - int.from_bytes(data[-2 * _MARK : -_MARK], "little")]
