"""The service under mixed load with its shipped limits, killed and on a full disk, with a record of all images.

python studies/soak.py --minutes 30

The service has the arguments and the memory limit of `deploy/compose.yaml` (a memory cgroup; without the right to make
one, RLIMIT_DATA). Clients send good and broken images, large images of few bytes, bursts, oversized and slow uploads,
and some leave early. Every two minutes the service is killed (SIGKILL) and started again, and the disk of its history
is full for some seconds. Each image that counts has a name of its own and each such request a key; clients repeat it
until it is answered. At the end each answered image must be in the history exactly once, the monitor must be that of
the images in the order of the history, and no answer may be one that was not asked for.
"""

import asyncio
import itertools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml
from PIL import Image

from discopatch import Monitor, Runtime
from discopatch.history import History
from discopatch.serve.server import bound_socket
from discopatch.utils import write_json
from serving import NAME, SCORE, Answer, Connection, Service, camera, form_request, image_request, jpeg, make_export

ROOT = Path(__file__).parents[1]
CGROUPS = Path("/sys/fs/cgroup")
MIB = 2**20
KEEP = 20_000  # predictions in the history; more than are written between two looks at it
DISK = "96m"
CYCLE = 120.0  # seconds
FULL_SECONDS = 8.0
FILES, SIDE = 24, 640
LARGE_SIDE = 6000  # of an image in one colour: nearly as many pixels as are allowed

app = typer.Typer(help=__doc__, add_completion=False)


class Soak:
    """The service, its ledger, and the clients, each of which is a coroutine that does one thing once."""

    def __init__(self, folder: Path, export: Path, start: Callable[[], subprocess.Popen[str]], port: int) -> None:
        self._export, self._start, self._port, self._folder = export, start, port, folder
        images = camera(FILES, seed=2)
        self._files = [jpeg(image, side=SIDE) for image in images]
        Image.new("RGB", (LARGE_SIDE, LARGE_SIDE), (90, 120, 60)).save(folder / "large.png", compress_level=9)
        self._files.append((folder / "large.png").read_bytes())
        self._runtime = Runtime.load(export)
        self._scores = self._runtime.predict(self._files).scores.tolist()
        self._random, self._numbers = random.Random(0), itertools.count()
        self.statuses: Counter[str] = Counter()  # "kind: status"
        self.unexpected: list[str] = []
        self.answered: set[str] = set()  # names of images that count
        self.sent: set[str] = set()  # also of those whose clients have left
        self.stored: list[str] = []
        self.compared = self.kills = self.full_disks = 0
        self.memory: list[int] = []
        self._is_down = False
        self._repeated: tuple[bytes, Answer, list[str]] | None = None

    def launch(self) -> None:
        """Starts the service, and returns when it answers."""
        self._process = self._start()
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the service did not start: {(self._folder / 'log').read_text()[-3000:]}")
        self._service = Service(self._process, "127.0.0.1", self._port)

    def watch(self, history: History) -> Iterator[None]:
        """Takes new entries of the history, which a monitor of its own counts too."""
        last = 0
        self.monitor = Monitor(self._runtime)
        while True:
            for entry in history.following(NAME, last, KEEP):
                last = entry.id
                self.stored.append(entry.prediction.name)
                if self.monitor.update(entry.prediction).log10_evidence != entry.evidence:
                    self.unexpected.append(f"{entry.prediction.name}: evidence {entry.evidence}")
            yield

    def name(self) -> str:
        return f"{next(self._numbers)}-x"

    def note(self, kind: str, answer: Answer, allowed: int) -> bool:
        """Whether it is what was asked for; the service may always be busy, if it says when to try again."""
        self.statuses[f"{kind}: {answer.status}"] += 1
        is_busy = answer.status == 503 and b"retry-after" in answer.headers
        if answer.status != allowed and not is_busy:
            self.unexpected.append(f"{kind}: {answer.status} {answer.body[:300]!r}")
        return answer.status == allowed

    async def ask(self, kind: str, request: bytes, allowed: int = 200, *, tries: int = 1000) -> Answer | None:
        """The answer; a request that is refused for a while or loses its service is repeated."""
        for _ in range(tries):
            connection = Connection(self._service)
            try:
                answer = await connection.ask(request)
                if self.note(kind, answer, allowed):
                    return answer
            except (OSError, asyncio.IncompleteReadError) as error:
                self.statuses[f"{kind}: cut off"] += 1
                if not self._is_down and tries > 1:
                    self.unexpected.append(f"{kind}: {error!r}")
            finally:
                await connection.close()
            await asyncio.sleep(0.3)
        return None

    async def count(self, kind: str, places: Sequence[int], broken: Sequence[bytes] = ()) -> None:
        """Sends good and broken images that count, and compares the scores of the good ones with `predict`."""
        names = [self.name() for _ in (*places, *broken)]
        data = [*(self._files[place] for place in places), *broken]
        key = f"Idempotency-Key: {names[0]}\r\n"
        self.sent.update(names)
        files = list(zip(names, data, strict=True))
        request = form_request(files, headers=key)
        if len(files) == 1:
            request = image_request(data[0], name=names[0], headers=key)
        answer = await self.ask(kind, request)
        assert answer is not None
        self.answered.update(names)
        scores = [each["score"] for each in answer.json["predictions"]]
        self.compared += len(places)
        if scores != [self._scores[place] for place in places] + [None] * len(broken):
            self.unexpected.append(f"{kind}: scores {scores}")
        self._repeated = request, answer, names

    async def single(self) -> None:
        await self.count("single", [self._random.randrange(FILES)])

    async def form(self) -> None:
        broken = [self._random.choice((self._files[0][:-4000], b"", b"no image" * 100))] * (self._random.random() < 0.5)
        await self.count("form", self._random.choices(range(FILES), k=self._random.randrange(2, 17)), broken)

    async def large(self) -> None:
        await self.count("large", [FILES] * self._random.randrange(1, 4))

    async def burst(self) -> None:
        await asyncio.gather(*(self.count("burst", [self._random.randrange(FILES)]) for _ in range(60)))

    async def again(self) -> None:
        """Repeats a request that was answered, perhaps before a kill."""
        if self._repeated is not None:
            request, first, _ = self._repeated
            await asyncio.sleep(5)
            answer = await self.ask("again", request)
            if answer is None or answer.json["predictions"] != first.json["predictions"]:
                self.unexpected.append("again: another answer")

    async def explain(self) -> None:
        place = self._random.randrange(FILES)
        answer = await self.ask("explain", image_request(self._files[place], path=SCORE.replace("score", "explain")))
        if answer is None or answer.json["score"] != self._scores[place]:
            self.unexpected.append("explain: another score")

    async def oversized(self) -> None:
        await self.ask("oversized", image_request(bytes(65 * MIB)), 413, tries=1)

    async def malformed(self) -> None:
        await self.ask("malformed", image_request(b"", path="/v1/detectors/none/score"), 404)

    async def leave(self) -> None:
        """Sends a part of a request, or all of it, and leaves."""
        names = [self.name() for _ in range(4)]
        self.sent.update(names)
        request = form_request([(name, self._files[0]) for name in names])
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request[: self._random.choice((len(request), self._random.randrange(len(request))))])
            await asyncio.sleep(self._random.random() * 0.3)
            writer.transport.abort()
            self.statuses["leave: gone"] += 1

    async def slow(self) -> None:
        """A few bytes a second; the service ends it after two minutes."""
        request = image_request(self._files[0], name=self.name())
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            for place in range(0, len(request), 50):
                writer.write(request[place : place + 50])
                with suppress(TimeoutError):
                    head = await asyncio.wait_for(reader.readline(), 0.5)
                    self.statuses[f"slow: {head[9:12].decode() or 'cut off'}"] += 1
                    break
            writer.close()

    async def listen(self) -> None:
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(f"GET /v1/detectors/{NAME}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            async with asyncio.timeout(5):
                while await reader.read(65536):
                    pass
            writer.close()

    async def kill(self) -> None:
        self._is_down = True
        self._process.kill()
        self._process.wait()
        await asyncio.to_thread(self.launch)
        await asyncio.sleep(1)
        self._is_down, self.kills = False, self.kills + 1

    async def fill(self, disk: Path) -> None:
        """Fills the disk of the history for some seconds."""
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        await asyncio.sleep(FULL_SECONDS)
        filler.unlink()
        ready = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await self.ask("ready", ready)
        self.full_disks += 1


MIXTURE = {  # kind: (how many at once, seconds of pause at most)
    "single": (5, 0.2),
    "form": (2, 0.5),
    "large": (1, 4.0),
    "burst": (1, 30.0),
    "again": (1, 2.0),
    "explain": (1, 5.0),
    "oversized": (1, 8.0),
    "malformed": (1, 0.5),
    "leave": (2, 0.5),
    "slow": (3, 1.0),
    "listen": (2, 1.0),
}


async def send(soak: Soak, seconds: float, disk: Path | None, look: Iterator[None]) -> None:
    """Runs the clients, the kills and the full disks; then everything is answered."""
    end = time.monotonic() + seconds

    async def repeat(kind: str, pause: float) -> None:
        while time.monotonic() < end:
            await getattr(soak, kind)()
            await asyncio.sleep(pause * random.random())

    async def disturb() -> None:
        cycle = min(seconds, CYCLE)
        for start in np.arange(time.monotonic(), end - 0.9 * cycle, cycle):
            await asyncio.sleep(max(0.0, start + 0.25 * cycle - time.monotonic()))
            await soak.kill()
            await asyncio.sleep(max(0.0, start + 0.65 * cycle - time.monotonic()))
            if disk is not None:
                await soak.fill(disk)

    async def observe() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(1)
            await asyncio.to_thread(next, look)
            with suppress(OSError):  # it is being started again
                soak.memory.append(soak._service.memory)

    kinds = [(kind, pause) for kind, (count, pause) in MIXTURE.items() for _ in range(count)]
    background = [asyncio.create_task(repeat(*each)) for each in kinds if each[0] in ("slow", "listen")]
    await asyncio.gather(disturb(), observe(), *(repeat(*each) for each in kinds if each[0] not in ("slow", "listen")))
    for task in background:
        task.cancel()


@contextmanager
def limited(limit: int) -> Iterator[tuple[str, Callable[[], object], Callable[[], int | None]]]:
    """How memory is limited, what a new process calls to have the limit, and the largest use."""
    for place, file, peak in (
        (CGROUPS / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        (CGROUPS, "memory.max", "memory.peak"),
    ):
        group = place / f"discopatch-soak-{os.getpid()}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield (
                "memory cgroup",
                lambda: (group / "cgroup.procs").write_text(str(os.getpid())),  # noqa: B023
                lambda: int((group / peak).read_text()) if (group / peak).exists() else None,  # noqa: B023
            )
        finally:
            group.rmdir()
        return
    yield "RLIMIT_DATA", lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)), lambda: None


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of its own, where mounting is allowed."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@app.command()
def main(
    export: Annotated[Path | None, typer.Argument(help="Default: one of sample photos.", exists=True)] = None,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = Path("docs/results/soak.json"),
) -> None:
    """Sends, disturbs, compares; exits with 1 where anything is not as it should be."""
    shipped = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["discopatch"]
    limit = int(re.sub("g$", "", shipped["mem_limit"])) * 2**30
    with bound_socket("127.0.0.1", 0) as found:
        port = found.getsockname()[1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        detector = export or make_export(folder / "export")
        disk = stack.enter_context(small_disk(folder / "disk"))
        how, limit_process, peak = stack.enter_context(limited(limit))
        path = folder / "disk" / "history.sqlite"
        more = ["--port", str(port), "--history", str(path), "--keep", str(KEEP)]
        command = ["serve", f"{NAME}={detector}", *shipped["command"][1:], *more]
        log = stack.enter_context((folder / "log").open("a"))

        def start() -> subprocess.Popen[str]:
            run = [sys.executable, "-m", "discopatch", *command]
            return subprocess.Popen(run, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=limit_process)

        soak = Soak(folder, detector, start, port)
        soak.launch()
        stack.callback(lambda: soak._process.kill())
        history = stack.enter_context(History(path))
        look = soak.watch(history)
        asyncio.run(send(soak, 60 * minutes, disk, look))
        soak._process.terminate()
        status = soak._process.wait(120)
        next(look)
        state, counts = history.state(NAME), history.counts(NAME)
        assert state is not None
        same = Monitor.from_bytes(state, soak._runtime).status == soak.monitor.status
        largest = peak()
    stored = Counter(soak.stored)
    content = {
        "minutes": minutes,
        "memory limited by": how,
        "arguments": shipped["command"][1:],
        "requests": sum(soak.statuses.values()),
        "statuses": dict(sorted(soak.statuses.items())),
        "kills": soak.kills,
        "full disks": soak.full_disks,
        "answered images": len(soak.answered),
        "images compared": soak.compared,
        "images in the history": len(soak.stored),
        "answered, not in the history": len(soak.answered - stored.keys()),
        "more than once in the history": sum(count > 1 for count in stored.values()),
        "in the history, never sent": len(stored.keys() - soak.sent),
        "counts of history and monitor equal": same and counts.images == len(soak.stored),
        "unexpected": soak.unexpected[:100],
        "exit status": status,
        "memory, MiB": {"most of the group": largest and largest / MIB, "most resident": max(soak.memory) / MIB},
    }
    write_json(out, content)
    for name, value in content.items():
        print(f"| {name} | {json.dumps(value) if isinstance(value, dict | list) else value} |")
    lost = (
        "answered, not in the history",
        "more than once in the history",
        "in the history, never sent",
        "exit status",
    )
    if soak.unexpected or any(content[name] for name in lost) or not content["counts of history and monitor equal"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
