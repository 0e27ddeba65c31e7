"""How often a part was begun, kept beside the scores: what kills its worker is found out by who comes after it."""

from typing import TYPE_CHECKING

from discopatch.cluster.plan import Part
from discopatch.cluster.store import Store
from discopatch.utils import output_errors

if TYPE_CHECKING:
    import pyarrow.fs

FOLDER = "_tries"  # names that begin so are passed over by who reads a folder of Parquet
MOST_TRIES = 3
MOST_NOTE_BYTES = 4_000  # of what is said about a try
KILLED = "its worker ended without a word, as one does that is killed or out of memory"


class Tries:
    """One small file for each try of a part: written before it begins, removed with the others when it is done."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _place(self, name: str) -> "tuple[pyarrow.fs.FileSystem, str]":
        return self._store.place(f"{FOLDER}/{name}")

    def _names(self, part: Part) -> list[str]:
        return [f"{part.id}-{number}" for number in range(1, MOST_TRIES + 1)]

    def begin(self, part: Part) -> str | None:
        """The name of a new try, or None where all were made."""
        for name in self._names(part):
            if not self._has(name):
                self.note(name, "")
                return name
        return None

    def note(self, name: str, text: str) -> None:
        """Says of a try how it went; OutputError where that cannot be written."""
        filesystem, path = self._place(name)
        with output_errors(f"{self._store.name}/{FOLDER}/{name}"):
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with filesystem.open_output_stream(path) as stream:
                stream.write(text.encode(errors="backslashreplace")[:MOST_NOTE_BYTES])

    def end(self, part: Part) -> None:
        """Forgets the tries of a part that is done, or not to blame."""
        for name in self._names(part):
            if self._has(name):
                filesystem, path = self._place(name)
                filesystem.delete_file(path)

    def forget_all(self) -> None:
        """Lets parts that were set aside be tried again."""
        filesystem, path = self._store.place(FOLDER)
        filesystem.delete_dir_contents(path, missing_dir_ok=True)

    def reason(self, part: Part) -> str:
        """What the last try said of itself."""
        for name in reversed(self._names(part)):
            if self._has(name):
                filesystem, path = self._place(name)
                with filesystem.open_input_file(path) as file:
                    text: str = file.read(MOST_NOTE_BYTES).decode(errors="replace")
                return text or KILLED
        return KILLED

    def _has(self, name: str) -> bool:
        import pyarrow.fs

        filesystem, path = self._place(name)
        return bool(filesystem.get_file_info(path).type == pyarrow.fs.FileType.File)
