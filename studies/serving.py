"""Load and soak tests of the service.

python studies/serving.py load      # images a second and latencies, beside the same runtime called in process
python studies/serving.py soak      # half an hour of good, bad, huge and slow requests

`load` sends JPEG files of 640 x 640 from 1, 8, 32 and 128 clients, one image a request or 16, each over a connection of
its own; all clients are in one process. `soak` runs clients of several kinds at the same time. Each kind has the
answers that it may get; any other answer, and every score that differs from `predict` in any bit, is listed. Memory is
sampled all the time.
"""

import asyncio
import base64
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from PIL import Image
from rich.console import Console

from common import in_both_orders
from discopatch.demo import crops, sample_photos
from discopatch.images import NamedImage
from discopatch.utils import write_json

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

NAME = "camera-3"
SCORE = f"/v1/detectors/{NAME}/score"
N_FITTED = 150
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def camera(count: int, *, seed: int) -> list[NamedImage]:
    """Squares of a sample photo, as if from one camera."""
    return crops(sample_photos(["temple"]), count, size=256, seed=seed)


def make_export(folder: Path) -> Path:
    """An export of a detector with the default weights; takes a minute or two."""
    from discopatch import Detector
    from discopatch.export import export_detector

    images = camera(N_FITTED, seed=0)
    detector = Detector(false_alarm_rate=0.05, device="cpu").fit(images)
    export_detector(detector, folder, reference=camera(16, seed=1))
    return folder


def jpeg(image: NamedImage, *, side: int, quality: int = 90) -> bytes:
    """The image as a file of that many pixels along a side."""
    buffer = io.BytesIO()
    Image.fromarray(image.pixels).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


@dataclass(frozen=True)
class Service:
    """A service that runs, and what it has used so far."""

    process: "subprocess.Popen[str]"
    host: str
    port: int

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_SIZE


@contextmanager
def served(export: Path, log: Path, *arguments: str) -> Iterator[Service]:
    """`discopatch serve` on a free port, as a user would start it."""
    command = [sys.executable, "-m", "discopatch", "serve", f"{NAME}={export}", "--port", "0", *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the service did not start: {log.read_text()}")
        host, _, port = address.removeprefix("http://").rpartition(":")
        yield Service(process, host, int(port))
        process.terminate()
        process.wait(timeout=120)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Answer(NamedTuple):
    """What came back, and how long it took from the first byte sent to the last received."""

    status: int
    body: bytes
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Connection:
    """A connection that is kept, for requests whose bytes are ready: a client that takes next to no time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> Answer:
        """The answer; a connection that was closed meanwhile is opened anew."""
        start = time.perf_counter()
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._service.host, self._service.port)
        reader, writer = self._streams
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            headers = head.lower()
            place = headers.index(b"content-length: ") + 16
            body = await reader.readexactly(int(headers[place : headers.index(b"\r", place)]))
        except (OSError, asyncio.IncompleteReadError):
            await self.close()
            raise
        if b"connection: close" in headers:
            await self.close()
        return Answer(int(head[9:12]), body, time.perf_counter() - start)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def image_request(data: bytes, *, name: str = "image.jpg", path: str = SCORE, headers: str = "") -> bytes:
    """One image as the body of a request."""
    head = f"POST {path}?name={name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def form_request(files: list[tuple[str, bytes]], *, path: str = SCORE, headers: str = "") -> bytes:
    """Several images as a form."""
    part = '--xyz\r\nContent-Disposition: form-data; name="files"; filename="{}"\r\n\r\n'
    body = b"".join(part.format(name).encode() + data + b"\r\n" for name, data in files) + b"--xyz--\r\n"
    kind = "multipart/form-data; boundary=xyz"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def json_request(path: str, content: object, *, headers: str = "") -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


SIDE, FILES = 640, 48
CLIENTS = (1, 8, 32, 128)
BATCH = 16  # images of a request with several
RATE, CPU, CLIENT = "images a second", "CPU an image, ms", "clients' share of CPU"


@app.command()
def load(
    export: Annotated[
        Path | None, typer.Argument(help="An export; default: one of sample photos.", exists=True)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement, of which there are two.")] = 20,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = Path("docs/results/serve-load.json"),
) -> None:
    """Measures, prints and stores the table."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as place:
        folder = export or make_export(Path(place) / "export")
        files = [jpeg(image, side=SIDE) for image in camera(FILES, seed=2)]
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "in process, threads": partial(in_process, folder, files, seconds, "threads"),
            "in process, predict": partial(in_process, folder, files, seconds, "predict"),
        }
        with served(folder, Path(place) / "log", "--no-history") as service:
            for clients in CLIENTS:
                requests = [image_request(data) for data in files]
                runs[f"{clients} clients"] = partial(over_http, service, requests, 1, clients, seconds)
            groups = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
            forms = [form_request([("image.jpg", data) for data in group]) for group in groups]
            for clients in (1, 8):
                name = f"{clients} clients, {BATCH} images a request"
                runs[name] = partial(over_http, service, forms, BATCH, clients, seconds)
            found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}

            def measure(name: str) -> list[float]:
                result = runs[name]()
                console.print(name, {key: round(value, 3) for key, value in result.items()})
                found[name].append(result)
                return []

            in_both_orders(runs, measure)
    results = {name: {key: statistics.mean(each[key] for each in two) for key in two[0]} for name, two in found.items()}
    content = {"cores": os.cpu_count(), "seconds": seconds, "side": SIDE, "runs": results}
    write_json(out, content)
    text = load_table(content)
    print(text)


def in_process(folder: Path, files: Sequence[bytes], seconds: float, how: str) -> dict[str, float]:
    """In a process of its own, as the service is."""
    with get_context("spawn").Pool(1) as pool:
        return dict(pool.apply(score_in_process, (folder, list(files), seconds, how)))


def score_in_process(folder: Path, files: list[bytes], seconds: float, how: str) -> dict[str, float]:
    from discopatch.export.runtime import Runtime

    cores = os.cpu_count() or 1
    done = 0
    if how == "predict":
        runtime = Runtime.load(folder)
        runtime.predict(files[:4])
        start, used = time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            done += len(runtime.predict(files))
        return rates(done, time.perf_counter() - start, time.process_time() - used)
    runtime = Runtime.load(folder, threads=1)
    runtime.predict(files[:4], workers=1)
    start, used = time.perf_counter(), time.process_time()

    def work(number: int) -> int:
        count = 0
        while time.perf_counter() - start < seconds:
            runtime.predict([files[(number + count) % len(files)]], workers=1)
            count += 1
        return count

    with ThreadPoolExecutor(cores) as pool:
        done = sum(pool.map(work, range(cores)))
    return rates(done, time.perf_counter() - start, time.process_time() - used)


def rates(images: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {RATE: images / seconds, CPU: 1e3 * cpu_seconds / images}


def over_http(
    service: Service, requests: Sequence[bytes], images: int, clients: int, seconds: float
) -> dict[str, float]:
    return asyncio.run(send_all(service, requests, images, clients, seconds))


async def send_all(
    service: Service, requests: Sequence[bytes], images: int, clients: int, seconds: float
) -> dict[str, float]:
    """Every client asks, waits for the answer, and asks again; the first tenth of the time does not count."""
    begin = time.perf_counter()
    warm, end = begin + 0.1 * seconds, begin + 1.1 * seconds
    times: list[float] = []
    refused = 0
    used = {"client": 0.0, "service": 0.0}

    async def client(number: int) -> None:
        nonlocal refused
        connection = Connection(service)
        turn = number
        while time.perf_counter() < end:
            answer = await connection.ask(requests[turn % len(requests)])
            turn += 1
            if answer.status == 503:
                refused += 1
                await asyncio.sleep(0.2)
            elif answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {answer.body[:500]!r}")
            elif warm <= time.perf_counter() <= end:
                times.append(answer.seconds)
        await connection.close()

    async def clock() -> None:
        await asyncio.sleep(warm - time.perf_counter())
        start = time.process_time(), service.cpu_seconds
        await asyncio.sleep(end - time.perf_counter())
        used["client"], used["service"] = time.process_time() - start[0], service.cpu_seconds - start[1]

    await asyncio.gather(clock(), *(client(number) for number in range(clients)))
    cores = os.cpu_count() or 1
    p50, p95, p99 = np.percentile(times, (50, 95, 99)) * 1e3
    return {
        **rates(len(times) * images, seconds, used["service"]),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "refused": float(refused),
        CLIENT: used["client"] / seconds / cores,
    }


def load_table(content: dict[str, Any]) -> str:
    """Rows in the order of measuring; shares are those of the faster way in process."""
    runs = content["runs"]
    best = max(run[RATE] for name, run in runs.items() if name.startswith("in process"))
    lines = [
        "| | images a second | of in process | p50, ms | p95, ms | p99, ms | CPU an image, ms | clients' CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        times = [f"{run[each]:.0f}" if each in run else "" for each in ("p50", "p95", "p99")]
        client = f"{run[CLIENT]:.1%}" if CLIENT in run else ""
        shown = name.replace("1 clients", "1 client") if name.startswith("1 clients") else name
        cells = [shown, f"{run[RATE]:.1f}", f"{run[RATE] / best:.0%}", *times, f"{run[CPU]:.1f}", client]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TOKEN = "soak-" + "t" * 32
ALLOWED = f"Authorization: Bearer {TOKEN}\r\n"
MIB = 2**20
MAX_BYTES = 4 * MIB
BUSY = {503}  # always allowed: the queue is meant to be full at times


@dataclass
class Tally:
    """What came of all requests."""

    scored: int = 0  # images compared with predict
    different: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)  # "kind status"
    memory: list[tuple[float, float]] = field(default_factory=list)  # seconds, MiB

    def note(self, kind: str, status: int, allowed: set[int], body: bytes) -> bool:
        """Whether it is what was asked for."""
        self.statuses[f"{kind}: {status}"] += 1
        if status not in allowed | BUSY:
            self.unexpected.append(f"{kind}: {status} {body[:300]!r}")
        return status == 200

    def compare(self, kind: str, found: list[Any], wanted: list[float]) -> None:
        self.scored += len(wanted)
        if found != wanted:
            self.different.append(f"{kind}: {found} instead of {wanted}")


class Clients:
    """The kinds of clients, each a coroutine that does one thing once."""

    def __init__(self, service: Service, files: list[bytes], scores: list[float], tally: Tally, seed: int) -> None:
        self._service, self._files, self._scores, self._tally = service, files, scores, tally
        self._random = random.Random(seed)
        self._connection = Connection(service)

    async def single(self) -> None:
        place = self._random.randrange(len(self._files))
        answer = await self._connection.ask(image_request(self._files[place], headers=ALLOWED))
        if self._tally.note("single", answer.status, {200}, answer.body):
            found = [each.get("score") for each in answer.json["predictions"]]
            self._tally.compare("single", found, [self._scores[place]])

    async def form(self) -> None:
        places = self._random.choices(range(len(self._files)), k=self._random.randrange(2, 17))
        files = [(f"{place}.jpg", self._files[place]) for place in places]
        bad = self._random.random() < 0.3
        if bad:
            files.append(("bad.jpg", self._random.randbytes(2000)))
        answer = await self._connection.ask(form_request(files, headers=ALLOWED))
        if self._tally.note("form", answer.status, {200}, answer.body):
            found = [each.get("score") for each in answer.json["predictions"]]
            self._tally.compare("form", found[: len(places)], [self._scores[place] for place in places])
            if bad and found[-1] is not None:
                self._tally.unexpected.append("form: random bytes have a score")

    async def explain(self) -> None:
        place = self._random.randrange(len(self._files))
        path = f"/v1/detectors/{NAME}/explain"
        answer = await self._connection.ask(image_request(self._files[place], path=path, headers=ALLOWED))
        if self._tally.note("explain", answer.status, {200}, answer.body):
            self._tally.compare("explain", [answer.json["score"]], [self._scores[place]])

    async def infer(self) -> None:
        places = self._random.choices(range(len(self._files)), k=3)
        data = [base64.b64encode(self._files[place]).decode() for place in places]
        content = {"inputs": [{"name": "images", "datatype": "BYTES", "shape": [3], "data": data}]}
        request = json_request(f"/v2/models/{NAME}/infer", content, headers=ALLOWED)
        answer = await self._connection.ask(request)
        if self._tally.note("infer", answer.status, {200}, answer.body):
            found = answer.json["outputs"][0]["data"]
            self._tally.compare("infer", found, [self._scores[place] for place in places])

    async def bad(self) -> None:
        kind = self._random.choice(("cut", "empty", "bomb", "words"))
        data = {"cut": self._files[0][:-4000], "empty": b"", "bomb": bomb(), "words": b"no image" * 100}[kind]
        answer = await self._connection.ask(image_request(data, headers=ALLOWED))
        if self._tally.note(f"bad ({kind})", answer.status, {200}, answer.body):
            (found,) = answer.json["predictions"]
            if "error" not in found:
                self._tally.unexpected.append(f"bad ({kind}): {found}")

    async def huge(self) -> None:
        size = self._random.randrange(MAX_BYTES + 1, 3 * MAX_BYTES)
        connection = Connection(self._service)
        try:
            answer = await connection.ask(image_request(bytes(size), headers=ALLOWED))
            self._tally.note("huge", answer.status, {413}, answer.body)
        except (OSError, asyncio.IncompleteReadError):
            self._tally.statuses["huge: cut off"] += 1  # what was not read may take the answer with it
        finally:
            await connection.close()

    async def malformed(self) -> None:
        paths = ("/v1/detectors/none/score", SCORE, "/nothing", f"/v2/models/{NAME}/infer")
        path = self._random.choice(paths)
        answer = await self._connection.ask(json_request(path, {"no": "image"}, headers=ALLOWED))
        self._tally.note("malformed", answer.status, {404, 415, 422}, answer.body)

    async def wrong_token(self) -> None:
        headers = f"Authorization: Bearer {self._random.randbytes(16).hex()}\r\n"
        answer = await self._connection.ask(image_request(self._files[0], headers=headers))
        self._tally.note("wrong token", answer.status, {401}, answer.body)

    async def slow(self) -> None:
        """Too slow: a few bytes a second, until the service has had enough."""
        reader, writer = await asyncio.open_connection(self._service.host, self._service.port)
        request = image_request(self._files[0], headers=ALLOWED)
        try:
            for place in range(0, len(request), 50):
                writer.write(request[place : place + 50])
                await writer.drain()
                try:
                    async with asyncio.timeout(0.5):
                        head = await reader.readline()
                    status = int(head.split()[1]) if head else 0
                    self._tally.note("slow", status, {408, 0}, head)
                    return
                except TimeoutError:
                    pass
            self._tally.unexpected.append("slow: never refused")
        except OSError:
            self._tally.statuses["slow: cut off"] += 1
        finally:
            writer.close()

    async def abort(self) -> None:
        _, writer = await asyncio.open_connection(self._service.host, self._service.port)
        request = form_request([("a.jpg", self._files[0])] * 8, headers=ALLOWED)
        writer.write(request[: self._random.randrange(len(request))])
        await asyncio.sleep(self._random.random() * 0.2)
        writer.transport.abort()
        self._tally.statuses["abort: gone"] += 1

    async def impatient(self) -> None:
        """Sends everything, and leaves before the answer."""
        _, writer = await asyncio.open_connection(self._service.host, self._service.port)
        writer.write(form_request([("a.jpg", self._files[0])] * 4, headers=ALLOWED))
        await asyncio.sleep(0.02)
        writer.close()
        self._tally.statuses["impatient: gone"] += 1

    async def listen(self) -> None:
        reader, writer = await asyncio.open_connection(self._service.host, self._service.port)
        writer.write(f"GET /v1/detectors/{NAME}/events HTTP/1.1\r\nHost: localhost\r\n{ALLOWED}\r\n".encode())
        status = int((await reader.readline()).split()[1])
        self._tally.note("listen", status, {200}, b"")
        try:
            async with asyncio.timeout(self._random.random() * 5):
                while await reader.read(65536):
                    pass
        except TimeoutError:
            pass
        writer.close()


MIXTURE = {  # kind: (how many at once, seconds of pause at most)
    "single": (6, 0.05),
    "form": (2, 0.2),
    "explain": (1, 5.0),
    "infer": (1, 0.5),
    "bad": (2, 0.2),
    "huge": (1, 1.0),
    "malformed": (1, 0.2),
    "wrong_token": (1, 0.2),
    "slow": (4, 1.0),
    "abort": (2, 0.3),
    "impatient": (1, 1.0),
    "listen": (3, 1.0),
}


@app.command()
def soak(
    export: Annotated[
        Path | None, typer.Argument(help="An export; default: one of sample photos.", exists=True)
    ] = None,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = Path("docs/results/serve-soak.json"),
) -> None:
    """Asks, compares and samples; exits with 1 where anything differs or is not what was asked for."""
    from discopatch.export.runtime import Runtime

    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        folder = export or make_export(Path(place) / "export")
        files = [jpeg(image, side=SIDE) for image in camera(FILES, seed=2)]
        scores = Runtime.load(folder).predict(files).scores.tolist()
        tokens = Path(place) / "tokens"
        tokens.write_text(TOKEN)
        tokens.chmod(0o600)
        history = str(Path(place) / "history.sqlite")
        more = ("--history", history, "--keep", "2000", "--token-file", str(tokens), "--max-bytes", "4Mi")
        with served(folder, Path(place) / "log", *more) as service:
            asyncio.run(send_mixture(service, files, scores, tally, 60 * minutes))
        errors = [line for line in (Path(place) / "log").read_text().splitlines() if '"level": "error"' in line]
    content = summary(tally, minutes, errors)
    write_json(out, content)
    text = soak_table(content)
    print(text)
    if tally.different or tally.unexpected or errors:
        print(*tally.different[:5], *tally.unexpected[:20], *errors[:20], sep="\n", file=sys.stderr)
        raise typer.Exit(1)


async def send_mixture(service: Service, files: list[bytes], scores: list[float], tally: Tally, seconds: float) -> None:
    start = time.monotonic()

    async def repeat(kind: str, seed: int, pause: float) -> None:
        clients = Clients(service, files, scores, tally, seed)
        act: Callable[[], Awaitable[None]] = getattr(clients, kind)
        chance = random.Random(seed)
        while time.monotonic() - start < seconds:
            try:
                await act()
            except (OSError, asyncio.IncompleteReadError) as error:
                tally.unexpected.append(f"{kind}: {type(error).__name__} {error}")
            await asyncio.sleep(pause * chance.random())

    async def sample() -> None:
        while (now := time.monotonic() - start) < seconds:
            tally.memory.append((now, service.memory / MIB))
            await asyncio.sleep(min(2.0, seconds / 50))

    kinds = [(kind, pause) for kind, (count, pause) in MIXTURE.items() for _ in range(count)]
    await asyncio.gather(sample(), *(repeat(kind, seed, pause) for seed, (kind, pause) in enumerate(kinds)))


def bomb(side: int = 30_000) -> bytes:
    """A PNG of a few kilobytes that says that it has 900 million pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)

    header = chunk(b"IHDR", side.to_bytes(4) + side.to_bytes(4) + b"\x08\x02\0\0\0")
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


def summary(tally: Tally, minutes: float, errors: list[str]) -> dict[str, Any]:
    """Memory is that after a tenth of the time, when all that is kept has been made, and its growth from then on."""
    seconds, mebibytes = np.array(tally.memory).T
    later = seconds > 0.1 * seconds[-1]
    slope = float(np.polyfit(seconds[later] / 3600, mebibytes[later], 1)[0])
    return {
        "minutes": minutes,
        "requests": sum(tally.statuses.values()),
        "statuses": dict(sorted(tally.statuses.items())),
        "images compared": tally.scored,
        "different": len(tally.different),
        "unexpected": tally.unexpected[:100],
        "errors in the log": errors[:100],
        "memory, MiB": {
            "median, second tenth": float(np.median(mebibytes[later & (seconds < 0.2 * seconds[-1])])),
            "median, last tenth": float(np.median(mebibytes[seconds > 0.9 * seconds[-1]])),
            "most": float(mebibytes.max()),
            "growth an hour": slope,
        },
        "samples": [[round(when, 1), round(much, 1)] for when, much in tally.memory],
    }


def soak_table(content: dict[str, Any]) -> str:
    memory, statuses = content["memory, MiB"], content["statuses"]
    server_errors = sum(count for name, count in statuses.items() if name.rpartition(" ")[2].startswith("5"))
    rows = {
        "minutes": f"{content['minutes']:g}",
        "requests": f"{content['requests']:,}",
        "good images compared with `predict`": f"{content['images compared']:,}",
        "of these with another score, in any bit": f"{content['different']:,}",
        "answers that were not asked for": f"{len(content['unexpected']):,}",
        "answers with a status of 5xx": f"{server_errors:,}",
        "memory in the second and in the last tenth of the time": f"{memory['median, second tenth']:.0f} MiB, "
        f"{memory['median, last tenth']:.0f} MiB",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


if __name__ == "__main__":
    app()
