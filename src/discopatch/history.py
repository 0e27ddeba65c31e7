"""A history of predictions in a SQLite file, with alarms, the state of the monitor, and undelivered messages.

Rows that belong together are written in one transaction, so that a killed process leaves all of them or none.
"""

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from discopatch.errors import OutputError, ParameterError, StoreError
from discopatch.results import COMPONENT_WORDS, ComponentScore, Prediction, as_row, column_types
from discopatch.utils import legible, try_lock

IN_MEMORY = ":memory:"  # in place of a path
KEEP = 100_000  # predictions of each detector
APPLICATION, VERSION = 0x64697363, 2  # in the header of the file: "disc", and the version of the tables
PRUNED_AT_ONCE = 64  # more predictions are removed in several transactions, which stay short
PATIENCE = 30.0  # seconds for which another process may write
LARGEST_JOURNAL = 2**24  # bytes that the journal keeps on disk
FULL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}

COMPONENTS = tuple(COMPONENT_WORDS)
COLUMNS = column_types(COMPONENTS)  # of a prediction
SQL_TYPES = {str: "TEXT", float: "REAL", bool: "INTEGER"}
TABLES = f"""
CREATE TABLE detectors (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state BLOB, kept INTEGER NOT NULL DEFAULT 0,
    images INTEGER NOT NULL DEFAULT 0, flagged INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    exported INTEGER NOT NULL DEFAULT 0, exporting INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE predictions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, detector INTEGER NOT NULL, time REAL NOT NULL,
    {", ".join(f"{name} {SQL_TYPES[kind]}" for name, kind in COLUMNS.items())},
    source TEXT, digest TEXT, thumbnail BLOB, evidence REAL
);
CREATE INDEX predictions_of ON predictions (detector, id);
CREATE TABLE alarms (
    id INTEGER PRIMARY KEY AUTOINCREMENT, detector INTEGER NOT NULL, time REAL NOT NULL, status TEXT NOT NULL
);
CREATE INDEX alarms_of ON alarms (detector, id);
CREATE TABLE notifications (
    id INTEGER PRIMARY KEY AUTOINCREMENT, alarm INTEGER, target TEXT NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0, error TEXT
);
CREATE INDEX notifications_due ON notifications (target, due);
CREATE TABLE files (
    detector INTEGER NOT NULL, path BLOB NOT NULL, stamp TEXT NOT NULL, PRIMARY KEY (detector, path)
) WITHOUT ROWID;
"""


class Entry(NamedTuple):
    """A stored prediction; ids of one history ascend in the order in which entries were added."""

    id: int
    detector: str
    time: float  # seconds since 1970
    prediction: Prediction
    source: str | None
    has_thumbnail: bool
    evidence: float | None  # log10, of the monitor after this image


class Alarm(NamedTuple):
    """An alarm of the monitor, with its status at that time."""

    id: int
    detector: str
    time: float  # seconds since 1970
    status: dict[str, Any]


class Counts(NamedTuple):
    """Numbers of all images of a detector, including those that were removed; refused ones count as images."""

    images: int
    flagged: int
    refused: int


class Change:
    """One transaction: all of it is stored when it ends, or nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}  # of detectors, by their name
        self._added: dict[int, int] = {}  # predictions, by the number of their detector

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def insert(self, table: str, **values: object) -> int:
        """The number of the new row."""
        places = ", ".join("?" * len(values))
        added = self.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", *values.values())
        assert added.lastrowid is not None
        return added.lastrowid

    def detector_number(self, name: str) -> int:
        """The number of the detector, which gets a row if it has none."""
        if name not in self._numbers:
            self.execute("INSERT INTO detectors (name) VALUES (?) ON CONFLICT DO NOTHING", legible(name))
            found = self.execute("SELECT id FROM detectors WHERE name = ?", legible(name)).fetchone()
            self._numbers[name] = found[0]
        return self._numbers[name]

    def add(
        self,
        detector: str,
        prediction: Prediction,
        *,
        time: float,
        source: str | None = None,
        digest: str | None = None,
        thumbnail: bytes | None = None,
        evidence: float | None = None,
    ) -> int:
        """The number of the new entry, larger than all before."""
        number, row = self.detector_number(detector), as_row(prediction, COMPONENTS)
        self.execute(
            "UPDATE detectors SET images = images + 1, kept = kept + 1, flagged = flagged + ?, refused = refused + ?"
            " WHERE id = ?",
            *(bool(prediction.is_ood), prediction.error is not None, number),
        )
        self._added[number] = self._added.get(number, 0) + 1
        plain = {name: sql_value(row[name], kind) for name, kind in COLUMNS.items()}
        more = {"source": sql_value(source, str), "digest": digest, "thumbnail": thumbnail, "evidence": evidence}
        return self.insert("predictions", detector=number, time=float(time), **plain, **more)

    def add_alarm(self, detector: str, time: float, status: Mapping[str, Any]) -> int:
        number = self.detector_number(detector)
        return self.insert("alarms", detector=number, time=float(time), status=json.dumps(status))

    def put_state(self, detector: str, state: bytes) -> None:
        """Stores the state of the monitor in place of the one before."""
        self.execute("UPDATE detectors SET state = ? WHERE id = ?", state, self.detector_number(detector))

    def mark_file(self, detector: str, path: str, stamp: str) -> None:
        """Marks a file as scored; `stamp` identifies its content."""
        number = self.detector_number(detector)
        self.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", number, os.fsencode(path), stamp)

    def prune(self, keep: int) -> None:
        """Removes the oldest predictions beyond `keep` of each detector that got new ones, a few at a time."""
        for number, added in self._added.items():
            kept, last = self.execute(
                f"SELECT kept, iif(exporting, exported, {2**62}) FROM detectors WHERE id = ?", number
            ).fetchone()
            if kept > keep:
                removed = self.execute(
                    "DELETE FROM predictions WHERE id IN"
                    " (SELECT id FROM predictions WHERE detector = ? AND id <= ? ORDER BY id LIMIT ?)",
                    *(number, last, min(kept - keep, added + PRUNED_AT_ONCE)),
                ).rowcount
                self.execute("UPDATE detectors SET kept = kept - ? WHERE id = ?", removed, number)


class History:
    """A file with the newest `keep` predictions of each detector, for many threads and several processes.

    A finished transaction survives a killed process; with `durable` also a power cut, after which otherwise the last
    few may be missing. Raises OutputError if the disk is full, after which the same may be tried again, and StoreError
    if the file cannot be used.

    Examples
    --------
    >>> with History("history.sqlite") as history, history.transaction() as change:  # doctest: +SKIP
    ...     change.add("camera", detector.predict("image.jpg")[0], time=time.time())
    """

    def __init__(self, path: Path | str, *, keep: int = KEEP, durable: bool = False) -> None:
        if keep < 1:
            raise ParameterError(f"keep is {keep}: keep at least 1 prediction")
        self.path, self.keep = Path(path), keep
        self._lock = threading.RLock()
        self._reserved: list[IO[str]] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path.parent} cannot be made ({error.strerror}): choose another place") from error
        with self._errors():
            self._connection = sqlite3.connect(
                self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                self._open(durable=durable)
            except BaseException:
                self._connection.close()
                raise

    def _open(self, *, durable: bool) -> None:
        def value(statement: str) -> Any:
            return self._connection.execute(statement).fetchone()[0]

        # Checked before anything is changed: journal_mode = WAL would change the file of another program.
        application, version = value("PRAGMA application_id"), value("PRAGMA user_version")
        if application != APPLICATION and (application or version or value("SELECT count(*) FROM sqlite_schema")):
            raise StoreError(f"{self.path} is no history of discopatch: choose another file")
        if application == APPLICATION and version != VERSION:
            raise StoreError(f"{self.path} has version {version} of the tables, not {VERSION}: choose another file")
        in_wal = value("PRAGMA journal_mode = WAL") == "wal"  # some network shares cannot
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable or not in_wal else 'NORMAL'}")
        self._connection.execute(f"PRAGMA journal_size_limit = {LARGEST_JOURNAL}")
        if application != APPLICATION:
            with self.transaction() as change:
                if value("PRAGMA application_id") != APPLICATION:  # another process may have been faster
                    for statement in filter(None, map(str.strip, TABLES.split(";"))):
                        change.execute(statement)
                    change.execute(f"PRAGMA user_version = {VERSION}")
                    change.execute(f"PRAGMA application_id = {APPLICATION}")

    def reserve(self, detector: str) -> None:
        """Keeps other processes from recording for the detector until this history is closed.

        Raises StoreError while another process does: each would overwrite the state of the other's monitor.
        """
        if str(self.path) == IN_MEMORY:
            return
        key = sha256(legible(detector).encode()).hexdigest()[:8]
        try:
            file = self.path.with_name(f"{self.path.name}-{key}.lock").open("a")
        except OSError:  # scoring continues on a full disk
            return
        self._reserved.append(file)
        if try_lock(file) is False:
            raise StoreError(
                f"another process records for {detector} in {self.path}: end it, or choose another file or name (watch "
                "--name, serve NAME=PATH)"
            )

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """A change that is stored at the end of the block, unless an error leaves it."""
        with self._lock, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                change = Change(self._connection)
                yield change
                change.prune(self.keep)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) in FULL_CODES:
                raise OutputError(errno.ENOSPC, str(error), str(self.path)) from error
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError):
                raise
            raise StoreError(
                f"{self.path} cannot be used ({error}): check its rights, or choose another file"
            ) from error

    def rows(self, statement: str, *values: object) -> list[Any]:
        """All rows that a query finds."""
        with self._lock, self._errors():
            return self._connection.execute(statement, values).fetchall()

    def recent(self, detector: str, limit: int = 50, before: int | None = None) -> list[Entry]:
        """At most `limit` entries, the newest first; with `before` those with a smaller id."""
        return self._entries(
            detector, "id < ? ORDER BY id DESC LIMIT ?", 2**63 - 1 if before is None else before, limit
        )

    def following(self, detector: str, number: int, limit: int) -> list[Entry]:
        """At most `limit` entries with a larger id, the oldest first."""
        return self._entries(detector, "id > ? ORDER BY id LIMIT ?", number, limit)

    def _entries(self, detector: str, condition: str, *values: object) -> list[Entry]:
        found = self.rows(
            f"SELECT id, time, source, thumbnail IS NOT NULL, evidence, {', '.join(COLUMNS)} FROM predictions WHERE"
            f" detector = (SELECT id FROM detectors WHERE name = ?) AND {condition}",
            *(legible(detector), *values),
        )
        return [
            Entry(number, detector, time, from_row(dict(zip(COLUMNS, row, strict=True))), source, bool(image), evidence)
            for number, time, source, image, evidence, *row in found
        ]

    def thumbnail(self, number: int) -> bytes | None:
        """The thumbnail of an entry, if there is one."""
        found = self.rows("SELECT thumbnail FROM predictions WHERE id = ?", number)
        return found[0][0] if found else None

    def alarms(self, detector: str, limit: int = 20) -> list[Alarm]:
        """At most `limit` alarms, the newest first."""
        found = self.rows(
            "SELECT alarms.id, time, status FROM alarms JOIN detectors ON detector = detectors.id"
            " WHERE name = ? ORDER BY alarms.id DESC LIMIT ?",
            *(legible(detector), limit),
        )
        return [Alarm(number, detector, time, json.loads(status)) for number, time, status in found]

    def state(self, detector: str) -> bytes | None:
        """The last state of the monitor."""
        found = self.rows("SELECT state FROM detectors WHERE name = ?", legible(detector))
        return found[0][0] if found else None

    def counts(self, detector: str) -> Counts:
        found = self.rows("SELECT images, flagged, refused FROM detectors WHERE name = ?", legible(detector))
        return Counts(*found[0]) if found else Counts(0, 0, 0)

    def close(self) -> None:
        with self._lock, self._errors():
            self._connection.close()
            for file in self._reserved:
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sql_value(value: Any, kind: type) -> Any:
    """A value of a column in the types of SQLite; bytes of names that are not Unicode are escaped."""
    return None if value is None else legible(value) if kind is str else kind(value)


def from_row(row: Mapping[str, Any]) -> Prediction:
    """The prediction of which `results.as_row` made the row."""
    significant = (row.get("significant") or "").split(",")
    z = {name: row.get(f"z_{name}") for name in COMPONENTS}
    components = tuple(
        ComponentScore(name, value, name in significant) for name, value in z.items() if value is not None
    )
    is_ood = row.get("is_ood")
    return Prediction(
        row["name"],
        row.get("score"),
        row.get("p_value"),
        None if is_ood is None else bool(is_ood),
        row.get("error"),
        components,
    )
