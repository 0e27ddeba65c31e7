"""What is measured, on what, and where the tables go."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discopatch.images import Transform
from discopatch.model import Architecture, Pair, find_preset
from discopatch.model.weights import Weights
from discopatch.patches import scoring_corners
from discopatch.scoring.fastpass import FastPass
from discopatch.weights import RELEASED, released
from gpu.attempt import attempt

BUFFERS = 4  # inputs take turns, or the cache would be measured


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
    matrix_rate: float = float("nan")  # in TFLOP/s, once it is known

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
        self.found.setdefault(part, []).append({"title": title, "rows": rows})
        print(f"\n## {title}\n")
        if rows:
            names = list(rows[0])
            print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
            for row in rows:
                print(f"| {' | '.join(shown(row[name]) for name in names)} |")
        print(f"({self.elapsed:.0f} s)", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.found, indent=1, default=str), encoding="utf-8")


def shown(value: Any) -> str:
    """Three digits are enough, and thousands in full."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


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
