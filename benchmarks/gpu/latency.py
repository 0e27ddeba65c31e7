"""Milliseconds for one image."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from discopatch.images import Pixels
from discopatch.model.fast.recorded import Recorded
from discopatch.scoring import Evidence, Scorer
from gpu.attempt import attempt
from gpu.bench import BUFFERS, Bench, Case
from gpu.measuring import Timed, in_both_orders, in_milliseconds, seconds
from gpu.plain import plain_pass


@torch.inference_mode()
def latency(bench: Bench) -> None:
    """One image: on the device alone, and from an array to evidence."""
    for case in bench.cases:
        rows = [{"pass": name, **in_milliseconds(found)} for name, found in passed(bench, case).items() if found]
        bench.note("latency", rows, f"Latency: {case.name}, one image, on the device")
        ends = attempt("ends", partial(ends_of, bench, case)) or {}
        rows = [{"from array to evidence": name, **in_milliseconds(found)} for name, found in ends.items()]
        bench.note("latency, end to end", rows, f"Latency: {case.name}, one image, from an array to evidence")


def passed(bench: Bench, case: Case) -> dict[str, list[float]]:
    """Seconds of every pass on the device."""
    ways = {name: way for name, way in passes(bench, case, 1).items() if way is not None}
    pictures = bench.buffers(1)
    return in_both_orders(ways, lambda name: attempt(name, partial(seconds, bench, ways[name], pictures)) or [])


def passes(bench: Bench, case: Case, batch: int) -> dict[str, Timed | None]:
    """Every way to pass a batch that lies on the device, each warm."""
    corners, network = bench.corners(case), bench.weights.discriminator.to(bench.device)
    full, half = (plain_pass(network, corners, half=half) for half in (False, True))
    made: dict[str, Callable[[], Timed]] = {"eager float32": lambda: full}
    if bench.cuda:
        made |= {"eager bfloat16": lambda: half, "graph of eager bfloat16": lambda: graph_of(bench, half, batch)}
    made |= {"fast, not recorded": lambda: bench.fast(case).run, "fast": lambda: bench.fast(case)}
    if bench.cuda:
        made["fast, cuDNN searched"] = lambda: bench.fast(case, search=True)
        made["fast, its bare graph"] = lambda: graph_of(bench, bench.fast(case).run, batch)
    return {name: attempt(name, partial(warm, bench, make, batch)) for name, make in made.items()}


def warm(bench: Bench, make: Callable[[], Timed], batch: int) -> Timed:
    """Made, and run a few times."""
    way = make()
    for pictures in bench.buffers(batch):
        way(pictures)
    return way


def graph_of(bench: Bench, function: Callable[[Tensor], Tensor], batch: int) -> Timed:
    """A plain CUDA graph, with its copy into place, as the fast pass has it."""
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    recorded = Recorded(function, bench.pictures(batch), stream=stream, pool=pool)

    def replay(pictures: Tensor) -> Tensor:
        recorded.given.copy_(pictures)
        return recorded.replay()

    return replay


def ends_of(bench: Bench, case: Case) -> dict[str, list[float]]:
    """Wall-clock seconds from an array in ordinary memory to evidence in ordinary memory."""
    patches = case.patches or 1
    scorer = Scorer(
        bench.weights,
        patches=patches,
        sampling="random" if case.patches else "dense",
        device=bench.device,
        batch_size=1,
    )
    fast = bench.fast(case)
    ways: dict[str, Callable[[Pixels], Evidence]] = {
        "float32": scorer.inspect_pixels,
        "fast": lambda pixels: fast.start(pixels)(),
    }
    arrays = [buffer.cpu().numpy() for buffer in bench.buffers(1)]

    def walls(name: str) -> list[float]:
        found = []
        for number in range(bench.repeats + 5):
            start = time.perf_counter()
            ways[name](arrays[number % BUFFERS])
            found.append(time.perf_counter() - start)
        return found[5:]

    return in_both_orders(ways, walls)
