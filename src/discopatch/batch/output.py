"""A folder that results are written to, on a disk or in an object store; each file appears whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.errors import DiscopatchError, StoreError
from discopatch.images.stores import Store, StorePath, cause_of, is_uri, parse, resolve, without_options
from discopatch.utils import (
    check_output,
    output_errors,
    remove_leftovers,
    require,
    sync_folder,
    workplace,
    write_atomically,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.fs

OBJECT_STORES = ("s3", "gcs", "abfs")  # a file becomes visible when its upload ends


class OutputFolder:
    """Files of one folder of a pyarrow file system, which several processes may write to at once.

    On a disk files are written beside their place and renamed; OutputError if the disk is full. In an object store they
    are uploaded in one call; StoreError, without credentials in its text, if the store refuses.
    """

    def __init__(self, filesystem: "pyarrow.fs.FileSystem", path: str, name: str, store: Store | None = None) -> None:
        self.filesystem, self.path, self.name, self._store = filesystem, path.rstrip("/"), name.rstrip("/"), store

    @classmethod
    def open(cls, out: "str | os.PathLike[str] | OutputFolder") -> "OutputFolder":
        """The folder at a path or an address such as s3://bucket/scores; nothing is written yet."""
        require("pyarrow", extra="parquet")
        if isinstance(out, OutputFolder):
            return out
        text = os.fspath(out)
        place = parse(text) if is_uri(text) else None
        return cls(*resolve(text), without_options(text), place.store if isinstance(place, StorePath) else None)

    @property
    def local(self) -> Path | None:
        """The folder, if it is on a disk."""
        return Path(self.path) if self.filesystem.type_name == "local" else None

    def place(self, name: str) -> str:
        """The path of a file in the file system."""
        return f"{self.path}/{name}"

    def prepare(self) -> None:
        """Raises an error, before long work, if nothing can be written; removes files of killed processes."""
        if self.local is None:
            self.names()
        else:
            check_output(self.local, folder=True)
            remove_leftovers(self.local)

    def names(self) -> set[str]:
        """The names of all files; none if there is no folder yet."""
        import pyarrow.fs

        with self._errors():
            found = self.filesystem.get_file_info(pyarrow.fs.FileSelector(self.path, allow_not_found=True))
        return {each.base_name for each in found if each.type == pyarrow.fs.FileType.File}

    def has(self, name: str) -> bool:
        import pyarrow.fs

        with self._errors(name):
            return bool(self.filesystem.get_file_info(self.place(name)).type == pyarrow.fs.FileType.File)

    def read(self, name: str) -> bytes:
        with self._errors(name), self.filesystem.open_input_file(self.place(name)) as file:
            content: bytes = file.read()
            return content

    def write(self, name: str, content: "bytes | pyarrow.Buffer") -> None:
        """Writes a file, in place of an older one if there is one."""
        if self.local is not None:
            write_atomically(self.local / name, lambda path: path.write_bytes(content))
            return
        target = self.place(name)
        renamed = self.filesystem.type_name not in OBJECT_STORES
        written = self.place(f".{name}.{os.getpid()}.partial") if renamed else target
        with self._errors(name):
            if renamed:
                self.filesystem.create_dir(self.path, recursive=True)
            with self.filesystem.open_output_stream(written) as stream:
                stream.write(content)  # one call, since a stream that is closed early would leave a truncated file
            if renamed:
                self.filesystem.move(written, target)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file unless there is one; returns whether the file now has this content."""
        if self.local is not None:
            self._create_locally(self.local, name, content)
        elif not self.has(name):
            self.write(name, content)
        return self.read(name) == content

    def _create_locally(self, folder: Path, name: str, content: bytes) -> None:
        """Creates the file by a hard link, which fails if another process was faster."""
        with output_errors(folder / name):
            folder.mkdir(parents=True, exist_ok=True)
            with workplace(folder) as place:
                new: Any = place / "new"
                with new.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(new, folder / name)
                except FileExistsError:
                    return
                except OSError:  # a file system without links
                    if not (folder / name).exists():
                        new.replace(folder / name)
                sync_folder(folder)

    def remove(self, name: str) -> None:
        with self._errors(name), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.place(name))

    @contextmanager
    def _errors(self, name: str = "") -> Iterator[None]:
        """Turns any error of the file system into a StoreError without credentials."""
        try:
            yield
        except (DiscopatchError, FileNotFoundError):
            raise
        except Exception as error:
            raise StoreError(f"{self.name}/{name}: {cause_of(error, self._store)}") from None
