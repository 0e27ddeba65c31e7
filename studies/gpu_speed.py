"""The fast pass on a GPU: first whether it is right, then milliseconds for one image, images a second, and why.

python studies/gpu_speed.py --profile --out gpu.json           # about two minutes on a GPU
python studies/gpu_speed.py --only check,latency               # parts: see PARTS
python studies/gpu_speed.py --weights FILE.safetensors         # those of a file
python studies/gpu_speed.py --tiny --device cpu                # only that the script itself works

The tables of docs/performance.md. Without a GPU there are no kernels, and the plain pass is timed alone.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from common import in_both_orders, milliseconds
from discopatch.encoders import BASIC_KINDS, Kind
from discopatch.images import Pixels, Transform
from discopatch.model import Architecture, Networks, Weights
from discopatch.model.kernels import Recorded, cudnn_choice
from discopatch.pretrained import DEFAULT_WEIGHTS, PRETRAINED, load_pretrained
from discopatch.training import PRESETS, get_preset
from discopatch.utils import prefetch
from gpu_bench import (
    ALL_KINDS,
    BUFFERS,
    CASES,
    RESIDUAL_CASES,
    TINY_CASES,
    Case,
    GpuBench,
    Pass,
    Row,
    attempt,
    photo_like_noise,
)

TINY = Architecture(patch_size=32, hidden=(8, 16, 24), latent=8)


@torch.inference_mode()
def check(bench: GpuBench, case: Case) -> None:
    """Errors against the plain pass in float32, layer by layer, on images with the spectrum of photos."""
    if not bench.has_kernels:
        return
    seed = int(time.time())
    photos = photo_like_noise(6, bench.weights.transform.size, seed)
    pixels = torch.from_numpy(photos).to(bench.device)
    fast, plain = bench.fast(case), bench.plain(case)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = torch.cat([plain(image) for image in pixels.split(1)])
    found, again = (fast.run(pixels)[0] for _ in range(2))
    rows, begin = [], 0
    for number, count in enumerate(bench.weights.discriminator.architecture.hidden, start=1):
        means, logs = slice(begin, begin + count), slice(begin + count, begin + 2 * count)
        deviations = (expected[:, logs] / 2).exp()
        rows.append(error_row(f"layer {number}, means in deviations", found, expected, means, deviations))
        rows.append(error_row(f"layer {number}, log-variances", found, expected, logs))
        begin += 2 * count
    rows.append(error_row("logits", found, expected, slice(begin, None)))
    others = torch.cat([fast.run(image)[0] for image in pixels.split(1)]), fast.run(pixels)[0]
    rows += [error_row(name, other, found) for name, other in zip(("alone", "not recorded"), others, strict=True)]
    same = "the same twice" if torch.equal(found, again) else "NOT THE SAME TWICE"
    bench.note("check", f"Check: {case.name}, images of seed {seed}, {same}", rows)
    if bench.residual:
        bench.note("check", f"Check: {case.name}, all kinds of features", kind_rows(bench, case, photos))


def kind_rows(bench: GpuBench, case: Case, photos: Pixels) -> list[Row]:
    """Each kind of features of the encoder in bfloat16 against the plain pass in float32."""
    encoder = bench.encoder(case, precision="bfloat16", batch_size=4, kinds=ALL_KINDS)
    found = encoder.extract_pixels(photos)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = bench.extractor(case, ALL_KINDS)(torch.from_numpy(photos).to(bench.device))
    way = "the fast pass" if encoder.prefetched else "THE PLAIN PASS"
    rows = []
    for kind, values in expected.items():
        one, other = torch.from_numpy(getattr(found, kind)).float().flatten(1), values.cpu().float().flatten(1)
        rows.append(error_row(f"{kind} of {way}", one, other))
    return rows


def error_row(name: str, found: Tensor, expected: Tensor, part: slice = slice(None), unit: Tensor | float = 1) -> Row:
    difference = found[:, part] - expected[:, part]
    errors, relative = (difference / unit).abs(), difference.norm() / expected[:, part].norm()
    return {"of": name, "worst": float(errors.max()), "median": float(errors.median()), "relative": float(relative)}


def rates(bench: GpuBench, _: Case) -> None:
    """The two ceilings: matrix products, and copies on the device."""
    size, dtype = (8192, torch.bfloat16) if bench.cuda else (256, torch.float32)
    left, right = (torch.randn(size, size, device=bench.device, dtype=dtype) for _ in range(2))
    product = median(bench.one_by_one(lambda _: left @ right, [left], repeats=20))
    source = torch.empty((2**31 if bench.cuda else 2**20,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copy = median(bench.one_by_one(lambda _: target.copy_(source), [left], repeats=10))
    bench.matrix_rate = 2 * size**3 / product / 1e12
    title = f"Rates: a product of {size} x {size} x {size}, a copy of {len(source) / 2**30:.3g} GiB"
    bench.note("rates", title, [{"TFLOP/s": bench.matrix_rate, "copy, TB/s": 2 * len(source) / copy / 1e12}])


@torch.inference_mode()
def latency(bench: GpuBench, case: Case) -> None:
    """One image: on the device alone, and by the wall clock from an array in memory to features in memory."""
    images, plain, half = bench.buffers(1), bench.plain(case), bench.plain(case, half=True)
    arrays = [each.cpu().numpy() for each in images]
    on_device: dict[str, Callable[[], Pass]] = {"eager float32": lambda: plain}
    end_to_end: dict[str, Callable[[], Pass]] = {"float32": lambda: bench.encoder(case, batch_size=1).extract_pixels}
    if bench.cuda:
        on_device["eager bfloat16"] = lambda: half
        on_device["graph of eager bfloat16"] = lambda: graph_of(half, images[0])
        on_device["fast, its bare graph"] = lambda: graph_of(bench.fast(case).run, images[0])
    if bench.has_kernels:
        on_device["fast, not recorded"] = lambda: bench.fast(case).run
        options: dict[str, Any] = {"precision": "bfloat16", "batch_size": 1}
        end_to_end["bfloat16, fast"] = lambda: bench.encoder(case, **options).extract_pixels
        if bench.residual:
            every = "bfloat16, all kinds of features"
            end_to_end[every] = lambda: bench.encoder(case, **options, kinds=ALL_KINDS).extract_pixels
    for where, makers, inputs in (
        ("on the device", on_device, images),
        ("from an array to features", end_to_end, arrays),
    ):
        passes = working(makers, inputs[0])
        times = in_both_orders(passes, lambda name, of=passes, on=inputs: bench.one_by_one(of[name], on))  # type: ignore[misc]
        found = {name: milliseconds(seconds) for name, seconds in times.items()}
        rows = [{"pass": name, "ms": middle, "range": spread} for name, (middle, spread) in found.items()]
        bench.note("latency", f"Latency: {case.name}, one image, {where}", rows)


def working(makers: dict[str, Callable[[], Pass]], given: Any) -> dict[str, Pass]:
    """The passes, less those that cannot be made or fail on what is given."""

    def tried(make: Callable[[], Pass]) -> Pass:
        made = make()
        made(given)
        return made

    found = {name: attempt(name, partial(tried, make)) for name, make in makers.items()}
    return {name: made for name, made in found.items() if made is not None}


def graph_of(function: Pass, images: Tensor) -> Pass:
    """A plain CUDA graph, with its copy into place, as the fast pass has it."""
    stream = torch.cuda.Stream()
    recorded: Recorded[Tensor] = Recorded(function, images.clone(), stream=stream)

    def replay(images: Tensor) -> Any:
        recorded.given.copy_(images)
        return recorded.replay()

    return replay


@torch.inference_mode()
def throughput(bench: GpuBench, case: Case) -> None:
    """Images a second at several batch sizes, images on the device, with and without cuDNN's search."""
    for batch in case.batches:
        makers: dict[str, Callable[[], Pass]] = {"eager": lambda: bench.plain(case)}
        if bench.has_kernels:
            makers = {"fast": lambda batch=batch: graph_of(bench.fast(case).run, bench.buffers(batch)[0])}
        passes = working(makers, bench.buffers(batch)[0])
        rows = attempt(f"{case.name}, {batch}", partial(bench.speeds, case, batch, passes)) or []
        bench.note("throughput", f"Throughput: {case.name}, {batch} images at once", rows)


def stream(bench: GpuBench, case: Case) -> None:
    """Images a second from arrays in ordinary memory to features, uploads beside the passes; three rounds each."""
    if not bench.has_kernels:
        return
    kinds = {"logits and statistics": BASIC_KINDS, **({"all": ALL_KINDS} if bench.residual else {})}
    for batch in case.batches[len(case.batches) // 2 :]:
        rows = [
            attempt(f"{name}, {batch}", partial(stream_row, bench, case, batch, name, kinds[name])) for name in kinds
        ]
        bench.note("stream", f"Stream: {case.name}, from arrays to features", [row for row in rows if row])


def stream_row(bench: GpuBench, case: Case, batch: int, name: str, kinds: tuple[Kind, ...]) -> Row:
    encoder = bench.encoder(case, precision="bfloat16", batch_size=batch, kinds=kinds)
    pixels = photo_like_noise(4, bench.weights.transform.size, 0)
    shape = batch, *pixels.shape[1:]
    arrays = [np.ascontiguousarray(np.resize(np.roll(pixels, turn, 0), shape)) for turn in range(3)]
    arrays *= 20 if bench.cuda else 1

    def run() -> None:
        for later in prefetch(map(encoder.start, arrays), 1):
            later()

    run()
    speed = bench.speed(case, batch, [bench.seconds(run) / len(arrays) for _ in range(3)])
    return {"features": name, "pass": "fast" if encoder.prefetched else "PLAIN", **speed}


@torch.inference_mode()
def profile_kernels(bench: GpuBench, case: Case) -> None:
    """Where the time goes, kernel by kernel."""
    for batch in (1, case.typical) if bench.cuda else ():
        fast, buffers = bench.fast(case), bench.buffers(batch)
        fast.run(buffers[0])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            bench.seconds(lambda fast=fast, buffers=buffers: [fast.run(images) for images in buffers])  # type: ignore[misc]
        events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
        total = sum(event.self_device_time_total for event in events)
        rows = [
            {
                "kernel": event.key[:90].replace("|", "/"),
                "times a pass": event.count / BUFFERS,
                "us an image": event.self_device_time_total / BUFFERS / batch,
                "share": f"{event.self_device_time_total / total:.1%}",
            }
            for event in events[:22]
        ]
        bench.note("profile", f"Kernels: {case.name}, {batch} images at once", rows)


@torch.inference_mode()
def compare_compiled(bench: GpuBench, case: Case) -> None:
    """The plain pass under torch.compile: what one would have without the kernels. Takes a minute to compile."""
    if not bench.cuda:
        return
    plain = torch.compile(bench.plain(case, half=True), dynamic=False)
    with cudnn_choice(search=True):
        rows = bench.speeds(
            case,
            case.typical,
            {"torch.compile": plain, "fast": graph_of(bench.fast(case).run, bench.buffers(case.typical)[0])},
        )
    bench.note("compile", f"torch.compile of the plain pass: {case.name}, {case.typical} images at once", rows)


PARTS: dict[str, Callable[[GpuBench, Case], None]] = {
    "check": check,
    "rates": rates,
    "latency": latency,
    "throughput": throughput,
    "stream": stream,
    "profile": profile_kernels,
    "compile": compare_compiled,
}


def load_weights(name: str, *, tiny: bool) -> Weights:
    """Those of a file, pretrained ones, or new ones in the shape of a preset; tiny ones are of the same kind."""
    if Path(name).is_file():
        return Weights.load(name)
    if name in PRETRAINED and not tiny:
        return load_pretrained(name)
    architecture = get_preset(name).architecture if name in PRESETS or not tiny else TINY
    if tiny:
        hidden = (4, 6, 8, 14, 20) if architecture.kind == "inverted" else TINY.hidden
        architecture = replace(TINY, hidden=hidden, kind=architecture.kind, normalisation=architecture.normalisation)
    networks = Networks.from_seed(architecture, seed=1)
    return Weights(networks.discriminator.eval(), Transform(size=64) if tiny else Transform())


def main(
    weights: Annotated[str, typer.Option(help="A file, pretrained ones by name, or a preset with new ones.")] = (
        DEFAULT_WEIGHTS
    ),
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    only: Annotated[str, typer.Option(help="Parts, with commas between them.")] = "",
    profile: Annotated[bool, typer.Option("--profile", help="Also list the kernels by time.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A tiny network and few repeats, to try the script.")] = False,
    repeats: Annotated[int, typer.Option(help="Of each timing.")] = 40,
    budget: Annotated[float, typer.Option(help="Seconds after which no further part is begun.")] = 120,
    out: Annotated[Path | None, typer.Option(help="JSON with all tables.")] = None,
) -> None:
    """Runs the parts one after another; the error of one that fails is printed, and the next one runs."""
    loaded = load_weights(weights, tiny=tiny)
    loaded.discriminator.to(device).eval()
    residual = loaded.discriminator.architecture.kind != "plain"
    cases = TINY_CASES if tiny else RESIDUAL_CASES if residual else CASES
    bench = GpuBench(torch.device(device), loaded, cases, 4 if tiny else repeats, out)
    bench.tables["machine"] = {"torch": torch.__version__, "device": device}
    if bench.cuda:
        bench.tables["machine"] |= {"name": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
    print(bench.tables["machine"], flush=True)
    for name in only.split(",") if only else [part for part in PARTS if profile or part != "profile"]:
        for case in cases[:1] if name == "rates" else cases:
            if bench.elapsed > budget:
                print(f"\n{name}, {case.name}: left out, {bench.elapsed:.0f} s are over")
                continue
            attempt(f"{name}, {case.name}", partial(PARTS[name], bench, case))
            if bench.cuda:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
