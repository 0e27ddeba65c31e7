"""Whether the fast pass is right."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from discopatch.model.fast import Plain
from discopatch.model.fast.choose import relative_difference
from discopatch.scoring.fastpass import FastPass
from gpu.bench import Bench, fresh
from gpu.pictures import like_photos
from gpu.plain import plain_pass


@torch.inference_mode()
def check(bench: Bench) -> None:
    """Errors against the plain pass in float32, layer by layer, on pictures with the spectrum of photos."""
    seed = int(time.time())
    pixels = torch.from_numpy(like_photos(6, bench.size, seed)).to(bench.device)
    known = {"as given": bench.weights}
    if bench.size == 256:
        known["random"] = fresh("paper")
    for case in bench.cases:
        for name, weights in known.items():
            fast = bench.fast(case, weights=weights)
            expected = in_full_precision(plain_pass(weights.discriminator, bench.corners(case), half=False), pixels)
            rows = errors(fast, expected, torch.cat([*reversed(fast(pixels))], 1))
            with_stages = type(fast.stages).__name__
            bench.note("check", rows, f"Check: {case.name}, weights {name}, {with_stages}, pictures of seed {seed}")
            steady(fast, pixels, expected)


def in_full_precision(plain: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Picture by picture, without the matrix units' short float32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        return torch.cat([plain(picture) for picture in pixels.split(1)])


def errors(fast: FastPass, expected: Tensor, found: Tensor) -> list[dict[str, Any]]:
    """Of each layer's means, in its own standard deviations, of its log-variances, and of the logits."""
    rows, begin = [], 0
    channels = [fast.network.first.kernel.shape[1], *(each.kernel.shape[0] for each in fast.network.middle)]
    for number, count in enumerate(channels, start=1):
        means, logs = slice(begin, begin + count), slice(begin + count, begin + 2 * count)
        deviations = (expected[:, logs] / 2).exp()
        rows.append(error(f"layer {number}, means in deviations", found[:, means], expected[:, means], deviations))
        rows.append(error(f"layer {number}, log-variances", found[:, logs], expected[:, logs]))
        begin += 2 * count
    return [*rows, error("logits", found[:, begin:], expected[:, begin:])]


def error(what: str, found: Tensor, expected: Tensor, unit: Tensor | float = 1) -> dict[str, Any]:
    """The greatest and the middle difference in that unit, and the difference of all numbers together."""
    apart = ((found - expected) / unit).abs()
    worst, typical = float(apart.max()), float(apart.median())
    return {"what": what, "worst": worst, "typical": typical, "relative": relative_difference(found, expected)}


def steady(fast: FastPass, pixels: Tensor, expected: Tensor) -> None:
    """Whether the same pictures give the same numbers again, alone, unrecorded, and by the plain stages."""
    first, again = (torch.cat([*reversed(fast(pixels))], 1) for _ in range(2))
    others = {
        "alone": torch.cat([torch.cat([*reversed(fast(picture))], 1) for picture in pixels.split(1)]),
        "not recorded": fast.run(pixels),
        "plain stages": fast.network.run(pixels, fast.look, Plain()),
        "float32": expected,
    }
    apart = ", ".join(f"{name} {relative_difference(other, first):.2g}" for name, other in others.items())
    print(f"the same twice: {torch.equal(first, again)}; relative differences: {apart}", flush=True)
