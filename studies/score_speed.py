"""Milliseconds from pixels to score of one image on a CPU: all our models, beside bare networks that others use.

python studies/score_speed.py                       # two threads
python studies/score_speed.py --threads 4 --repeats 40 --out speed.json --figure docs/images/speed
python studies/score_speed.py camera-3 camera-3-onnx camera-3-onnx-int8 --heatmap     # only these, with the heatmap

The tables of docs/performance.md and docs/deploy.md, and docs/images/speed.png. Every candidate has a process of its
own, since the threads of two runtimes would wait for each other; they take turns, forwards and then backwards, so that
what disturbs one disturbs all, and the median of each counts. The networks of others run in onnxruntime, without any
score, with random weights: the values do not change the time. openvino is timed where it is installed.
"""

import json
import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from common import seconds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# torch is imported further down: processes that time another runtime must not load it.

N_FITTED = 150  # crops of sample photos; the others are references of the exports


class Candidate(NamedTuple):
    """What is timed: a saved detector, an export, so many patches of the first weights, or a bare ONNX network."""

    kind: str  # detector, export, patches or network
    target: str | int
    heatmap: bool = False


def main(
    paths: Annotated[list[Path] | None, typer.Argument(help="Only these detectors and exports.", exists=True)] = None,
    threads: Annotated[int, typer.Option(help="Of torch and of the runtimes.")] = 2,
    weights: Annotated[list[str] | None, typer.Option(help="Only these of ours, and the networks of others.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds there and back.")] = 15,
    heatmap: Annotated[bool, typer.Option("--heatmap", help="Time the heatmap too; only with paths.")] = False,
    int8: Annotated[bool, typer.Option(help="Also in 8 bits, which takes a minute to prepare.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also as a figure, without its ending.")] = None,
) -> None:
    """Prints a table with a row for each candidate."""
    if heatmap and not paths:
        raise typer.BadParameter("bare networks have no heatmap: give detectors or exports", param_hint="--heatmap")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        if paths:
            candidates = {
                str(path): Candidate("export" if path.is_dir() else "detector", str(path), heatmap) for path in paths
            }
        else:
            candidates = {**our_models(Path(folder), weights or [], int8, console), **other_networks(Path(folder))}
        times = time_in_turns(candidates, threads, repeats)
    medians = {name: statistics.median(each) for name, each in times.items()}
    references = {f"times {paths[0]}": str(paths[0])} if paths else usual_references(candidates)
    title = f"{threads} threads, with the heatmap" if heatmap else f"{threads} threads"
    table = Table("one image", "ms", "quartiles", *references, title=title)
    for name, each in times.items():
        low, _, high = statistics.quantiles(each, n=4)
        ratios = [f"{medians[other] / medians[name]:.2f}" for other in references.values()]
        table.add_row(name, f"{medians[name]:.1f}", f"{low:.1f} to {high:.1f}", *ratios)
    console.print(table)
    if out is not None:
        out.write_text(json.dumps({"threads": threads, "repeats": 2 * repeats, "milliseconds": medians}, indent=2))
    if figure is not None:
        from discopatch.bench.plots.style import save_figure

        others = {name for name, candidate in candidates.items() if candidate.kind == "network"}
        save_figure(speed_figure(medians, others=others, threads=threads), figure, ["png"])


def usual_references(candidates: Collection[str]) -> dict[str, str]:
    """What all are compared with, by the heading of its column: the paper's way to score, and a usual backbone."""
    from discopatch.pretrained import FIRST_WEIGHTS

    usual = {"times 64 patches": f"{FIRST_WEIGHTS}, torch, 64 patches", "times ResNet-50": "ResNet-50, onnxruntime"}
    return {heading: name for heading, name in usual.items() if name in candidates}


def our_models(folder: Path, names: Sequence[str], int8: bool, console: Console) -> dict[str, Candidate]:
    """Those of the released weights dense, in torch and as exported; without names three of them, and patches."""
    from discopatch import Detector
    from discopatch.images.samples import PHOTOS, crops, sample_photos
    from discopatch.pretrained import DEFAULT_WEIGHTS, FIRST_WEIGHTS, SMALL_WEIGHTS

    photos = [image.pixels for image in crops(sample_photos(PHOTOS), 30, size=256, seed=0)]
    formats: dict[str, dict[str, Any]] = {"onnxruntime": {"format": "onnx"}}
    if int8:
        formats["onnxruntime int8"] = {"format": "onnx", "int8": True}
    if find_spec("openvino"):
        formats["openvino"] = {"format": "openvino"}
    counts = () if names else (64, 16)
    candidates = {f"{FIRST_WEIGHTS}, torch, {count} patches": Candidate("patches", count) for count in counts}
    for weights in names or (DEFAULT_WEIGHTS, FIRST_WEIGHTS, SMALL_WEIGHTS):
        console.print(f"preparing {weights}")
        detector = Detector(weights, false_alarm_rate=0.05, device="cpu").fit(photos[:N_FITTED])
        detector.save(folder / weights)
        candidates[f"{weights}, torch, dense"] = Candidate("detector", str(folder / weights))
        for name, options in formats.items():
            place = folder / f"{weights}-{name}"
            detector.export(place, reference=photos[N_FITTED:], **options)
            candidates[f"{weights}, {name}, dense"] = Candidate("export", str(place))
    return candidates


def other_networks(folder: Path) -> dict[str, Candidate]:
    """Bare networks at 224 pixels, from prepared pixels to their last features, as ONNX files."""
    import torch
    from torch import nn

    from discopatch.bench.baselines import PENULTIMATE
    from discopatch.bench.networks.base import Network
    from discopatch.bench.networks.efficientnet import EfficientNetLite0
    from discopatch.bench.networks.resnet50 import ResNet50
    from discopatch.export.graph import quiet_torch

    class LastFeatures(nn.Module):
        """(B, 3, 224, 224) -> (B, channels) of one of the networks below."""

        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if isinstance(self.network, Network):
                return self.network.extract(x, [PENULTIMATE])[PENULTIMATE]
            pooled: torch.Tensor = self.network(x).pooler_output
            return pooled

    networks: dict[str, nn.Module] = {"ResNet-50": ResNet50(), "EfficientNet-Lite0": EfficientNetLite0()}
    if find_spec("transformers"):
        from transformers import MobileNetV2Config, MobileNetV2Model

        networks["MobileNetV2"] = MobileNetV2Model(MobileNetV2Config())
    candidates: dict[str, Candidate] = {}
    for name, network in networks.items():
        path = folder / f"{name}.onnx"
        with quiet_torch(), torch.no_grad():
            example = (torch.rand(1, 3, 224, 224),)
            program = torch.onnx.export(LastFeatures(network).eval(), example, dynamo=True, verbose=False)
        assert program is not None
        program.save(path)
        candidates[f"{name}, onnxruntime"] = Candidate("network", str(path))
    return candidates


def time_in_turns(candidates: Mapping[str, Candidate], threads: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each candidate, two to a round, after one round that does not count."""
    context = get_context("spawn")
    processes, pipes = [], {}
    for name, candidate in candidates.items():
        pipes[name], theirs = context.Pipe()
        processes.append(context.Process(target=serve_timings, args=(theirs, candidate, threads), daemon=True))
        processes[-1].start()
        theirs.close()  # or one that failed would be waited for
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for number in track(range(repeats + 1), "timing", transient=True):
        for name in (*candidates, *reversed([*candidates])):
            pipes[name].send(True)
            taken = pipes[name].recv()
            if number:
                times[name].append(taken)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return times


def serve_timings(requests: Connection, candidate: Candidate, threads: int) -> None:
    """In a process of its own: sends the milliseconds of a call whenever one is asked for."""
    call = open_candidate(candidate, threads)
    while requests.recv():
        call()  # or the caches would still hold what another process had there
        requests.send(1e3 * seconds_of(call))


def open_candidate(candidate: Candidate, threads: int) -> Callable[[], object]:
    """The call that is timed: from an image in memory to its score, or to its heatmap too."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 256, 256, 3), dtype=np.uint8)
    target = candidate.target
    if candidate.kind == "network":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
        inputs = {session.get_inputs()[0].name: rng.random((1, 3, 224, 224), dtype=np.float32)}
        return lambda: session.run(None, inputs)
    if candidate.kind == "export":
        from discopatch.export import Runtime

        runtime = Runtime.load(str(target), threads=threads)
        return lambda: runtime.explain(image[0]) if candidate.heatmap else runtime.score_pixels(image)
    import torch

    torch.set_num_threads(threads)
    if candidate.kind == "patches":
        from discopatch.encoders import DiscriminatorEncoder
        from discopatch.heads import LogitHead
        from discopatch.pretrained import FIRST_WEIGHTS, load_pretrained

        encoder, head = DiscriminatorEncoder(load_pretrained(FIRST_WEIGHTS), patches=int(target)), LogitHead()
        return lambda: head.score(encoder.extract_pixels(image))
    from discopatch import Detector

    detector = Detector.load(str(target), device="cpu")
    if candidate.heatmap:
        return lambda: detector.explain(image[0])
    return lambda: detector.head_.score(detector.encoder_.extract_pixels(image))


def speed_figure(milliseconds: Mapping[str, float], *, others: Collection[str], threads: int) -> "Figure":
    """Bars with the slowest on top; ours have the colour of their weights, named before a comma; others are grey."""
    from discopatch.bench.plots.style import GREY, TWO_COLUMNS, colour, new_figure, plot_style

    ordered = sorted(milliseconds, key=lambda name: milliseconds[name])
    weights = [*dict.fromkeys(name.split(",")[0] for name in milliseconds if name not in others)]
    with plot_style():
        figure, ((axis,),) = new_figure(TWO_COLUMNS, 0.6 + 0.21 * len(ordered))
        for place, name in enumerate(ordered):
            taken = milliseconds[name]
            shade = GREY if name in others else colour(weights.index(name.split(",")[0]))
            axis.barh(place, taken, height=0.7, color=shade)
            axis.annotate(f"{taken:.3g}", (taken, place), (3, 0), textcoords="offset points", va="center")
        axis.set_yticks(range(len(ordered)), ordered)
        axis.set_xlim(0, 1.07 * max(milliseconds.values()))
        axis.set_xlabel(f"milliseconds an image, pixels to score, {threads} threads")
    return figure


if __name__ == "__main__":
    typer.run(main)
