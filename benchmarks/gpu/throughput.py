"""Images a second."""

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from discopatch.images import Pixels
from discopatch.scoring.fastpass import FastPass
from gpu.attempt import attempt
from gpu.bench import Bench, Case
from gpu.measuring import in_a_row, in_both_orders, operations, release, speed
from gpu.pictures import like_photos


@torch.inference_mode()
def throughput(bench: Bench) -> None:
    """Images a second at several batch sizes, pictures on the device."""
    for case in bench.cases:
        for batch in case.batches:
            if bench.elapsed > bench.budget:
                return
            rows = attempt(f"{case.name}, {batch}", partial(throughput_of, bench, case, batch)) or []
            bench.note("throughput", rows, f"Throughput: {case.name}, {batch} images at once")
            release(bench)


def throughput_of(bench: Bench, case: Case, batch: int) -> list[dict[str, Any]]:
    """With the convolutions that cuDNN proposes, and those that it finds fastest."""
    ways: dict[str, FastPass] = {"fast": bench.fast(case)}
    if bench.cuda and batch == case.typical:  # the search takes seconds for each size
        ways["fast, cuDNN searched"] = bench.fast(case, search=True)
    work, buffers = operations(next(iter(ways.values()))), bench.buffers(batch)
    for way in ways.values():
        for pictures in buffers:
            way(pictures)
    times = in_both_orders(ways, lambda name: in_a_row(bench, ways[name], buffers))
    return [{"pass": name, **speed(bench, batch, work, found)} for name, found in times.items()]


def stream(bench: Bench) -> None:
    """Images a second from arrays in ordinary memory to evidence, uploads beside the passes."""
    some = like_photos(4, bench.size, 0)
    for case in bench.cases:
        batches = case.batches[len(case.batches) // 2 :]
        rows = [attempt(f"{case.name}, {batch}", partial(streamed, bench, case, batch, some)) for batch in batches]
        bench.note("stream", [row for row in rows if row], f"Stream: {case.name}, from arrays to evidence")
        release(bench)


def streamed(bench: Bench, case: Case, batch: int, some: Pixels) -> dict[str, Any]:
    """Three rounds of a third of a second."""
    fast = bench.fast(case, batch_size=batch)
    arrays = [np.ascontiguousarray(np.resize(np.roll(some, turn, 0), (batch, *some.shape[1:]))) for turn in range(3)]
    list(fast.stream(arrays))
    rounds = max(6, min(300, int(0.3 / one_round(fast, arrays, 6))))
    found = [one_round(fast, arrays, rounds) for _ in range(3)]
    return {"case": case.name, **speed(bench, batch, operations(fast), found)}


def one_round(fast: FastPass, arrays: list[Pixels], rounds: int) -> float:
    """Seconds a batch."""
    start = time.perf_counter()
    for _ in fast.stream(arrays[number % len(arrays)] for number in range(rounds)):
        pass
    return (time.perf_counter() - start) / rounds
