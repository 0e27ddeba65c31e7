"""The fast pass on a GPU: first whether it is right, then milliseconds for one image, images a second, and why.

python benchmarks/gpu_speed.py --profile --out gpu.json           # about two minutes on a GPU
python benchmarks/gpu_speed.py --only check,latency               # parts: see PARTS
python benchmarks/gpu_speed.py --tiny --device cpu                # only that the script itself works
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from gpu.attempt import attempt
from gpu.bench import machine, prepared
from gpu.compiled import compiled
from gpu.correctness import check
from gpu.kernels import profiled
from gpu.latency import latency
from gpu.rates import rates
from gpu.stages import stages
from gpu.throughput import stream, throughput

from discopatch.weights import DEFAULT

PARTS = {
    "check": check,
    "rates": rates,
    "latency": latency,
    "throughput": throughput,
    "stages": stages,
    "stream": stream,
    "profile": profiled,
    "compile": compiled,
}


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
    for name in only.split(",") if only else [part for part in PARTS if profile or part != "profile"]:
        if bench.elapsed > budget:
            print(f"\n{name}: left out, {bench.elapsed:.0f} s are over")
            continue
        attempt(name, partial(PARTS[name], bench))


if __name__ == "__main__":
    typer.run(main)
