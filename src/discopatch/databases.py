"""Where the tables of a history are: a SQLite file, or a schema of a PostgreSQL server that several services share."""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from discopatch.errors import OutputError, ParameterError, StoreError
from discopatch.utils import require, try_lock

IN_MEMORY = ":memory:"  # in place of a path
ADDRESSES = ("postgresql://", "postgres://")
APPLICATION, VERSION = 0x64697363, 7  # in the header of a file: "disc", and the version of the tables
PATIENCE = 30.0  # seconds for which another process may write to a file
LARGEST_JOURNAL = 2**24  # bytes that the journal keeps on disk
FULL_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}

AWAY_SECONDS = 1.0  # without another attempt to connect: one may take seconds
SCHEMA = "discopatch"  # of the tables, in a database of PostgreSQL
CONNECTION = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "discopatch"}  # unless given
# A process that hangs in a transaction keeps the others waiting: the server ends it.
SESSION = f"""
SET search_path = {SCHEMA}; SET synchronous_commit = on; SET lock_timeout = '10s'; SET statement_timeout = '30s';
SET idle_in_transaction_session_timeout = '10s'
"""


def open_database(place: Path | str, tables: str) -> "SqliteFile | PostgresSchema":
    """The database of a path or an address; `tables` makes its tables, with {number} and {bytes} as types.

    Both kinds have the same methods, and errors with the same meaning; statements have ? for each value.
    """
    is_address = isinstance(place, str) and place.startswith(ADDRESSES)
    return PostgresSchema(str(place), tables) if is_address else SqliteFile(Path(place), tables)


class SqliteFile:
    """A file, for many threads and several processes, of which one records for a detector."""

    is_shared = False
    doubt = None

    def __init__(self, path: Path, tables: str) -> None:
        self.name, self._place = str(path), path.absolute()
        self._status: os.stat_result | None = None  # of the file; none in memory
        self._reserved: list[IO[str]] = []
        options: Any = {"timeout": PATIENCE, "isolation_level": None, "check_same_thread": False}
        with self.errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection: sqlite3.Connection = sqlite3.connect(path, **options)
            try:
                self._open(tables)
                if self.name != IN_MEMORY:
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

    def _open(self, tables: str) -> None:
        def value(statement: str) -> Any:
            return self.execute(statement).fetchall()[0][0]

        # Checked before anything is changed: journal_mode = WAL would change the file of another program.
        application, version = value("PRAGMA application_id"), value("PRAGMA user_version")
        if application != APPLICATION and (application or version or value("SELECT count(*) FROM sqlite_schema")):
            raise StoreError(f"{self.name} is no history of discopatch: choose another file")
        if application == APPLICATION and version != VERSION:
            raise StoreError(f"{self.name} has version {version} of the tables, not {VERSION}: choose another file")
        in_wal = value("PRAGMA journal_mode = WAL") == "wal"  # some network shares cannot
        self.execute(f"PRAGMA synchronous = {'NORMAL' if in_wal else 'FULL'}")
        self.execute(f"PRAGMA journal_size_limit = {LARGEST_JOURNAL}")
        if application != APPLICATION:
            with self.transaction():
                if value("PRAGMA application_id") != APPLICATION:  # another process may have been faster
                    made = tables.format(number="INTEGER PRIMARY KEY AUTOINCREMENT", bytes="BLOB")
                    for statement in made.split(";"):  # `executescript` would end the transaction
                        self.execute(statement)
                    self.execute(f"PRAGMA user_version = {VERSION}")
                    self.execute(f"PRAGMA application_id = {APPLICATION}")

    def reserve(self, detector: str) -> None:
        """Keeps other processes from recording for the detector until this is closed; StoreError while one does."""
        if self.name == IN_MEMORY:
            return
        key = sha256(detector.encode()).hexdigest()[:8]
        try:
            file = self._place.with_name(f"{self._place.name}-{key}.lock").open("a")
        except OSError:  # scoring continues on a full disk
            return
        self._reserved.append(file)
        if try_lock(file) is False:
            raise StoreError(f"another process records for {detector} in {self.name}: end it, or choose another file")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if not self.is_in_place:
            raise StoreError(f"{self.name} was deleted or replaced while it was in use: start again")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk may have ended it
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises OutputError if the disk is full, and StoreError if the file cannot be used."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, FileExistsError, NotADirectoryError, PermissionError) as error:
            if getattr(error, "sqlite_errorcode", None) in FULL_CODES:
                raise OutputError(errno.ENOSPC, str(error), self.name) from error
            remedy = "check its rights, or choose another file"
            raise StoreError(f"{self.name} cannot be used ({error}): {remedy}") from error

    def was_committed(self, number: str) -> bool:
        raise NotImplementedError  # there is never a doubt

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> Any:
        return self._connection.execute(statement, values)

    def close(self) -> None:
        self._connection.close()
        for file in self._reserved:
            file.close()


class PostgresSchema:
    """A schema of its own in a database of a PostgreSQL server, for many threads and processes on many machines.

    A connection that was lost is opened again with the next transaction, and with the next query outside of one.
    `doubt` is the number of the last transaction if the connection was lost while it was committed.
    """

    is_shared = is_in_place = True
    doubt: str | None = None

    def __init__(self, address: str, tables: str) -> None:
        require("psycopg", "postgres")
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        self._psycopg, self.name = psycopg, "the PostgreSQL history"
        try:
            self._options: dict[str, Any] = {**CONNECTION, **conninfo_to_dict(address)}
        except psycopg.ProgrammingError:  # whose text may have the password
            remedy = "give one such as postgresql://user@host/database"
            raise ParameterError(f"the address of the history cannot be read: {remedy}") from None
        place = "/".join(str(self._options.get(each, "")) for each in ("host", "dbname"))
        self.name = f"postgresql://{place}"
        self._in_transaction, self._away_at = False, -AWAY_SECONDS
        with self.errors():
            self._connect()
            try:
                self._open(tables)
            except BaseException:
                self._connection.close()
                raise

    def _connect(self) -> None:
        if time.monotonic() - self._away_at < AWAY_SECONDS:
            raise self._psycopg.OperationalError("the server is away")
        try:
            self._connection = self._psycopg.connect(**self._options, autocommit=True)
        except self._psycopg.OperationalError:
            self._away_at = time.monotonic()
            raise
        self._connection.execute(SESSION)

    def _open(self, tables: str) -> None:
        def values(statement: str, *given: object) -> list[Any]:
            return [value for (value,) in self.execute(statement, given).fetchall()]

        with self.transaction():
            self.execute("SELECT pg_advisory_xact_lock(?)", (APPLICATION,))  # another process may open it too
            names = values("SELECT tablename FROM pg_tables WHERE schemaname = ?", SCHEMA)
            if not names:
                if not values("SELECT 1 FROM pg_namespace WHERE nspname = ?", SCHEMA):
                    self.execute(f"CREATE SCHEMA {SCHEMA}")
                number = "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"
                self._connection.execute(tables.format(number=number, bytes="BYTEA"))
                self.execute("CREATE TABLE version (number INT)")
                self.execute("INSERT INTO version VALUES (?)", (VERSION,))
            elif "version" not in names:
                raise StoreError(f"schema {SCHEMA} of {self.name} is no history: choose another database")
            elif (version := values("SELECT number FROM version")) != [VERSION]:
                found = f"version {', '.join(map(str, version))} of the tables, not {VERSION}"
                raise StoreError(f"{self.name} has {found}: choose another database")

    def reserve(self, detector: str) -> None:
        """Does nothing: each transaction locks the row of its detector."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.doubt, number = None, None
        self.execute("BEGIN")
        self._in_transaction = True
        try:
            yield
            number = self.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0]
            self.execute("COMMIT")
        except BaseException:
            if self._connection.closed:
                self.doubt = number
            try:
                self._connection.execute("ROLLBACK")
            except self._psycopg.Error:
                self._connection.close()
            raise
        finally:
            self._in_transaction = False

    def was_committed(self, number: str) -> bool:
        """Whether a transaction was committed whose connection was lost meanwhile."""
        self.doubt = None
        found = self.execute("SELECT pg_xact_status(?::xid8)", (number,)).fetchall()[0][0]
        if found == "in progress":
            raise StoreError(f"{self.name} still works on the last transaction: try again")
        return bool(found == "committed")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises OutputError if the server's disk is full, and StoreError if the server cannot be used."""
        try:
            yield
        except self._psycopg.errors.DiskFull as error:
            raise OutputError(errno.ENOSPC, " ".join(str(error).split()), self.name) from None
        except self._psycopg.Error as error:
            reason = " ".join(str(error).split())
            if secret := self._options.get("password"):
                reason = reason.replace(str(secret), "***")
            raise StoreError(f"{self.name} cannot be used ({reason}): check the server and the user's rights") from None

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> Any:
        statement = statement.replace("?", "%s")
        try:
            return self._connection.execute(statement, values)
        except self._psycopg.OperationalError:
            if self._in_transaction or not self._connection.closed:
                raise
        self._connect()
        return self._connection.execute(statement, values)

    def close(self) -> None:
        self._connection.close()
