"""A PostgreSQL server of its own, from Debian's binaries."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
PASSWORD = "a-secret-word"


class Server:
    """A server on a free port of this machine, with its data in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:  # the server refuses to run as root
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres")
        how = ("--username=user", f"--pwfile={folder / 'password'}", "--auth=scram-sha-256", "--no-sync")
        self._run("initdb", f"--pgdata={folder / 'data'}", "--encoding=UTF8", *how)

    def _run(self, program: str, *arguments: object) -> None:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        command = [*user, str(BINARIES[-1] / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=120)

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "--pgdata", self._folder / "data", "--wait", "--log", self._folder / "log", *arguments)

    def start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1"
        self._control("--options", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Ends it, by default as a crash would."""
        self._control("--mode", mode, "stop")

    def new_database(self) -> str:
        """The address of an empty database."""
        self._count += 1
        name = f"database{self._count}"
        self._run("createdb", "--host=127.0.0.1", f"--port={self.port}", "--username=user", name)
        return f"postgresql://user:{PASSWORD}@127.0.0.1:{self.port}/{name}"


@contextmanager
def server() -> Iterator[Server]:
    """A server that runs; the test is skipped where none is installed."""
    pytest.importorskip("psycopg")
    if not BINARIES:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="discopatch-postgres-"))
    try:
        started = Server(folder)
        started.start()
        try:
            yield started
        finally:
            started.stop()
    finally:
        shutil.rmtree(folder)
