"""Milliseconds from pixels to score of one image on a CPU: every way that we have, and networks that others use.

python benchmarks/score_speed.py                       # two threads
python benchmarks/score_speed.py --threads 4 --repeats 40 --out speed.json --figure speed
python benchmarks/score_speed.py camera-3 camera-3-onnx camera-3-onnx-int8 --heat     # only these, with the heatmap

Every way has a process of its own, since the threads of two runtimes would wait for each other; they take turns,
forwards and then backwards, so that what disturbs one disturbs all, and the median of each counts. Rivals are bare
networks in onnxruntime, without any score, with random weights: the values do not change the time. openvino is timed
where it is installed.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

Call = Callable[[], object]
REFERENCES = {"times 64 patches": "natural-v1, torch, 64 patches", "times ResNet-50": "ResNet-50, onnxruntime"}


class Way(NamedTuple):
    """What is timed."""

    kind: str
    what: str | int
    heat: bool = False


def main(
    paths: Annotated[list[Path] | None, typer.Argument(help="Only these detectors and exports.", exists=True)] = None,
    threads: Annotated[int, typer.Option(help="Of torch and of the runtimes.")] = 2,
    repeats: Annotated[int, typer.Option(help="Rounds there and back.")] = 15,
    heat: Annotated[bool, typer.Option("--heat", help="Time the heatmap too; only with paths.")] = False,
    int8: Annotated[bool, typer.Option(help="Also in 8 bits, which takes a minute to prepare.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also as a figure, without its ending.")] = None,
) -> None:
    """Prints a table, a row a way."""
    if heat and not paths:
        raise typer.BadParameter("rivals have no heatmap: give detectors or exports", param_hint="--heat")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        ways = given(paths, heat) if paths else {**ours(Path(folder), int8, console), **rivals(Path(folder))}
        times = in_turns(ways, threads, repeats)
    medians = {name: statistics.median(each) for name, each in times.items()}
    references = {f"times {paths[0]}": str(paths[0])} if paths else REFERENCES
    title = f"{threads} threads, with the heatmap" if heat else f"{threads} threads"
    table = Table("one image", "ms", "quartiles", *references, title=title)
    for name, each in times.items():
        low, _, high = statistics.quantiles(each, n=4)
        ratios = [f"{medians[other] / medians[name]:.2f}" for other in references.values()]
        table.add_row(name, f"{medians[name]:.1f}", f"{low:.1f} to {high:.1f}", *ratios)
    console.print(table)
    if out is not None:
        out.write_text(json.dumps({"threads": threads, "repeats": 2 * repeats, "milliseconds": medians}, indent=2))
    if figure is not None:
        from discopatch.benchmark.figures.speed import speed_figure
        from discopatch.benchmark.figures.style import save

        others = {name for name, way in ways.items() if way.kind == "network"}
        save(speed_figure(medians, others=others, threads=threads), figure, ["png"])


def given(paths: list[Path], heat: bool) -> dict[str, Way]:
    """A detector is a file, an export a folder."""
    return {str(path): Way("export" if path.is_dir() else "detector", str(path), heat) for path in paths}


def ours(folder: Path, int8: bool, console: Console) -> dict[str, Way]:
    """Both released weights: patches and dense in torch, and dense as exported."""
    from discopatch import Detector
    from discopatch.deploy.export import export
    from discopatch.images.samples import PHOTOS, crops, sample_photos
    from discopatch.weights import DEFAULT, SMALL

    photos = [picture.pixels for picture in crops(sample_photos(PHOTOS), 20, size=256, seed=0)]
    ways: dict[str, Way] = {f"{DEFAULT}, torch, {patches} patches": Way("patches", patches) for patches in (64, 16)}
    for weights in (DEFAULT, SMALL):
        console.print(f"preparing {weights}")
        detector = Detector(weights, false_alarm_rate=0.05, device="cpu").fit(photos[:90])
        detector.save(folder / weights)
        ways[f"{weights}, torch, dense"] = Way("detector", str(folder / weights))
        for name, options in formats(int8).items():
            place = folder / f"{weights}-{name}"
            export(detector, place, reference=photos[90:], **options)
            ways[f"{weights}, {name}, dense"] = Way("export", str(place))
    return ways


def formats(int8: bool) -> dict[str, dict[str, Any]]:
    """What is installed."""
    found: dict[str, dict[str, Any]] = {"onnxruntime": {"format": "onnx"}}
    if int8:
        found["onnxruntime int8"] = {"format": "onnx", "int8": True}
    if find_spec("openvino"):
        found["openvino"] = {"format": "openvino"}
    return found


def rivals(folder: Path) -> dict[str, Way]:
    """Bare networks at 224 pixels, as ONNX files."""
    import torch
    from torch import nn

    from discopatch.baselines.backbones.efficientnet import EfficientNetLite0
    from discopatch.baselines.backbones.frozen import Network
    from discopatch.baselines.backbones.resnet50 import ResNet50
    from discopatch.baselines.method import PENULTIMATE
    from discopatch.deploy.quiet import quiet

    class Bare(nn.Module):
        """A network from prepared pixels to its last features."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """(B, 3, 224, 224) -> (B, d)."""
            if isinstance(self.network, Network):
                return self.network.see(x, [PENULTIMATE])[PENULTIMATE]
            pooled: torch.Tensor = self.network(x).pooler_output
            return pooled

    networks: dict[str, nn.Module] = {"ResNet-50": ResNet50(), "EfficientNet-Lite0": EfficientNetLite0()}
    if find_spec("transformers"):
        from transformers import MobileNetV2Config, MobileNetV2Model

        networks["MobileNetV2"] = MobileNetV2Model(MobileNetV2Config())
    ways: dict[str, Way] = {}
    for name, network in networks.items():
        path = folder / f"{name}.onnx"
        with quiet(), torch.no_grad():
            program = torch.onnx.export(Bare(network).eval(), (torch.rand(1, 3, 224, 224),), dynamo=True, verbose=False)
        assert program is not None
        program.save(path)
        ways[f"{name}, onnxruntime"] = Way("network", str(path))
    return ways


def in_turns(ways: dict[str, Way], threads: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each way, two to a round, after one round that does not count."""
    context = get_context("spawn")
    processes, ends = [], {}
    for name, way in ways.items():
        ends[name], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, way, threads), daemon=True))
        processes[-1].start()
        theirs.close()  # or one that failed would be waited for
    times: dict[str, list[float]] = {name: [] for name in ways}
    for place in track(range(repeats + 1), "timing", transient=True):
        for name in (*ways, *reversed(ways)):
            ends[name].send(True)
            taken = ends[name].recv()
            if place:
                times[name].append(taken)
    for end in ends.values():
        end.send(False)
    for process in processes:
        process.join()
    return times


def serve(requests: Connection, way: Way, threads: int) -> None:
    """In a process of its own: milliseconds of a call, whenever one is asked for."""
    call = prepared(way, threads)
    while requests.recv():
        call()  # or the caches would still hold what another process had there
        start = time.perf_counter()
        call()
        requests.send(1e3 * (time.perf_counter() - start))


def prepared(way: Way, threads: int) -> Call:
    """What is timed: from a picture in memory to its score, or to its heatmap too."""
    kind, what, heat = way
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (1, 256, 256, 3), dtype=np.uint8)
    if kind == "network":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(what, options, providers=["CPUExecutionProvider"])
        given = {session.get_inputs()[0].name: rng.random((1, 3, 224, 224), dtype=np.float32)}
        return lambda: session.run(None, given)
    if kind == "export":
        from discopatch import Runtime

        runtime = Runtime.load(str(what), threads=threads)
        return lambda: runtime.explain(picture[0]) if heat else runtime.score_pixels(picture)
    import torch

    torch.set_num_threads(threads)
    if kind == "patches":
        from discopatch import Scorer
        from discopatch.weights import released

        scorer = Scorer(released(), patches=int(what))
        return lambda: scorer.score_pixels(picture)
    from discopatch import Detector

    detector = Detector.load(str(what), device="cpu")
    if heat:
        return lambda: detector.explain(picture[0])
    return lambda: detector.fitted.head.score(detector.scorer.inspect_pixels(picture))


if __name__ == "__main__":
    typer.run(main)
