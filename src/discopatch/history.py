"""A history of predictions, with alarms, the state of the monitor, answers of requests, and undelivered messages.

Rows that belong together are written in one transaction, so that a killed process leaves all of them or none.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from discopatch.databases import open_database
from discopatch.results import CLASS, COMPONENT_WORDS, Prediction, as_row, column_types, from_row
from discopatch.utils import legible

KEEP = 100_000  # predictions of each detector
KEPT_ANSWERS = 10_000  # predictions of requests with idempotency keys, and keys, of each detector

COMPONENTS = tuple(COMPONENT_WORDS)
NAMES = (*COMPONENTS, CLASS)
COLUMNS = column_types(NAMES)  # of a prediction
SQL_TYPES = {str: "TEXT", float: "DOUBLE PRECISION", bool: "BOOLEAN"}
TABLES = f"""
CREATE TABLE detectors (
    name TEXT PRIMARY KEY, state {{bytes}}, changes BIGINT NOT NULL DEFAULT 0,
    images BIGINT NOT NULL DEFAULT 0, flagged BIGINT NOT NULL DEFAULT 0, refused BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE predictions (
    id {{number}}, detector TEXT NOT NULL, time DOUBLE PRECISION NOT NULL,
    {", ".join(f"{name} {SQL_TYPES[kind]}" for name, kind in COLUMNS.items())},
    source TEXT, digest TEXT, thumbnail {{bytes}}, evidence DOUBLE PRECISION
);
CREATE INDEX predictions_of ON predictions (detector, id);
CREATE TABLE alarms (id {{number}}, detector TEXT NOT NULL, time DOUBLE PRECISION NOT NULL, status TEXT NOT NULL);
CREATE TABLE answers (
    detector TEXT, key TEXT, digest TEXT NOT NULL, body TEXT NOT NULL, size_to_here BIGINT NOT NULL,
    PRIMARY KEY (detector, key)
);
CREATE INDEX answers_of ON answers (detector, size_to_here);
CREATE TABLE notifications (
    id {{number}}, target TEXT NOT NULL, body TEXT NOT NULL,
    tries BIGINT NOT NULL DEFAULT 0, due DOUBLE PRECISION NOT NULL DEFAULT 0
);
CREATE TABLE files (detector TEXT, path {{bytes}}, stamp TEXT NOT NULL, PRIMARY KEY (detector, path));
"""
# Removes the predictions of a detector beyond the newest.
PRUNE = """
DELETE FROM predictions WHERE detector = ?
    AND id <= (SELECT id FROM predictions WHERE detector = ? ORDER BY id DESC LIMIT 1 OFFSET ?)
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


class Answer(NamedTuple):
    """The stored answer to a request with an idempotency key."""

    digest: str  # of the content of the request
    body: str


class History(AbstractContextManager["History"]):
    """The newest `keep` predictions of each detector, in a SQLite file or a PostgreSQL database (`postgresql://...`).

    It is used by many threads and several processes. A file has one process that records for a detector (`reserve`);
    in PostgreSQL there may be many: a transaction that records for a detector locks its row, so that ids and changes of
    the monitor's state have the order in which transactions are committed.

    A finished transaction survives a killed process; after a power cut the last few may be missing in a file. Raises
    OutputError if the disk is full, after which the same may be tried again, and StoreError if the file or the server
    cannot be used; a lost connection is opened again with the next call.

    Examples
    --------
    >>> with History("history.sqlite") as history, history.transaction():  # doctest: +SKIP
    ...     history.add("camera", detector.predict("image.jpg")[0], time=time.time())
    """

    def __init__(self, place: Path | str, *, keep: int = KEEP) -> None:
        self.keep = keep
        self._lock = threading.RLock()
        self.database = open_database(place, TABLES)
        self._added: Counter[str] = Counter()  # new predictions of each detector, since the last were removed

    @property
    def name(self) -> str:
        """The path, or the address without user and password."""
        return self.database.name

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still there, and was not replaced."""
        return self.database.is_in_place

    def was_committed(self, doubt: str) -> bool:
        """Whether the transaction of a `database.doubt` was committed."""
        with self._lock, self.database.errors():
            return self.database.was_committed(doubt)

    def reserve(self, detector: str) -> None:
        """Keeps other processes from recording for the detector in the same file until this history is closed.

        Raises StoreError while another process does: each would overwrite the state of the other's monitor.
        """
        self.database.reserve(detector)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """All changes of the block are stored at its end, unless an error leaves it; then none is."""
        with self._lock, self.database.errors(), self.database.transaction():
            yield self
            for detector, count in list(self._added.items()):
                if count > self.keep // 1000:
                    self.execute(PRUNE, detector, detector, self.keep)
                    del self._added[detector]

    def execute(self, statement: str, *values: object) -> Any:
        """Changes rows, in a transaction."""
        return self.database.execute(statement, values)

    def rows(self, statement: str, *values: object) -> list[Any]:
        """All rows that a query finds."""
        with self._lock, self.database.errors():
            return list(self.execute(statement, *values).fetchall())

    def insert(self, table: str, **values: object) -> int:
        """The number of the new row, larger than all before."""
        places = ", ".join("?" * len(values))
        names = ", ".join(values)
        return int(self.rows(f"INSERT INTO {table} ({names}) VALUES ({places}) RETURNING id", *values.values())[0][0])

    def add(self, detector: str, prediction: Prediction, *, time: float, source: str | None = None, **more: Any) -> int:
        """The number of the new entry; `more` are values of the columns digest, thumbnail and evidence."""
        self.execute(  # first, for the lock of the row
            "INSERT INTO detectors (name, images, flagged, refused) VALUES (?, 1, ?, ?) ON CONFLICT (name) DO UPDATE"
            " SET images = detectors.images + 1, flagged = detectors.flagged + excluded.flagged,"
            " refused = detectors.refused + excluded.refused",
            *(detector, int(bool(prediction.is_ood)), int(prediction.error is not None)),
        )
        self._added[detector] += 1
        row = {**as_row(prediction, NAMES), "source": source}
        plain = {name: text_of(value) if isinstance(value, str) else value for name, value in row.items()}
        return self.insert("predictions", detector=detector, time=time, **plain, **more)

    def add_alarm(self, detector: str, time: float, status: Mapping[str, Any]) -> int:
        return self.insert("alarms", detector=detector, time=time, status=json.dumps(status))

    def put(self, detector: str, *, state: bytes) -> None:
        """Sets the state of the monitor."""
        self.execute(
            "INSERT INTO detectors (name, state) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET state = excluded.state",
            *(detector, state),
        )

    def begin_change(self, detector: str) -> int:
        """Locks the detector to the end of the transaction; returns the number of this change of its state."""
        return int(
            self.rows(
                "INSERT INTO detectors (name, changes) VALUES (?, 1)"
                " ON CONFLICT (name) DO UPDATE SET changes = detectors.changes + 1 RETURNING changes",
                detector,
            )[0][0]
        )

    def changes(self) -> dict[str, int]:
        """The number of the last change of each detector."""
        return dict(self.rows("SELECT name, changes FROM detectors"))

    def answer(self, detector: str, key: str) -> Answer | None:
        """The answer to the request with that key, unless it is too old."""
        found = self.rows("SELECT digest, body FROM answers WHERE detector = ? AND key = ?", detector, key)
        return Answer(*found[0]) if found else None

    def add_answer(self, detector: str, key: str, answer: Answer, images: int) -> None:
        """Adds an answer with so many predictions, and removes the oldest beyond KEPT_ANSWERS."""
        self.execute(
            "INSERT INTO answers (detector, key, digest, body, size_to_here)"
            " SELECT ?, ?, ?, ?, coalesce(max(size_to_here), 0) + ? FROM answers WHERE detector = ?",
            *(detector, key, *answer, 1 + images, detector),
        )
        self.execute(
            "DELETE FROM answers WHERE detector = ?"
            " AND size_to_here <= (SELECT max(size_to_here) FROM answers WHERE detector = ?) - ?",
            *(detector, detector, KEPT_ANSWERS),
        )

    def mark_file(self, detector: str, path: str, stamp: str) -> None:
        """Marks a file as scored; `stamp` identifies its content."""
        self.execute(
            "INSERT INTO files VALUES (?, ?, ?) ON CONFLICT (detector, path) DO UPDATE SET stamp = excluded.stamp",
            *(detector, os.fsencode(path), stamp),
        )

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
        with self._lock, self.database.errors():
            self.database.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def text_of(text: str) -> str:
    """The text as every database stores it."""
    return legible(text).replace("\0", "\\x00")


def default_path(name: str) -> Path:
    """The history of that name in the user's state folder."""
    given = os.environ.get("XDG_STATE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return root / "discopatch" / f"{name}.sqlite"
