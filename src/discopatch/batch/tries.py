"""How often a part was begun, kept beside the scores: what kills its worker is found out by who comes after it."""

from discopatch.batch.plan import Part
from discopatch.batch.store import Store

PREFIX = "_try-"  # names that begin so are passed over by who reads a folder of Parquet
MOST_TRIES = 3
MOST_NOTE_BYTES = 4_000  # of what is said about a try
KILLED = "its worker ended without a word, as one does that is killed or out of memory"


class Tries:
    """One small file for each try of a part: written before it begins, removed with the others when it is done."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, part: Part) -> str | None:
        """The name of a new try, or None where all were made."""
        for name in names_of(part):
            if not self._store.has(name):
                self.note(name, "")
                return name
        return None

    def note(self, name: str, text: str) -> None:
        """Says of a try how it went."""
        content = text.encode(errors="backslashreplace")[:MOST_NOTE_BYTES]
        self._store.write(name, lambda path: path.write_bytes(content))

    def end(self, part: Part) -> None:
        """Forgets the tries of a part that is done, or not to blame."""
        for name in names_of(part):
            if self._store.has(name):
                self._store.remove(name)

    def forget_all(self) -> None:
        """Lets parts that were set aside be tried again."""
        for name in self._store.names():
            if name.startswith(PREFIX):
                self._store.remove(name)

    def reason(self, part: Part) -> str:
        """What the last try that said anything said of itself."""
        for name in reversed(names_of(part)):
            if self._store.has(name) and (text := self._store.read(name)):
                return text.decode(errors="replace")
        return KILLED


def names_of(part: Part) -> list[str]:
    return [f"{PREFIX}{part.id}-{number}" for number in range(1, MOST_TRIES + 1)]
