"""The fast pass on a GPU: first whether it is right, then milliseconds for one image, images a second, and why.

python benchmarks/gpu_speed.py --profile --out gpu.json           # about two minutes on a GPU
python benchmarks/gpu_speed.py --only check,latency               # parts: see PARTS
python benchmarks/gpu_speed.py --tiny --device cpu                # only that the script itself works
"""

import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from discopatch.images import Pixels, Transform
from discopatch.model import Architecture, Discriminator, Pair, find_preset
from discopatch.model.fast import Plain
from discopatch.model.fast.network import convolve
from discopatch.model.fast.recorded import Recorded, convolutions
from discopatch.model.fast.stages import Affine
from discopatch.model.weights import Weights
from discopatch.patches import cut, scoring_corners, to_unit
from discopatch.scoring import Evidence, Scorer
from discopatch.scoring.fastpass import FastPass
from discopatch.weights import DEFAULT, RELEASED, released

PARTS = ("check", "rates", "latency", "throughput", "stages", "stream", "profile", "compile")
BUFFERS = 4  # inputs take turns, or the cache would be measured
Timed = Callable[[Tensor], object]


@dataclass(frozen=True)
class Case:
    """A way to look at pictures."""

    name: str
    patches: int | None
    batches: tuple[int, ...]
    typical: int  # the batch size at which stages are looked at


@dataclass
class Bench:
    """What all parts share."""

    device: torch.device
    weights: Weights
    cases: tuple[Case, ...]
    repeats: int
    budget: float
    out: Path | None
    started: float = field(default_factory=time.perf_counter)
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU to be measured."""
        return self.device.type == "cuda"

    @property
    def size(self) -> int:
        """Side of a picture."""
        return self.weights.transform.size

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 takes minutes a picture on some CPUs."""
        return torch.bfloat16 if self.cuda else torch.float32

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def corners(self, case: Case) -> Tensor | None:
        """Where pictures are looked at."""
        if case.patches is None:
            return None
        patch_size = self.weights.discriminator.architecture.patch_size
        places = scoring_corners("random", case.patches, size=self.size, patch_size=patch_size, seed=0)
        return places.to(self.device)

    def fast(
        self, case: Case, *, search: bool = False, batch_size: int = 1, weights: Weights | None = None
    ) -> FastPass:
        """The pass that is measured."""
        network = (weights or self.weights).discriminator.to(self.device)
        corners = self.corners(case)
        return FastPass(network, corners, size=self.size, dtype=self.dtype, batch_size=batch_size, search=search)

    def pictures(self, batch: int, *, seed: int = 0) -> Tensor:
        """Random ones on the device: what they show does not matter for the time, as long as they are not flat."""
        generator = torch.Generator(self.device).manual_seed(seed)
        shape = batch, self.size, self.size, 3
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8, device=self.device)

    def buffers(self, batch: int) -> list[Tensor]:
        """Several of them."""
        return [self.pictures(batch, seed=seed) for seed in range(BUFFERS)]

    def note(self, part: str, rows: list[dict[str, Any]], title: str) -> None:
        """Prints a Markdown table and keeps it; the file is written anew each time, in case there is no next one."""
        self.found.setdefault(part, []).extend(rows)
        print(f"\n## {title}\n")
        if rows:
            names = list(rows[0])
            print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
            for row in rows:
                print(f"| {' | '.join(shown(row[name]) for name in names)} |")
        print(f"({self.elapsed:.0f} s)", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.found, indent=1, default=str), encoding="utf-8")


def main(
    weights: Annotated[str, typer.Option(help="Released ones by name, or a preset with new ones.")] = DEFAULT,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    only: Annotated[str, typer.Option(help="Parts, with commas between them.")] = "",
    profile: Annotated[bool, typer.Option("--profile", help="Also list the kernels by time.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny network and few repeats, to try the script.")] = False,
    repeats: Annotated[int, typer.Option(help="Of each timing.")] = 40,
    budget: Annotated[float, typer.Option(help="Seconds after which no further part is begun.")] = 120,
    out: Annotated[Path | None, typer.Option(help="JSON with all figures.")] = None,
) -> None:
    """Runs the parts one after another; one that fails is told and the next one runs."""
    bench = prepared(weights, torch.device(device), tiny=tiny, repeats=4 if tiny else repeats, budget=budget, out=out)
    bench.found["machine"] = machine(bench)
    print(bench.found["machine"], flush=True)
    parts = dict(zip(PARTS, (check, rates, latency, throughput, stages, stream, profiled, compiled), strict=True))
    chosen = only.split(",") if only else [part for part in PARTS if profile or part != "profile"]
    for name in chosen:
        if bench.elapsed > budget:
            print(f"\n{name}: left out, {bench.elapsed:.0f} s are over")
            continue
        attempt(name, partial(parts[name], bench))


def attempt(name: str, work: Callable[[], object]) -> Any:
    """What comes of it, or None and the reason printed: a machine is lent for minutes, the next part should run."""
    try:
        return work()
    except Exception:
        print(f"\n!! {name} failed\n{traceback.format_exc()}", flush=True)
        return None


def prepared(name: str, device: torch.device, *, tiny: bool, repeats: int, budget: float, out: Path | None) -> Bench:
    """The released weights on pictures of their size, or a tiny network."""
    if tiny:
        architecture = Architecture(patch_size=32, hidden=(8, 16, 24), latent=8)
        weights = Weights(Pair.from_seed(architecture, 0).discriminator.eval(), Transform(size=64))
        cases = (Case("3 patches", 3, (1, 2), 2), Case("dense", None, (1, 2), 2))
    else:
        weights = released(name) if name in RELEASED else fresh(name)
        cases = (Case("64 patches", 64, (4, 8, 16, 32, 64), 16), Case("dense", None, (16, 32, 64, 128, 256, 512), 64))
    return Bench(device, weights, cases, repeats, budget, out)


def fresh(preset: str) -> Weights:
    """New weights of that preset."""
    return Weights(Pair.from_seed(find_preset(preset).architecture, seed=1).discriminator.eval(), Transform())


def machine(bench: Bench) -> dict[str, Any]:
    """What everything depends on."""
    found: dict[str, Any] = {"torch": torch.__version__, "device": str(bench.device)}
    if bench.cuda:
        found |= {"name": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
        found["triton"] = attempt("triton", lambda: __import__("triton").__version__)
    return found


# The plain pass, as the scorer has it


def plain_pass(network: Discriminator, corners: Tensor | None, *, half: bool) -> Callable[[Tensor], Tensor]:
    """Pictures -> statistics and logits side by side, with autocast to bfloat16 or all in float32."""

    def see(pictures: Tensor) -> Tensor:
        group, patches = 1, pictures.permute(0, 3, 1, 2)
        if corners is not None:
            group = len(corners)
            patches = cut(pictures, corners.expand(len(pictures), -1, -1), network.architecture.patch_size)
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=half):
            found = network.inspect(to_unit(patches), group)
        return torch.cat((found.statistics, found.logits.float().reshape(len(pictures), -1)), 1)

    return see


# Parts


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
    with torch.backends.cudnn.flags(allow_tf32=False):
        return torch.cat([plain(picture) for picture in pixels.split(1)])


def errors(fast: FastPass, expected: Tensor, found: Tensor) -> list[dict[str, Any]]:
    """Of each layer, in its own standard deviations, and of the logits."""
    rows, begin = [], 0
    channels = [fast.network.first.kernel.shape[1], *(each.kernel.shape[0] for each in fast.network.middle)]
    for number, count in enumerate(channels, start=1):
        means, logs = slice(begin, begin + count), slice(begin + count, begin + 2 * count)
        deviation = (expected[:, logs] / 2).exp()
        apart = ((found - expected)[:, means] / deviation).abs()
        log_apart = (found - expected)[:, logs].abs()
        rows.append(
            {
                "what": f"layer {number}",
                "mean, worst in deviations": float(apart.max()),
                "mean, typical": float(apart.median()),
                "log-variance, worst": float(log_apart.max()),
                "log-variance, typical": float(log_apart.median()),
                "relative": relative(found[:, begin : begin + 2 * count], expected[:, begin : begin + 2 * count]),
            }
        )
        begin += 2 * count
    apart = (found - expected)[:, begin:].abs()
    logits = {"mean, worst in deviations": float("nan"), "mean, typical": float("nan")}
    logits |= {"log-variance, worst": float(apart.max()), "log-variance, typical": float(apart.median())}
    return [*rows, {"what": "logits (absolute)", **logits, "relative": relative(found[:, begin:], expected[:, begin:])}]


def steady(fast: FastPass, pixels: Tensor, expected: Tensor) -> None:
    """Whether the same pictures give the same numbers again, alone, unrecorded, and by the plain stages."""
    first, again = (torch.cat([*reversed(fast(pixels))], 1) for _ in range(2))
    others = {
        "alone": torch.cat([torch.cat([*reversed(fast(picture))], 1) for picture in pixels.split(1)]),
        "not recorded": fast.run(pixels),
        "plain stages": fast.network.run(pixels, fast.look, Plain()),
        "float32": expected,
    }
    apart = ", ".join(f"{name} {relative(other, first):.2g}" for name, other in others.items())
    print(f"the same twice: {torch.equal(first, again)}; relative differences: {apart}", flush=True)


def rates(bench: Bench) -> None:
    """The two ceilings: matrix products, and copies on the device."""
    size = 8192 if bench.cuda else 256
    left, right = (torch.randn(size, size, device=bench.device, dtype=bench.dtype) for _ in range(2))
    product = statistics.median(seconds(bench, lambda _: left @ right, [left], repeats=20))
    source = torch.empty((2**31 if bench.cuda else 2**20,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copy = statistics.median(seconds(bench, lambda _: target.copy_(source), [left], repeats=10))
    row = {"TFLOP/s": 2 * size**3 / product / 1e12, "copy, TB/s": 2 * len(source) / copy / 1e12}
    bench.note("rates", [row], f"Rates: a product of {size} x {size} x {size}, a copy of {len(source) / 2**30:.3g} GiB")


@torch.inference_mode()
def latency(bench: Bench) -> None:
    """One image: on the device alone, and from an array to evidence."""
    for case in bench.cases:
        ways = {name: way for name, way in passes(bench, case, 1).items() if way is not None}
        pictures = bench.buffers(1)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for name in [*ways, *reversed(ways)]:
            times[name] += attempt(name, partial(seconds, bench, ways[name], pictures)) or []
        rows = [{"pass": name, **in_milliseconds(found)} for name, found in times.items() if found]
        bench.note("latency", rows, f"Latency: {case.name}, one image, on the device")
        ends = attempt("ends", partial(ends_of, bench, case)) or {}
        rows = [{"from array to evidence": name, **in_milliseconds(found)} for name, found in ends.items()]
        bench.note("latency, end to end", rows, f"Latency: {case.name}, one image, from an array to evidence")


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
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name in [*ways, *reversed(ways)]:
        for number in range(bench.repeats + 5):
            start = time.perf_counter()
            ways[name](arrays[number % BUFFERS])
            if number >= 5:
                times[name].append(time.perf_counter() - start)
    return times


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
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name in [*ways, *reversed(ways)]:
        times[name] += in_a_row(bench, ways[name], buffers)
    return [{"pass": name, **speed(bench, batch, work, found)} for name, found in times.items()]


def speed(bench: Bench, batch: int, work: float, found: list[float]) -> dict[str, Any]:
    """Figures of a batch's seconds."""
    middle = statistics.median(found)
    rate = bench.found.get("rates", [{}])[0].get("TFLOP/s", float("nan"))
    return {
        "batch": batch,
        "ms": middle * 1e3,
        "spread": f"{min(found) * 1e3:.3g}-{max(found) * 1e3:.3g}",
        "images/s": batch / middle,
        "TFLOP/s": work * batch / middle / 1e12,
        "share of matrix rate": f"{work * batch / middle / 1e12 / rate:.1%}",
    }


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
    times: dict[str, list[float]] = {"torch.compile": [], "fast": []}
    ways: dict[str, Timed] = {"torch.compile": plain, "fast": fast}
    with convolutions(search=True):
        for pictures in buffers:
            plain(pictures)
        for name in [*ways, *reversed(ways)]:
            times[name] += in_a_row(bench, ways[name], buffers)
    work = operations(fast)
    return [{"pass": name, **speed(bench, case.typical, work, found)} for name, found in times.items()]


# Measuring


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


def in_milliseconds(found: list[float]) -> dict[str, Any]:
    """Median and spread."""
    return {"ms": statistics.median(found) * 1e3, "spread": f"{min(found) * 1e3:.3g}-{max(found) * 1e3:.3g}"}


def relative(found: Tensor, expected: Tensor) -> float:
    """Difference of whole tables of numbers."""
    return float((found - expected).norm() / expected.norm())


def shown(value: Any) -> str:
    """Three digits are enough, and thousands in full."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def like_photos(count: int, size: int, seed: int) -> NDArray[np.uint8]:
    """Noise whose amplitude falls with frequency, as in photos; every other one bright and dim, as in fog."""
    rng = np.random.default_rng(seed)
    across = np.fft.fftfreq(size)
    fall = 1 / np.maximum(np.hypot(across[:, None], across[None]), 1 / size)
    pictures = []
    for number in range(count):
        waves = np.fft.fft2(rng.normal(size=(3, size, size))) * fall
        values = np.fft.ifft2(waves).real.transpose(1, 2, 0)
        values = (values - values.mean()) / values.std()
        values = 200 + 6 * values if number % 2 else 120 + 50 * values
        pictures.append(np.clip(values.round(), 0, 255).astype(np.uint8))
    return np.stack(pictures)


if __name__ == "__main__":
    typer.run(main)
