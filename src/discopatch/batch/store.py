"""Where scores are written: a local folder, or one on any file system of pyarrow; a file is whole or not there."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.errors import DiscopatchError, ScoresError, StoreError
from discopatch.images.stores import cause_of, is_uri, resolve, without_options
from discopatch.utils import (
    check_output,
    output_errors,
    remove_leftovers,
    require,
    sync_folder,
    temporary_folder,
    workplace,
    write_atomically,
)

if TYPE_CHECKING:
    import pyarrow.fs
    import pyarrow.parquet

OBJECT_STORES = ("s3", "gcs", "abfs")  # in which a file appears when its upload has ended
Fill = Callable[[Path], object]  # writes the content of a file to a path


class Store(ABC):
    """A folder of files that several processes may write to at once."""

    name: str  # as it is told to users

    @abstractmethod
    def names(self) -> list[str]:
        """Those of the files, in any order; none where there is no folder yet."""

    @abstractmethod
    def has(self, name: str) -> bool: ...

    @abstractmethod
    def size(self, name: str) -> int: ...

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def write(self, name: str, fill: Fill) -> None:
        """Puts what `fill` wrote in the place of a file, at once; OutputError where that cannot be."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Writes a file, unless somebody has; where files cannot be created only once the last one stays."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, unless somebody has."""

    @abstractmethod
    def place(self, name: str) -> "tuple[pyarrow.fs.FileSystem, str]":
        """A file as pyarrow opens it."""

    @abstractmethod
    def prepare(self) -> None:
        """OutputError, before long work, where nothing could be written; what killed processes left is removed."""

    def open_parquet(self, name: str) -> "pyarrow.parquet.ParquetFile":
        """The file, whose rows are not read yet; ScoresError where it is no Parquet."""
        import pyarrow
        import pyarrow.parquet

        filesystem, path = self.place(name)
        with store_errors(f"{self.name}/{name}"):
            try:
                return pyarrow.parquet.ParquetFile(path, filesystem=filesystem)
            except pyarrow.ArrowInvalid as error:
                raise ScoresError(f"{self.name}/{name} is damaged ({error}): remove it, and score again") from None


class LocalStore(Store):
    """A folder on this machine or on a share: files are written beside their place and renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def names(self) -> list[str]:
        with output_errors(self.folder), suppress(FileNotFoundError), os.scandir(self.folder) as found:
            return [entry.name for entry in found]
        return []

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def write(self, name: str, fill: Fill) -> None:
        write_atomically(self.folder / name, fill)

    def create(self, name: str, content: bytes) -> None:
        path = self.folder / name
        with output_errors(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            with workplace(self.folder) as place:
                new = place / "new"
                with new.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(new, path)
                except FileExistsError:
                    return
                except OSError:  # a file system without links
                    if not path.exists():
                        new.replace(path)
                sync_folder(self.folder)

    def remove(self, name: str) -> None:
        with output_errors(self.folder / name):
            (self.folder / name).unlink(missing_ok=True)

    def place(self, name: str) -> "tuple[pyarrow.fs.FileSystem, str]":
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem(), str(self.folder / name)

    def prepare(self) -> None:
        check_output(self.folder, folder=True)
        remove_leftovers(self.folder)


class RemoteStore(Store):
    """A folder of an object store, where a file appears when its upload ends, or of another file system of pyarrow."""

    def __init__(self, filesystem: "pyarrow.fs.FileSystem", path: str, name: str) -> None:
        self._filesystem, self._path, self.name = filesystem, path.rstrip("/"), name.rstrip("/")

    def names(self) -> list[str]:
        import pyarrow.fs

        with store_errors(self.name):
            found = self._filesystem.get_file_info(pyarrow.fs.FileSelector(self._path, allow_not_found=True))
        return [each.base_name for each in found if each.type == pyarrow.fs.FileType.File]

    def _info(self, name: str) -> Any:
        with store_errors(f"{self.name}/{name}"):
            return self._filesystem.get_file_info(f"{self._path}/{name}")

    def has(self, name: str) -> bool:
        import pyarrow.fs

        return bool(self._info(name).type == pyarrow.fs.FileType.File)

    def size(self, name: str) -> int:
        return int(self._info(name).size)

    def read(self, name: str) -> bytes:
        with (
            store_errors(f"{self.name}/{name}"),
            self._filesystem.open_input_file(f"{self._path}/{name}") as file,
        ):
            content: bytes = file.read()
            return content

    def write(self, name: str, fill: Fill) -> None:
        import pyarrow

        with temporary_folder() as folder:
            path = folder / name
            with output_errors(path):
                fill(path)
            with store_errors(f"{self.name}/{name}"), pyarrow.memory_map(str(path)) as file:
                self._upload(name, file.read_buffer())

    def prepare(self) -> None:
        """A store is asked for its files, whether it can be reached; an upload that was cut short left none."""
        self.names()

    def _upload(self, name: str, content: Any) -> None:
        """In one call, which no signal interrupts: a stream that is closed too early would be a file cut short."""
        target = f"{self._path}/{name}"
        renamed = self._filesystem.type_name not in OBJECT_STORES
        written = f"{self._path}/.{name}.{os.getpid()}.partial" if renamed else target
        if renamed:
            self._filesystem.create_dir(self._path, recursive=True)
        with self._filesystem.open_output_stream(written) as stream:
            stream.write(content)
        if renamed:
            self._filesystem.move(written, target)

    def create(self, name: str, content: bytes) -> None:
        if not self.has(name):
            self.write(name, lambda path: path.write_bytes(content))

    def remove(self, name: str) -> None:
        with store_errors(f"{self.name}/{name}"), suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._path}/{name}")

    def place(self, name: str) -> "tuple[pyarrow.fs.FileSystem, str]":
        return self._filesystem, f"{self._path}/{name}"


def open_store(out: "str | os.PathLike[str] | Store") -> Store:
    """The folder at a path or an address such as s3://bucket/scores; nothing is written yet."""
    require("pyarrow", extra="parquet")
    if isinstance(out, Store):
        return out
    text = os.fspath(out)
    if not is_uri(text):
        return LocalStore(Path(text))
    filesystem, path = resolve(text)
    if filesystem.type_name == "local":
        return LocalStore(Path(path))
    return RemoteStore(filesystem, path, without_options(text))


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Makes a StoreError, without what may be secret, of whatever a store says."""
    try:
        yield
    except DiscopatchError:
        raise
    except Exception as error:
        raise StoreError(f"{name}: {cause_of(error)}") from None
