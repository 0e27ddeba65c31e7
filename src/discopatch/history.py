"""A history of predictions in a SQLite file, with alarms, the state of the monitor, and undelivered messages.

Rows that belong together are written in one transaction, so that a killed process leaves all of them or none.
"""

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from discopatch.errors import OutputError, StoreError
from discopatch.results import COMPONENT_WORDS, Prediction, as_row, column_types, from_row
from discopatch.utils import legible, try_lock

IN_MEMORY = ":memory:"  # in place of a path
KEEP = 100_000  # predictions of each detector
APPLICATION, VERSION = 0x64697363, 5  # in the header of the file: "disc", and the version of the tables
PATIENCE = 30.0  # seconds for which another process may write
LARGEST_JOURNAL = 2**24  # bytes that the journal keeps on disk
FULL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}

COMPONENTS = tuple(COMPONENT_WORDS)
COLUMNS = column_types(COMPONENTS)  # of a prediction
SQL_TYPES = {str: "TEXT", float: "REAL", bool: "INTEGER"}
TABLES = f"""
CREATE TABLE detectors (
    name TEXT PRIMARY KEY, state BLOB,
    images INTEGER NOT NULL DEFAULT 0, flagged INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    exported INTEGER NOT NULL DEFAULT 0, exporting INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE predictions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, detector TEXT NOT NULL, time REAL NOT NULL,
    {", ".join(f"{name} {SQL_TYPES[kind]}" for name, kind in COLUMNS.items())},
    source TEXT, digest TEXT, thumbnail BLOB, evidence REAL
);
CREATE INDEX predictions_of ON predictions (detector, id);
CREATE TABLE alarms (
    id INTEGER PRIMARY KEY AUTOINCREMENT, detector TEXT NOT NULL, time REAL NOT NULL, status TEXT NOT NULL
);
CREATE TABLE notifications (
    id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0
);
CREATE TABLE files (detector TEXT, path BLOB, stamp TEXT NOT NULL, PRIMARY KEY (detector, path)) WITHOUT ROWID;
"""
# Removes the predictions of a detector beyond the newest, but none that has still to be exported.
PRUNE = f"""
DELETE FROM predictions WHERE detector = ? AND id <= (
    SELECT min(id, iif(exporting, exported, {2**62})) FROM predictions JOIN detectors ON detector = detectors.name
    WHERE detector = ? ORDER BY id DESC LIMIT 1 OFFSET ?
)
"""


class Entry(NamedTuple):
    """A stored prediction; ids of one history ascend in the order in which entries were added."""

    id: int
    time: float  # seconds since 1970
    prediction: Prediction
    source: str | None
    has_thumbnail: bool
    evidence: float | None  # log10, of the monitor after this image


class Counts(NamedTuple):
    """Numbers of all images of a detector, including those that were removed; refused ones count as images."""

    images: int
    flagged: int
    refused: int


class History(AbstractContextManager["History"]):
    """A file with the newest `keep` predictions of each detector, for many threads and several processes.

    A finished transaction survives a killed process; after a power cut the last few may be missing. Raises OutputError
    if the disk is full, after which the same may be tried again, and StoreError if the file cannot be used.

    Examples
    --------
    >>> with History("history.sqlite") as history, history.transaction():  # doctest: +SKIP
    ...     history.add("camera", detector.predict("image.jpg")[0], time=time.time())
    """

    def __init__(self, path: Path | str, *, keep: int = KEEP) -> None:
        self.path, self.keep = Path(path), keep
        self._lock = threading.RLock()
        self._place = self.path.absolute()
        self._status: os.stat_result | None = None  # of the file; none in memory
        self._reserved: list[IO[str]] = []
        self._added: set[str] = set()  # detectors with new predictions in the transaction
        options: Any = {"timeout": PATIENCE, "isolation_level": None, "check_same_thread": False}
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection: sqlite3.Connection = sqlite3.connect(self.path, **options)
            try:
                self._open()
                if str(self.path) != IN_MEMORY:
                    self._status = self._place.stat()
            except BaseException:
                self._connection.close()
                raise

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still there: SQLite continues to write to one that was deleted or replaced."""
        try:
            return self._status is None or os.path.samestat(self._status, self._place.stat())
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        def value(statement: str) -> Any:
            return self.rows(statement)[0][0]

        # Checked before anything is changed: journal_mode = WAL would change the file of another program.
        application, version = value("PRAGMA application_id"), value("PRAGMA user_version")
        if application != APPLICATION and (application or version or value("SELECT count(*) FROM sqlite_schema")):
            raise StoreError(f"{self.path} is no history of discopatch: choose another file")
        if application == APPLICATION and version != VERSION:
            raise StoreError(f"{self.path} has version {version} of the tables, not {VERSION}: choose another file")
        in_wal = value("PRAGMA journal_mode = WAL") == "wal"  # some network shares cannot
        self.execute(f"PRAGMA synchronous = {'NORMAL' if in_wal else 'FULL'}")
        self.execute(f"PRAGMA journal_size_limit = {LARGEST_JOURNAL}")
        if application != APPLICATION:
            with self.transaction():
                if value("PRAGMA application_id") != APPLICATION:  # another process may have been faster
                    for statement in filter(None, map(str.strip, TABLES.split(";"))):
                        self.execute(statement)
                    self.execute(f"PRAGMA user_version = {VERSION}")
                    self.execute(f"PRAGMA application_id = {APPLICATION}")

    def reserve(self, detector: str) -> None:
        """Keeps other processes from recording for the detector until this history is closed.

        Raises StoreError while another process does: each would overwrite the state of the other's monitor.
        """
        if str(self.path) == IN_MEMORY:
            return
        key = sha256(detector.encode()).hexdigest()[:8]
        try:
            file = self.path.with_name(f"{self.path.name}-{key}.lock").open("a")
        except OSError:  # scoring continues on a full disk
            return
        self._reserved.append(file)
        if try_lock(file) is False:
            raise StoreError(f"another process records for {detector} in {self.path}: end it, or choose another file")

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """All changes of the block are stored at its end, unless an error leaves it; then none is."""
        with self._lock, self._errors():
            if not self.is_in_place:
                raise StoreError(f"{self.path} was deleted or replaced while it was in use: start again")
            self._connection.execute("BEGIN IMMEDIATE")
            self._added.clear()
            try:
                yield self
                for detector in self._added:
                    self.execute(PRUNE, detector, detector, self.keep)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, FileExistsError, NotADirectoryError, PermissionError) as error:
            if getattr(error, "sqlite_errorcode", None) in FULL_CODES:
                raise OutputError(errno.ENOSPC, str(error), str(self.path)) from error
            remedy = "check its rights, or choose another file"
            raise StoreError(f"{self.path} cannot be used ({error}): {remedy}") from error

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Changes rows, in a transaction."""
        return self._connection.execute(statement, values)

    def rows(self, statement: str, *values: object) -> list[Any]:
        """All rows that a query finds."""
        with self._lock, self._errors():
            return self.execute(statement, *values).fetchall()

    def insert(self, table: str, **values: object) -> int:
        """The number of the new row, larger than all before."""
        places = ", ".join("?" * len(values))
        added = self.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", *values.values())
        assert added.lastrowid is not None
        return added.lastrowid

    def add(self, detector: str, prediction: Prediction, *, time: float, source: str | None = None, **more: Any) -> int:
        """The number of the new entry; `more` are values of the columns digest, thumbnail and evidence."""
        self.execute(
            "INSERT INTO detectors (name, images, flagged, refused) VALUES (?, 1, ?, ?) ON CONFLICT (name) DO UPDATE"
            " SET images = images + 1, flagged = flagged + excluded.flagged, refused = refused + excluded.refused",
            *(detector, bool(prediction.is_ood), prediction.error is not None),
        )
        self._added.add(detector)
        row = {**as_row(prediction, COMPONENTS), "source": source}
        plain = {name: legible(value) if isinstance(value, str) else value for name, value in row.items()}
        return self.insert("predictions", detector=detector, time=time, **plain, **more)

    def add_alarm(self, detector: str, time: float, status: Mapping[str, Any]) -> int:
        return self.insert("alarms", detector=detector, time=time, status=json.dumps(status))

    def put(self, detector: str, **values: object) -> None:
        """Sets columns of the detector: the monitor's `state`, whether it is `exporting`, the last id `exported`."""
        self.execute("INSERT INTO detectors (name) VALUES (?) ON CONFLICT DO NOTHING", detector)
        for column, value in values.items():
            self.execute(f"UPDATE detectors SET {column} = ? WHERE name = ?", value, detector)

    def mark_file(self, detector: str, path: str, stamp: str) -> None:
        """Marks a file as scored; `stamp` identifies its content."""
        self.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", detector, os.fsencode(path), stamp)

    def recent(self, detector: str, limit: int = 50, before: int | None = None) -> list[Entry]:
        """At most `limit` entries, the newest first; with `before` those with a smaller id."""
        return self._entries(detector, "id < ? ORDER BY id DESC LIMIT ?", before or 2**63 - 1, limit)

    def following(self, detector: str, number: int, limit: int) -> list[Entry]:
        """At most `limit` entries with a larger id, the oldest first."""
        return self._entries(detector, "id > ? ORDER BY id LIMIT ?", number, limit)

    def _entries(self, detector: str, condition: str, *values: object) -> list[Entry]:
        columns = f"id, time, source, thumbnail IS NOT NULL, evidence, {', '.join(COLUMNS)}"
        found = self.rows(f"SELECT {columns} FROM predictions WHERE detector = ? AND {condition}", detector, *values)
        return [
            Entry(number, time, from_row(dict(zip(COLUMNS, row, strict=True))), source, bool(image), evidence)
            for number, time, source, image, evidence, *row in found
        ]

    def thumbnail(self, number: int) -> bytes | None:
        """The thumbnail of an entry, if there is one."""
        found = self.rows("SELECT thumbnail FROM predictions WHERE id = ?", number)
        return found[0][0] if found else None

    def alarms(self, detector: str, limit: int = 20) -> list[dict[str, Any]]:
        """At most `limit` alarms, the newest first: the status of the monitor, with `id` and `time`."""
        found = self.rows(
            "SELECT id, time, status FROM alarms WHERE detector = ? ORDER BY id DESC LIMIT ?", detector, limit
        )
        return [{**json.loads(status), "id": number, "time": time} for number, time, status in found]

    def state(self, detector: str) -> bytes | None:
        """The last state of the monitor."""
        found = self.rows("SELECT state FROM detectors WHERE name = ?", detector)
        return found[0][0] if found else None

    def counts(self, detector: str) -> Counts:
        """The numbers of images since the history was made."""
        found = self.rows("SELECT images, flagged, refused FROM detectors WHERE name = ?", detector)
        return Counts(*found[0]) if found else Counts(0, 0, 0)

    def close(self) -> None:
        with self._lock, self._errors():
            self._connection.close()
            for file in self._reserved:
                file.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def default_path(name: str) -> Path:
    """The history of that name in the user's state folder."""
    given = os.environ.get("XDG_STATE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return root / "discopatch" / f"{name}.sqlite"
