"""Where the time goes, stage by stage."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from discopatch.model.fast import Plain
from discopatch.model.fast.network import convolve
from discopatch.model.fast.recorded import Recorded
from discopatch.model.fast.stages import Affine
from gpu.attempt import attempt
from gpu.bench import Bench, Case
from gpu.measuring import Timed, release, seconds


@torch.inference_mode()
def stages(bench: Bench) -> None:
    """Where the time goes, stage by stage, and what other block sizes would make of it."""
    for case in bench.cases:
        rows = list(stage_rows(bench, case))
        bench.note("stages", rows, f"Stages: {case.name}, {case.typical} images at once, each stage alone")
        release(bench)


def stage_rows(bench: Bench, case: Case) -> Iterator[dict[str, Any]]:
    """Microseconds an image, and what that is in bytes or operations a second."""
    fast, pictures, batch = bench.fast(case), bench.pictures(case.typical), case.typical
    network, look, known = fast.network, fast.look, fast.stages
    found = torch.empty(batch, fast.width, device=bench.device)
    row = partial(stage_row, bench, pictures)

    for name, other in variants(known, "moments"):
        yield row(f"moments {name}", partial(other.moments, look=look), moved=pictures.numel())
    moments = known.moments(pictures, look)
    yield row("forms", lambda _: moments.flatten(1) @ network.first.forms)
    sums = (moments.flatten(1) @ network.first.forms).view(batch, 1, 2, -1)
    yield row("settle", lambda _: known.settle(sums, None, network.first.norm, found, pixels=look.pixels(1)))
    affine = some_affine(batch, sums.shape[3], bench.device)
    x = known.first(pictures, look, network.first, affine, network.dtype)
    for name, other in variants(known, "first"):
        run = partial(other.first, look=look, layer=network.first, affine=affine, dtype=network.dtype)
        yield row(f"first {name}", run, moved=x.numel() * x.element_size())
    for number, layer in enumerate(network.middle, start=2):
        before, x = x, convolve(x, layer.kernel)
        work, moved = 2 * x.numel() * layer.kernel[0].numel(), x.numel() * x.element_size()
        affine = some_affine(batch, x.shape[3], bench.device)
        for search in (False, True):
            again, name = partial(once_more, convolve, before, layer.kernel), ", searched" if search else ""
            yield row(f"convolution {number}{name}", again, operations=work, search=search)
        for name, other in variants(known, "sums"):
            yield row(f"sums {number} {name}", partial(once_more, other.sums, x, batch), moved=moved)
        for name, other in variants(known, "activate"):
            yield row(f"activate {number} {name}", partial(once_more, other.activate, x, affine), moved=2 * moved)
    judge = partial(known.judge, x, affine, network.judge, found, first=2 * network.channels)
    yield row("judge", partial(once_more, judge), moved=x.numel() * x.element_size())


def once_more(work: Callable[..., object], *args: object) -> object:
    """Of a stage that takes no pictures; they come last and are left."""
    return work(*args[:-1])


def stage_row(
    bench: Bench,
    pictures: Tensor,
    name: str,
    work: Timed,
    *,
    moved: float = 0,
    operations: float = 0,
    search: bool = False,
) -> dict[str, Any]:
    """A stage ten times in a row, recorded: alone it would be shorter than its launch."""
    times = attempt(name, partial(ten_times, bench, work, pictures, search=search))
    middle = statistics.median(times) if times else float("nan")
    return {
        "stage": name,
        "us an image": middle / len(pictures) * 1e6,
        "TB/s": moved / middle / 1e12,
        "TFLOP/s": operations / middle / 1e12,
    }


def ten_times(bench: Bench, work: Timed, pictures: Tensor, *, search: bool) -> list[float]:
    """Seconds of one of them."""

    def many(given: Tensor) -> Tensor:
        for _ in range(10):
            work(given)
        return given

    if not bench.cuda:
        return [taken / 10 for taken in seconds(bench, many, [pictures], repeats=2)]
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    recorded = Recorded(many, pictures, stream=stream, pool=pool, search=search)
    return [taken / 10 for taken in seconds(bench, lambda _: recorded.replay(), [pictures], repeats=6)]


def variants(known: Any, stage: str) -> Iterator[tuple[str, Any]]:
    """The stages with other blocks, if they are kernels at all."""
    if isinstance(known, Plain):
        yield "", known
        return
    from discopatch.model.fast.launch import BLOCKS, Block, Kernels

    others = {
        "moments": [Block(256, 32, 4), Block(128, 32, 4)],
        "first": [Block(128, 128, 8), Block(128, 64, 4), Block(64, 64, 4), Block(128, 128, 4)],
        "sums": [Block(16, 128, 4), Block(64, 128, 8), Block(32, 256, 8)],
        "activate": [Block(32, 128, 4), Block(32, 256, 4), Block(64, 256, 8)],
    }
    for block in (BLOCKS[stage], *others[stage]):
        mark = ", as it is" if block == BLOCKS[stage] else ""
        yield f"({block.pixels} x {block.channels}, {block.warps} warps{mark})", Kernels({**BLOCKS, stage: block})


def some_affine(images: int, channels: int, device: torch.device) -> Affine:
    """One that never makes zeros of activations, however often it is applied: zeros would be faster."""
    return Affine(torch.ones(images, channels, device=device), torch.full((images, channels), 0.1, device=device))
