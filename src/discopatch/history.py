"""What detectors said, in a SQLite file: predictions, alarms, the monitor's state, and what is still to be told.

Whatever belongs together is written in one transaction, so that a process that is killed leaves all of it or none.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from discopatch.errors import HistoryError, HistoryFullError, ParameterError
from discopatch.results import ComponentScore, Prediction
from discopatch.utils import try_lock

IN_MEMORY = ":memory:"  # in the place of a path
KEEP = 100_000  # predictions of each detector
APPLICATION, VERSION = 0x64697363, 1  # in the file's header: "disc", and the version of the tables
PRUNED_AT_ONCE = 64  # more predictions than that are removed in several transactions, which stay short
PATIENCE = 30.0  # seconds for which another process may write
LARGEST_JOURNAL = 2**24  # bytes that the journal keeps on disk after it was large

TABLES = """
CREATE TABLE detectors (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state BLOB, kept INTEGER NOT NULL DEFAULT 0,
    images INTEGER NOT NULL DEFAULT 0, flagged INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    held_from INTEGER
);
CREATE TABLE predictions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, detector INTEGER NOT NULL, time REAL NOT NULL, name TEXT NOT NULL,
    score REAL, p_value REAL, is_ood INTEGER, error TEXT, components TEXT, source TEXT, digest TEXT, thumbnail BLOB,
    evidence REAL
);
CREATE INDEX predictions_of ON predictions (detector, id);
CREATE TABLE alarms (
    id INTEGER PRIMARY KEY AUTOINCREMENT, detector INTEGER NOT NULL, time REAL NOT NULL, status TEXT NOT NULL
);
CREATE INDEX alarms_of ON alarms (detector, id);
CREATE TABLE notifications (
    id INTEGER PRIMARY KEY AUTOINCREMENT, alarm INTEGER, target TEXT NOT NULL, body TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0, error TEXT, given_up INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX notifications_due ON notifications (given_up, due);
CREATE TABLE files (
    detector INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    inode TEXT NOT NULL, prediction INTEGER NOT NULL, PRIMARY KEY (detector, path)
) WITHOUT ROWID;
CREATE TABLE parts (
    detector INTEGER NOT NULL, folder TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, name TEXT NOT NULL,
    written INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (detector, folder, first)
) WITHOUT ROWID;
"""
ENTRY = "id, time, name, score, p_value, is_ood, error, components, source, thumbnail IS NOT NULL, evidence"
FULL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}


class Entry(NamedTuple):
    """A prediction that was kept; entries of one history ascend by `id` in the order in which they were added."""

    id: int
    detector: str
    time: float  # in seconds since 1970
    prediction: Prediction
    source: str | None
    has_thumbnail: bool
    evidence: float | None  # log10, of the monitor after this image, where one followed


class Alarm(NamedTuple):
    """An alarm of the monitor, with its status at that time."""

    id: int
    detector: str
    time: float  # in seconds since 1970
    status: dict[str, Any]


class Counts(NamedTuple):
    """How many images a detector had in all, those that are no longer kept too; refused ones are among the images."""

    images: int
    flagged: int
    refused: int


class Change:
    """One transaction; what is added by it is there when it ends, all or nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}  # of detectors, by their name
        self._added: dict[int, int] = {}  # predictions, by the number of their detector

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Texts may be names of files that are no valid Unicode."""
        return self._connection.execute(statement, [as_value(value) for value in values])

    def detector_number(self, name: str) -> int:
        """The detector's number in the tables, where it has a row from then on."""
        if name not in self._numbers:
            self.execute("INSERT INTO detectors (name) VALUES (CAST(? AS TEXT)) ON CONFLICT DO NOTHING", name)
            found = self.execute("SELECT id FROM detectors WHERE name = CAST(? AS TEXT)", name).fetchone()
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
        """The number of the new entry, larger than all before; the totals count it too."""
        number = self.detector_number(detector)
        refused, flagged = prediction.error is not None, bool(prediction.is_ood)
        self.execute(
            "UPDATE detectors SET images = images + 1, kept = kept + 1, flagged = flagged + ?, refused = refused + ?"
            " WHERE id = ?",
            *(flagged, refused, number),
        )
        components = [[each.name, float(each.z), bool(each.significant)] for each in prediction.components]
        added = self.execute(
            "INSERT INTO predictions (detector, time, name, score, p_value, is_ood, error, components, source, digest,"
            " thumbnail, evidence)"
            " VALUES (?, ?, CAST(? AS TEXT), ?, ?, ?, CAST(? AS TEXT), ?, CAST(? AS TEXT), ?, ?, ?)",
            *(number, float(time), prediction.name),
            *(None if value is None else float(value) for value in (prediction.score, prediction.p_value)),
            None if prediction.is_ood is None else bool(prediction.is_ood),
            *(prediction.error, json.dumps(components) if components else None, source, digest, thumbnail, evidence),
        ).lastrowid
        assert added is not None
        self._added[number] = self._added.get(number, 0) + 1
        return added

    def add_alarm(self, detector: str, time: float, status: Mapping[str, Any]) -> int:
        added = self.execute(
            "INSERT INTO alarms (detector, time, status) VALUES (?, ?, ?)",
            *(self.detector_number(detector), float(time), json.dumps(status)),
        ).lastrowid
        assert added is not None
        return added

    def put_state(self, detector: str, state: bytes) -> None:
        """Keeps the monitor's state in place of the one before."""
        self.execute("UPDATE detectors SET state = ? WHERE id = ?", state, self.detector_number(detector))

    def queue(self, alarm: int | None, target: str, body: str) -> int:
        """The number of a message that is still to be delivered; `alarm` is None where it is about one image."""
        queued = self.execute(
            "INSERT INTO notifications (alarm, target, body) VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))",
            *(alarm, target, body),
        ).lastrowid
        assert queued is not None
        return queued

    def mark_file(self, detector: str, path: str, *, size: int, mtime_ns: int, inode: int, prediction: int) -> None:
        """Remembers which content of the file was predicted, in place of an older one."""
        self.execute(
            "INSERT OR REPLACE INTO files VALUES (?, CAST(? AS TEXT), ?, ?, ?, ?)",
            *(self.detector_number(detector), path, size, mtime_ns, str(inode), prediction),  # inodes have 64 bits
        )

    def prune(self, keep: int) -> None:
        """Removes the oldest predictions beyond `keep` of each detector that got new ones, a few at a time."""
        for number, added in self._added.items():
            kept, held_from = self.execute("SELECT kept, held_from FROM detectors WHERE id = ?", number).fetchone()
            if kept > keep:
                removed = self.execute(
                    "DELETE FROM predictions WHERE id IN (SELECT id FROM predictions WHERE detector = ?"
                    " AND id < coalesce(?, 9223372036854775807) ORDER BY id LIMIT ?)",
                    *(number, held_from, min(kept - keep, added + PRUNED_AT_ONCE)),
                ).rowcount
                self.execute("UPDATE detectors SET kept = kept - ? WHERE id = ?", removed, number)


class History:
    """A file with the newest `keep` predictions of each detector, for many threads and several processes.

    A transaction that has ended survives a killed process; with `durable` also a power cut, after which otherwise the
    last few may be missing, each as a whole. HistoryError for a file of something else, HistoryFullError when the disk
    is full: nothing is half-written then, and the same may be tried again.
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
            raise HistoryError(f"{self.path.parent} cannot be made ({error.strerror}): choose another place") from error
        with self._errors():
            self._connection = sqlite3.connect(
                self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = as_text
            try:
                self._open(durable=durable)
            except BaseException:
                self._connection.close()
                raise

    def _open(self, *, durable: bool) -> None:
        def value(statement: str) -> Any:
            return self._connection.execute(statement).fetchone()[0]

        # Looked at before anything is changed: opened for WAL, a file of another program would be another one.
        application, version = value("PRAGMA application_id"), value("PRAGMA user_version")
        if application != APPLICATION and (application or version or value("SELECT count(*) FROM sqlite_schema")):
            raise HistoryError(f"{self.path} is no history of discopatch: choose another file")
        if version > VERSION:
            raise HistoryError(f"{self.path} was written by a newer version of discopatch: install that")
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
        """Lets no other process record for the detector before this history is closed; HistoryError while one does.

        Each would put the state of its own monitor over the other's.
        """
        if str(self.path) == IN_MEMORY:
            return
        key = sha256(detector.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        try:
            file = self.path.with_name(f"{self.path.name}-{key}.lock").open("a")
        except OSError:  # a disk that is full is no reason not to score
            return
        self._reserved.append(file)
        if try_lock(file) is False:
            raise HistoryError(
                f"another process records for {detector} in {self.path}: end it, or choose another file, "
                "or another name (watch --name, serve NAME=PATH)"
            )

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """All that is done with the change, or, where an error leaves the block, nothing of it."""
        with self._lock, self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                change = Change(self._connection)
                yield change
                change.prune(self.keep)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it already
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in FULL_CODES:
                raise HistoryFullError(f"{self.path} could not be written ({error}): free some space") from error
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise HistoryError(f"{self.path} is no whole history ({error}): choose another file") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise HistoryError(f"{self.path} is being written by another program: end that") from error
            if isinstance(error, sqlite3.OperationalError):
                raise HistoryError(f"{self.path} cannot be used ({error}): check the folder and its rights") from error
            raise

    def rows(self, statement: str, *values: object) -> list[Any]:
        """What a query finds, all of it."""
        with self._lock, self._errors():
            return self._connection.execute(statement, [as_value(value) for value in values]).fetchall()

    def recent(self, detector: str, limit: int = 50, before: int | None = None) -> list[Entry]:
        """The newest entries first, at most `limit`; with `before` those with a smaller number."""
        bound = 2**63 - 1 if before is None else before
        return self._entries(detector, "id < ? ORDER BY id DESC LIMIT ?", bound, limit)

    def following(self, detector: str, number: int, limit: int) -> list[Entry]:
        """At most `limit` entries with a larger number, the oldest first."""
        return self._entries(detector, "id > ? ORDER BY id LIMIT ?", number, limit)

    def _entries(self, detector: str, condition: str, *values: object) -> list[Entry]:
        found = self.rows(
            f"SELECT {ENTRY} FROM predictions WHERE"
            f" detector = (SELECT id FROM detectors WHERE name = CAST(? AS TEXT)) AND {condition}",
            *(detector, *values),
        )
        return [as_entry(detector, row) for row in found]

    def thumbnail(self, number: int) -> bytes | None:
        """Of the entry with that number, where it is kept and has one."""
        found = self.rows("SELECT thumbnail FROM predictions WHERE id = ?", number)
        return found[0][0] if found else None

    def alarms(self, detector: str, limit: int = 20) -> list[Alarm]:
        """The newest first."""
        found = self.rows(
            "SELECT alarms.id, time, status FROM alarms JOIN detectors ON detector = detectors.id"
            " WHERE name = CAST(? AS TEXT) ORDER BY alarms.id DESC LIMIT ?",
            *(detector, limit),
        )
        return [Alarm(number, detector, time, json.loads(status)) for number, time, status in found]

    def state(self, detector: str) -> bytes | None:
        """The monitor's, as it was put last."""
        found = self.rows("SELECT state FROM detectors WHERE name = CAST(? AS TEXT)", detector)
        return found[0][0] if found else None

    def counts(self, detector: str) -> Counts:
        found = self.rows("SELECT images, flagged, refused FROM detectors WHERE name = CAST(? AS TEXT)", detector)
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


def as_entry(detector: str, row: Sequence[Any]) -> Entry:
    number, time, name, score, p_value, is_ood, error, components, source, has_thumbnail, evidence = row
    heard = tuple(ComponentScore(*each) for each in json.loads(components)) if components else ()
    prediction = Prediction(name, score, p_value, None if is_ood is None else bool(is_ood), error, heard)
    return Entry(number, detector, time, prediction, source, bool(has_thumbnail), evidence)


def as_value(value: object) -> object:
    """What the database takes: a text as bytes where it has surrogates, such as the name of a file in Latin-1."""
    if isinstance(value, str) and not value.isascii():
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return value.encode("utf-8", "backslashreplace")
    return value


def as_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
