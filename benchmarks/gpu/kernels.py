"""Where the time goes, kernel by kernel."""

from functools import partial
from typing import Any

import torch

from gpu.attempt import attempt
from gpu.bench import BUFFERS, Bench, Case
from gpu.measuring import synchronise


def profiled(bench: Bench) -> None:
    """Kernels by time."""
    if not bench.cuda:
        return
    for case in bench.cases:
        for batch in (1, case.typical):
            rows = attempt(f"{case.name}, {batch}", partial(kernels_by_time, bench, case, batch)) or []
            bench.note("profile", rows, f"Kernels: {case.name}, {batch} images at once, microseconds a pass")


@torch.inference_mode()
def kernels_by_time(bench: Bench, case: Case, batch: int) -> list[dict[str, Any]]:
    """Of some replays."""
    fast, buffers, rounds = bench.fast(case), bench.buffers(batch), 5
    fast(buffers[0])
    synchronise(bench)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for number in range(rounds):
            fast(buffers[number % BUFFERS])
        synchronise(bench)
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    return [
        {
            "kernel": event.key[:90].replace("|", "/"),
            "times a pass": event.count / rounds,
            "us a pass": event.self_device_time_total / rounds,
            "share": f"{event.self_device_time_total / total:.1%}",
        }
        for event in events[:22]
    ]
