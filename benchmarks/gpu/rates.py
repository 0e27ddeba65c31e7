"""What the device can do at best."""

import statistics

import torch

from gpu.bench import Bench
from gpu.measuring import seconds


def rates(bench: Bench) -> None:
    """The two ceilings: matrix products, and copies on the device."""
    size = 8192 if bench.cuda else 256
    left, right = (torch.randn(size, size, device=bench.device, dtype=bench.dtype) for _ in range(2))
    product = statistics.median(seconds(bench, lambda _: left @ right, [left], repeats=20))
    source = torch.empty((2**31 if bench.cuda else 2**20,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copy = statistics.median(seconds(bench, lambda _: target.copy_(source), [left], repeats=10))
    bench.matrix_rate = 2 * size**3 / product / 1e12
    row = {"TFLOP/s": bench.matrix_rate, "copy, TB/s": 2 * len(source) / copy / 1e12}
    bench.note("rates", [row], f"Rates: a product of {size} x {size} x {size}, a copy of {len(source) / 2**30:.3g} GiB")
