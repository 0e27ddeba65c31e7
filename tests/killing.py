"""Commands that are killed at a chosen moment: forked from a process that has imported the libraries before."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

OUTPUT, PRINTED, CHANGES = "output", "printed.txt", "changes.txt"  # in the folder of a command
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.link"}


class Changes:
    """An audit hook that counts changes of files in a folder, and kills the process group at one of them."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        self._folder, self._kill_at, self.count = str(folder), kill_at, 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in EVENTS or not any(self._folder in str(each) for each in arguments[:2]):
            return
        if event == "open" and not int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        self.count += 1
        if self.count == self._kill_at:
            os.killpg(0, signal.SIGKILL)


class Commands:
    """Starts commands of discopatch as children of one server process."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self._server = server

    def start(self, arguments: Sequence[object], root: Path, kill_at: int | None = None) -> int:
        """The process id of the command; it is killed when it changes files of root/OUTPUT for the n-th time."""
        (root / OUTPUT).mkdir(parents=True, exist_ok=True)
        return self._ask({"arguments": list(map(str, arguments)), "root": str(root), "kill_at": kill_at})

    def wait(self, pid: int) -> int:
        """The exit status, negative for a signal."""
        return self._ask({"wait": pid})

    def kill_after(self, pid: int, seconds: float) -> bool:
        """Whether the kill ended the command and its children; it may have ended before."""
        time.sleep(seconds)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it was forked a moment ago and leads no group yet
            os.kill(pid, signal.SIGKILL)
        return self.wait(pid) == -signal.SIGKILL

    def run(self, arguments: Sequence[object], root: Path) -> None:
        """Runs a command to its end, with status 0."""
        status = self.wait(self.start(arguments, root))
        assert status == 0, (root / PRINTED).read_text()[-2000:]

    def _ask(self, question: Mapping[str, object]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


@contextmanager
def command_server() -> Iterator[Commands]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.killing"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[1],
    ) as server:
        try:
            yield Commands(server)
        finally:
            server.kill()


def serve() -> None:
    """Forks a process for each command that comes as a line of JSON, and prints its process id."""
    import torch  # noqa: F401

    import discopatch.bench.runner
    import discopatch.cli
    import discopatch.detector
    import discopatch.report  # noqa: F401

    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                become(question["arguments"], Path(question["root"]), question["kill_at"])
        print(answer, flush=True)


def become(arguments: list[str], root: Path, kill_at: int | None) -> None:
    """Runs the command in this process, with temporary files and cache below `root`, and ends it."""
    import discopatch.cli

    os.setsid()
    for name, variable in (("temporary", "TMPDIR"), ("cache", "XDG_CACHE_HOME"), ("state", "XDG_STATE_HOME")):
        (root / name).mkdir(exist_ok=True)
        os.environ[variable] = str(root / name)
    with (root / PRINTED).open("wb") as printed, Path(os.devnull).open("rb") as nothing:
        for place, file in enumerate((nothing, printed, printed)):
            os.dup2(file.fileno(), place)
    sys.argv = ["discopatch", *arguments]
    changes = Changes(root / OUTPUT, kill_at)
    sys.addaudithook(changes)
    status = 1
    try:
        discopatch.cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        (root / CHANGES).write_text(str(changes.count))
        os._exit(status)


def unfinished(root: Path) -> list[str]:
    """Temporary files and folders, anywhere below."""
    return [str(path.relative_to(root)) for path in root.rglob("*.partial")]


def contents(folder: Path) -> dict[str, bytes]:
    """All finished files by their path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if ".partial" not in str(path.relative_to(folder))
    }


if __name__ == "__main__":
    serve()
