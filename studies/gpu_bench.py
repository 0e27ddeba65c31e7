"""What the parts of gpu_speed.py share: the network and the images that are timed, clocks, and tables."""

import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from common import in_both_orders, milliseconds
from discopatch.bench.cost import multiplications
from discopatch.bench.tables.writers import markdown_table
from discopatch.encoders import BASIC_KINDS, DiscriminatorEncoder, FeatureExtractor, Kind
from discopatch.images import Pixels
from discopatch.model import Weights, scoring_corners
from discopatch.model.kernels import FastPass

Pass = Callable[[Any], Any]  # images on the device, or as an array -> whatever is computed
Row = dict[str, Any]

BUFFERS = 4  # inputs take turns, or the cache would be measured
WARM_UP = 5


@dataclass(frozen=True)
class Case:
    """So many patches of an image, or one dense pass, and the batch sizes at which it is timed."""

    name: str
    patches: int | None
    batches: tuple[int, ...]
    typical: int


CASES = Case("dense", None, (16, 32, 64, 128, 256, 512), 64), Case("64 patches", 64, (4, 8, 16, 32, 64), 16)
RESIDUAL_CASES = Case("dense", None, (16, 64, 128, 256, 512), 256), Case("16 patches", 16, (16, 64, 128), 64)
TINY_CASES = Case("dense", None, (1, 2), 2), Case("3 patches", 3, (1, 2), 2)
ALL_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass
class GpuBench:
    """The weights on their device, and the tables that were made so far."""

    device: torch.device
    weights: Weights
    cases: tuple[Case, ...]
    repeats: int
    out: Path | None
    started: float = field(default_factory=time.perf_counter)
    tables: dict[str, Any] = field(default_factory=dict)
    matrix_rate: float = float("nan")  # in TFLOP/s, once it is known

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_kernels(self) -> bool:
        return self.cuda

    @property
    def residual(self) -> bool:
        return self.weights.discriminator.architecture.kind != "plain"

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def corners(self, case: Case) -> Tensor | None:
        if case.patches is None:
            return None
        size, patch_size = self.weights.transform.size, self.weights.discriminator.architecture.patch_size
        return scoring_corners("random", case.patches, size=size, patch_size=patch_size, seed=0).to(self.device)

    def extractor(self, case: Case, kinds: tuple[Kind, ...] = BASIC_KINDS) -> FeatureExtractor:
        """The discriminator itself, nothing folded."""
        return FeatureExtractor(
            self.weights.discriminator,
            pixel_range=self.weights.transform.pixels,
            corners=self.corners(case),
            group=case.patches or 1,
            kinds=kinds,
        )

    def plain(self, case: Case, *, half: bool = False) -> Pass:
        """The plain pass, in float32 or with autocast to bfloat16: images -> statistics and logits side by side."""
        extract = self.extractor(case)

        def run(images: Tensor) -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                return join_features(**extract(images))

        return run

    def encoder(self, case: Case, **options: Any) -> DiscriminatorEncoder:
        """As a detector has it."""
        return DiscriminatorEncoder(self.weights, patches=case.patches or "dense", device=self.device, **options)

    def fast(self, case: Case, *, batch_size: int = 1) -> FastPass:
        """The pass of the Triton kernels, which only a GPU has."""
        size = self.weights.transform.size
        network, corners = self.weights.discriminator, self.corners(case)
        return FastPass(network, corners, size=size, batch_size=batch_size)

    def buffers(self, batch: int) -> list[Tensor]:
        """Random images on the device: what they show does not matter for the time, as long as they are not flat."""
        generator = torch.Generator(self.device).manual_seed(0)
        shape = BUFFERS, batch, self.weights.transform.size, self.weights.transform.size, 3
        return list(torch.randint(256, shape, generator=generator, dtype=torch.uint8, device=self.device))

    def seconds(self, call: Callable[[], object]) -> float:
        """Seconds of a call by the clock of the device."""
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def one_by_one(self, work: Pass, inputs: Sequence[Any], *, repeats: int | None = None) -> list[float]:
        """Seconds of each of so many runs, after some to get warm."""
        count = WARM_UP + (repeats or self.repeats)
        return [self.seconds(partial(work, inputs[number % len(inputs)])) for number in range(count)][WARM_UP:]

    def in_a_row(self, work: Pass, inputs: Sequence[Tensor]) -> list[float]:
        """Seconds of one run among many that follow each other without waiting; three such rows of about 50 ms."""
        once = self.one_by_one(work, inputs, repeats=1)[0]
        rounds = max(2, min(200, int(0.05 / max(once, 1e-5))))

        def row() -> None:
            for number in range(rounds):
                work(inputs[number % len(inputs)])

        return [self.seconds(row) / rounds for _ in range(3)]

    def speed(self, case: Case, batch: int, seconds: Sequence[float]) -> Row:
        """A row of a table; a multiplication and an addition are counted as two operations."""
        architecture, size = self.weights.discriminator.architecture, self.weights.transform.size
        middle, spread = milliseconds(seconds)
        images = batch / median(seconds)
        rate = 2 * multiplications(architecture, size=size, patches=case.patches) * images / 1e12
        row = {"batch": batch, "ms": middle, "range": spread, "images/s": images, "TFLOP/s": rate}
        return {**row, "share of matrix rate": f"{rate / self.matrix_rate:.1%}"}

    def speeds(self, case: Case, batch: int, passes: dict[str, Pass]) -> list[Row]:
        buffers = self.buffers(batch)
        times = in_both_orders(passes, lambda name: self.in_a_row(passes[name], buffers))
        return [{"pass": name, **self.speed(case, batch, seconds)} for name, seconds in times.items()]

    def note(self, part: str, title: str, rows: Sequence[Row]) -> None:
        """Prints a table and keeps it; the JSON is written anew each time, in case there is no next one."""
        self.tables.setdefault(part, []).append({"title": title, "rows": list(rows)})
        print(f"\n## {title}\n")
        if rows:
            print(markdown_table([*rows[0]], [[format_value(value) for value in row.values()] for row in rows]))
        print(f"({self.elapsed:.0f} s)", flush=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.tables, indent=1, default=str), encoding="utf-8")


def attempt(name: str, work: Callable[[], Any]) -> Any:
    """What `work` returns; None, with the reason printed, where it fails: the next part should still run."""
    try:
        return work()
    except Exception:
        print(f"\n!! {name} failed\n{traceback.format_exc()}", flush=True)
        return None


def join_features(logits: Tensor, statistics: Tensor) -> Tensor:
    """Statistics and logits side by side, (B, 2 x channels + positions)."""
    return torch.cat((statistics.float(), logits.float()), 1)


def format_value(value: Any) -> str:
    """Three digits are enough, and thousands in full."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def photo_like_noise(count: int, size: int, seed: int) -> Pixels:
    """Noise whose amplitude falls with frequency, as in photos; every other image bright and dim, as in fog."""
    rng = np.random.default_rng(seed)
    across = np.fft.fftfreq(size)
    fall = 1 / np.maximum(np.hypot(across[:, None], across[None]), 1 / size)
    images = np.empty((count, size, size, 3), np.uint8)
    for number, image in enumerate(images):
        waves = np.fft.fft2(rng.normal(size=(3, size, size))) * fall
        values = np.fft.ifft2(waves).real.transpose(1, 2, 0)
        values = (values - values.mean()) / values.std()
        image[:] = np.clip((200 + 6 * values if number % 2 else 120 + 50 * values).round(), 0, 255)
    return images
