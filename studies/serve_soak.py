"""Half an hour of good, bad, huge and slow requests: is memory flat, is every good image scored as `predict` scores it?

python studies/serve_soak.py --minutes 30 --page docs/serving.md

Clients of several kinds ask a service at the same time, again and again: single images, forms of several, explanations,
inference requests, files that are no images, bombs, bodies beyond the limits, bodies that come drop by drop, uploads
that are broken off, wrong tokens, readers of events who leave. Each kind has the answers that it may get; whatever else
comes is listed, as is every score that differs from that of `predict` in any bit. Memory is sampled all the time.
"""

import asyncio
import base64
import random
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from common import write_between
from discopatch.utils import write_json
from serving import (
    NAME,
    SCORE,
    Connection,
    Service,
    camera,
    form_request,
    image_request,
    jpeg,
    json_request,
    make_export,
    served,
)

SIDE, FILES = 640, 48
TOKEN = "soak-" + "t" * 32
ALLOWED = f"Authorization: Bearer {TOKEN}\r\n"
MIB = 2**20
MAX_BYTES = 4 * MIB
OUT, FIGURE = Path("docs/results/serve-soak.json"), Path("docs/images/serve-soak")
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


def main(
    export: Annotated[
        Path | None, typer.Argument(help="An export; default: one of sample photos.", exists=True)
    ] = None,
    minutes: Annotated[float, typer.Option(help="How long.")] = 30,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = OUT,
    figure: Annotated[Path, typer.Option(help="Figure of the memory, without its ending.")] = FIGURE,
    page: Annotated[Path | None, typer.Option(help="Page whose table is written anew.")] = None,
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
            asyncio.run(soak(service, files, scores, tally, 60 * minutes))
        errors = [line for line in (Path(place) / "log").read_text().splitlines() if '"level": "error"' in line]
    content = summary(tally, minutes, errors)
    write_json(out, content)
    draw(tally.memory, figure)
    text = table(content)
    print(text)
    if page is not None:
        write_between(page, "soak", text)
    if tally.different or tally.unexpected or errors:
        print(*tally.different[:5], *tally.unexpected[:20], *errors[:20], sep="\n", file=sys.stderr)
        raise typer.Exit(1)


async def soak(service: Service, files: list[bytes], scores: list[float], tally: Tally, seconds: float) -> None:
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


def table(content: dict[str, Any]) -> str:
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


def draw(memory: list[tuple[float, float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    from discopatch.bench.plots.style import save_figure

    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    minutes, mebibytes = [when / 60 for when, _ in memory], [much for _, much in memory]
    axes.plot(minutes, mebibytes, linewidth=1)
    axes.set(xlabel="minutes", ylabel="memory of the service, MiB", ylim=(0, 1.15 * max(mebibytes)))
    save_figure(figure, path, ["png"])


if __name__ == "__main__":
    typer.run(main)
