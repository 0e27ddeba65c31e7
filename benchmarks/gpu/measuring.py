"""Seconds, by the device's clock, and figures made of them."""

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from discopatch.scoring.fastpass import FastPass
from gpu.bench import Bench

Timed = Callable[[Tensor], object]


def seconds(bench: Bench, work: Timed, inputs: list[Tensor], *, repeats: int | None = None) -> list[float]:
    """Of each of so many runs, by events on the device, after some to get warm."""
    found = []
    for number in range(3 + (repeats or bench.repeats)):
        taken = timed(bench, partial(work, inputs[number % len(inputs)]))
        found += [taken] if number >= 3 else []
    return found


def in_a_row(bench: Bench, work: Timed, inputs: list[Tensor]) -> list[float]:
    """Seconds of one run among many that follow each other without waiting; three such rows of about 50 ms."""
    once = timed(bench, partial(work, inputs[0]))
    rounds = max(2, min(200, int(0.05 / max(once, 1e-5))))

    def row() -> None:
        for number in range(rounds):
            work(inputs[number % len(inputs)])

    return [timed(bench, row) / rounds for _ in range(3)]


def in_both_orders(names: Iterable[str], measure: Callable[[str], list[float]]) -> dict[str, list[float]]:
    """What was measured under each name, forwards and then backwards: what drifts drifts for all."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in [*times, *reversed(times)]:
        times[name] += measure(name)
    return times


def timed(bench: Bench, work: Callable[[], object]) -> float:
    """Seconds, by the device's clock where it has one."""
    if not bench.cuda:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    synchronise(bench)
    begin.record()
    work()
    end.record()
    synchronise(bench)
    return float(begin.elapsed_time(end)) / 1e3


def synchronise(bench: Bench) -> None:
    """Waits for the GPU."""
    if bench.cuda:
        torch.cuda.synchronize()


def release(bench: Bench) -> None:
    """Gives back the memory of what was measured."""
    if bench.cuda:
        torch.cuda.empty_cache()


def operations(fast: FastPass) -> float:
    """Of an image's convolutions and of its judgement, a multiplication and an addition counted as two."""
    network, look = fast.network, fast.look
    total = 2.0 * look.pixels(1) * 27 * network.first.kernel.shape[1]
    for number, layer in enumerate(network.middle, start=2):
        total += 2.0 * look.pixels(number) * layer.kernel.numel()
    return total + 2.0 * network.places(look) * network.judge.weight.numel()


def speed(bench: Bench, batch: int, work: float, found: list[float]) -> dict[str, Any]:
    """Figures of a batch's seconds."""
    middle = statistics.median(found)
    return {
        "batch": batch,
        "ms": middle * 1e3,
        "spread": f"{min(found) * 1e3:.3g}-{max(found) * 1e3:.3g}",
        "images/s": batch / middle,
        "TFLOP/s": work * batch / middle / 1e12,
        "share of matrix rate": f"{work * batch / middle / 1e12 / bench.matrix_rate:.1%}",
    }


def in_milliseconds(found: list[float]) -> dict[str, Any]:
    """Median and spread."""
    return {"ms": statistics.median(found) * 1e3, "spread": f"{min(found) * 1e3:.3g}-{max(found) * 1e3:.3g}"}
