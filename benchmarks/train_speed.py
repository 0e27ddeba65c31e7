"""Patches per second of the training step: ours beside the naive one, in the same run, on whatever device is there.

python benchmarks/train_speed.py                          # the paper's batch on a GPU
python benchmarks/train_speed.py --preset tiny --images 4 --patches 8 --device cpu
"""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from discopatch.model import Pair
from discopatch.training.critic import Critic
from discopatch.training.recipe import Recipe
from discopatch.training.step import (
    Noise,
    adversarial_step,
    called_fake,
    called_real,
    kl_divergence,
    learnable,
)

Step = Callable[[], object]


def main(
    preset: str = "paper",
    images: Annotated[int | None, typer.Option(help="Default: the preset's.")] = None,
    patches: Annotated[int | None, typer.Option(help="Default: the preset's.")] = None,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    repeats: Annotated[int, typer.Option(help="Timed steps of each, after the warm-up.")] = 20,
) -> None:
    """Prints a table: median time of a step in both orders, patches/s, peak memory, share of the matrix rate."""
    torch.backends.cudnn.benchmark = True
    recipe = Recipe.of(preset, images=images, patches=patches)
    plain = replace(recipe, architecture=replace(recipe.architecture, normalisation="batch"))
    steps = {
        "naive eager": naive(recipe, device),
        "naive eager, torch's BatchNorm": naive(plain, device),
        "discopatch": ours(recipe, device),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    memory = {}
    for name, step in steps.items():
        for _ in range(3):
            step()
        memory[name] = peak_memory(step, device)
    for name in [*steps, *reversed(steps)]:
        times[name] += [timed(steps[name], device) for _ in range(repeats // 2 + 1)]
    show(recipe, device, times, memory)


def show(recipe: Recipe, device: str, times: dict[str, list[float]], memory: dict[str, float]) -> None:
    """The table."""
    count = recipe.images * recipe.patches
    work = operations_per_patch(recipe)
    rate = matrix_rate(device)
    table = Table(
        title=f"{recipe.preset}: {recipe.images} x {recipe.patches} patches on {device_name(device)}, "
        f"torch {torch.__version__}; {work / 1e9:.2f} GFLOP a patch, matrix rate {rate / 1e12:.3g} TFLOP/s"
    )
    for heading in ("step", "ms", "spread", "patches/s", "times naive", "peak GiB", "share of matrix rate"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    slow = statistics.median(times["naive eager"])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        table.add_row(
            name,
            f"{middle * 1e3:.1f}",
            f"{min(seconds) * 1e3:.1f}-{max(seconds) * 1e3:.1f}",
            f"{count / middle:,.0f}",
            f"{slow / middle:.2f}",
            f"{memory[name]:.1f}",
            f"{work * count / middle / rate:.1%}",
        )
    Console(width=150).print(table)


def ours(recipe: Recipe, device: str) -> Step:
    """The step as `discopatch train` runs it on this device."""
    pair = prepared(recipe, device)
    if device == "cuda":
        pair.fuse()
    optimisers = [
        torch.optim.Adam(learnable(network), fused=device == "cuda") for network in (pair.vae, pair.discriminator)
    ]
    real, noise = batch(recipe, device)

    def step() -> object:
        with precision(device):
            return adversarial_step(pair.vae, Critic(pair.discriminator), optimisers, real, noise, recipe)

    return step


def naive(recipe: Recipe, device: str) -> Step:
    """The step as one would first write it: the discriminator judges every forgery twice, nothing is fused."""
    pair = prepared(recipe, device)
    vae, discriminator = pair.vae, pair.discriminator
    for_vae, for_discriminator = (torch.optim.Adam(network.parameters()) for network in (vae, discriminator))
    real, noise = batch(recipe, device)

    def step() -> object:
        with precision(device):
            forged = vae(real, noise.latent, noise.prior)
            vae_loss = (
                torch.nn.functional.mse_loss(forged.reconstructed.float(), real)
                + recipe.weight_kl * kl_divergence(forged.mean.float(), forged.log_variance.float())
                + recipe.weight_reconstructed * called_real(discriminator(forged.reconstructed))
                + recipe.weight_generated * called_real(discriminator(forged.generated))
            )
        for_vae.zero_grad()
        vae_loss.backward()
        for_vae.step()
        with precision(device):
            loss = 0.5 * (
                called_real(discriminator(real))
                + 0.5 * called_fake(discriminator(forged.reconstructed.detach()))
                + 0.5 * called_fake(discriminator(forged.generated.detach()))
            )
        for_discriminator.zero_grad()
        loss.backward()
        for_discriminator.step()
        return loss

    return step


def prepared(recipe: Recipe, device: str) -> Pair:
    """New networks on the device."""
    pair = Pair.from_seed(recipe.architecture, seed=0)
    pair.vae.to(device)
    pair.discriminator.to(device)
    return pair


def batch(recipe: Recipe, device: str) -> tuple[Tensor, Noise]:
    """Random patches in channels_last memory, and noise."""
    generator = torch.Generator(device).manual_seed(0)
    count, size = recipe.images * recipe.patches, recipe.architecture.patch_size
    real = torch.rand(count, size, size, 3, generator=generator, device=device).permute(0, 3, 1, 2) * 2 - 1
    return real, Noise.draw(count, recipe.architecture.latent, generator)


def precision(device: str) -> Any:
    """bfloat16 on a GPU, float32 on a CPU, as in training."""
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()


def timed(step: Step, device: str) -> float:
    """Seconds of one step, the device's queue empty before and after."""
    synchronise(device)
    start = time.perf_counter()
    step()
    synchronise(device)
    return time.perf_counter() - start


def peak_memory(step: Step, device: str) -> float:
    """GiB on the GPU at the most during one step; 0 where there is none."""
    if device != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    step()
    return float(torch.cuda.max_memory_allocated() / 2**30)


def operations_per_patch(recipe: Recipe) -> float:
    """Floating-point operations of our step's convolutions and matrix products, counted on a small batch."""
    few = Recipe.of(recipe.preset, images=1, patches=2)
    pair = prepared(few, "cpu")
    optimisers = [torch.optim.SGD(network.parameters()) for network in (pair.vae, pair.discriminator)]
    with FlopCounterMode(display=False) as counter:
        adversarial_step(pair.vae, Critic(pair.discriminator), optimisers, *batch(few, "cpu"), few)
    return float(counter.get_total_flops() / 2)


def matrix_rate(device: str) -> float:
    """Operations a second of one large matrix product, in the precision of the step."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (1024, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = [timed(lambda: left @ right, device) for _ in range(13)][3:]
    return float(2 * size**3 / statistics.median(seconds))


def synchronise(device: str) -> None:
    """Waits for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def device_name(device: str) -> str:
    """What the table calls it."""
    return torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"


if __name__ == "__main__":
    typer.run(main)
