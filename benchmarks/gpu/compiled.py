"""What torch.compile makes of the plain pass."""

from functools import partial
from typing import Any

import torch

from discopatch.model.fast.recorded import convolutions
from gpu.attempt import attempt
from gpu.bench import Bench, Case
from gpu.measuring import Timed, in_a_row, in_both_orders, operations, speed
from gpu.plain import plain_pass


@torch.inference_mode()
def compiled(bench: Bench) -> None:
    """The plain pass under torch.compile: what one would have without any of this. Takes a minute to compile."""
    if not bench.cuda:
        return
    for case in bench.cases[::-1]:
        if bench.elapsed > bench.budget:
            return
        rows = attempt(case.name, partial(compiled_of, bench, case))
        bench.note(
            "compile", rows or [], f"torch.compile of the plain pass: {case.name}, {case.typical} images at once"
        )


def compiled_of(bench: Bench, case: Case) -> list[dict[str, Any]]:
    """Beside the fast pass, in both orders."""
    network = bench.weights.discriminator.to(bench.device)
    plain = torch.compile(plain_pass(network, bench.corners(case), half=True), dynamic=False)
    fast, buffers = bench.fast(case), bench.buffers(case.typical)
    ways: dict[str, Timed] = {"torch.compile": plain, "fast": fast}
    with convolutions(search=True):
        for pictures in buffers:
            plain(pictures)
        times = in_both_orders(ways, lambda name: in_a_row(bench, ways[name], buffers))
    work = operations(fast)
    return [{"pass": name, **speed(bench, case.typical, work, found)} for name, found in times.items()]
