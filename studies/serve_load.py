"""How many images a second the service scores, and how long each takes, beside the same runtime called in process.

python studies/serve_load.py --page docs/serving.md
python studies/serve_load.py camera-3-onnx --seconds 10 --out load.json      # an export of one's own

Images are JPEG files of 640 x 640. In process, files are decoded and scored by as many threads as there are cores, each
one image after the other, and by `predict`, the faster of which counts. Over HTTP, 1, 8, 32 and 128 clients send an
image a request, or 16 images a request, each over a connection of its own; all clients are in one process that does
nothing but send bytes and read answers, and whose share of the time of all cores is told, since it is taken from
the service. Rounds are measured forwards and then backwards, so that what drifts, drifts for all.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from common import in_both_orders, write_between
from discopatch.utils import write_json
from serving import Connection, Service, camera, form_request, image_request, jpeg, make_export, served

SIDE, FILES = 640, 48
CLIENTS = (1, 8, 32, 128)
BATCH = 16  # images of a request with several
OUT = Path("docs/results/serve-load.json")
RATE, CPU, CLIENT = "images a second", "CPU an image, ms", "clients' share of CPU"


def main(
    export: Annotated[
        Path | None, typer.Argument(help="An export; default: one of sample photos.", exists=True)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement, of which there are two.")] = 20,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = OUT,
    page: Annotated[Path | None, typer.Option(help="Page whose table is written anew.")] = None,
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
    text = table(content)
    print(text)
    if page is not None:
        write_between(page, "load", text)


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
    return asyncio.run(load(service, requests, images, clients, seconds))


async def load(
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


def table(content: dict[str, Any]) -> str:
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


if __name__ == "__main__":
    typer.run(main)
