"""Patches per second of the training step: ours beside a naive one, in the same run, on whatever device is there.

python studies/train_speed.py                          # the paper's batch on a GPU
python studies/train_speed.py --preset tiny --images 4 --patches 8 --device cpu

The table of docs/performance.md.
"""

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from common import device_name, in_both_orders, milliseconds, seconds_of
from discopatch.model import Networks
from discopatch.model.fast import fuse
from discopatch.training import TrainingConfig, get_preset
from discopatch.training.losses import fake_loss, kl_divergence, real_loss
from discopatch.training.step import Noise, adversarial_step, learnable

Step = Callable[[], object]
WARM_UP = 3


def main(
    preset: str = "paper",
    images: Annotated[int | None, typer.Option(help="Default: the preset's.")] = None,
    patches: Annotated[int | None, typer.Option(help="Default: the preset's.")] = None,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    repeats: Annotated[int, typer.Option(help="Timed steps of each, after the warm-up.")] = 20,
) -> None:
    """Prints a table: median time of a step in both orders, patches/s, peak memory, share of the matrix rate."""
    torch.backends.cudnn.benchmark = True
    config = get_preset(preset)
    config = replace(config, images=images or config.images, patches=patches or config.patches)
    with_batchnorm = replace(config, architecture=replace(config.architecture, normalisation="batch"))
    steps = {
        "naive eager": naive_step(config, device),
        "naive eager, torch's BatchNorm": naive_step(with_batchnorm, device),
        "discopatch": our_step(config, device),
    }
    memory = {}
    for name, step in steps.items():
        for _ in range(WARM_UP):
            step()
        memory[name] = peak_memory(step, device)
    rounds = range(repeats // 2 + 1)
    times = in_both_orders(steps, lambda name: [seconds_of(steps[name], device) for _ in rounds])

    count, work, rate = config.images * config.patches, operations_per_patch(config), matrix_rate(device)
    table = Table(
        title=f"{config.preset}: {config.images} x {config.patches} patches on {device_name(device)}, "
        f"torch {torch.__version__}; {work / 1e9:.2f} GFLOP a patch, matrix rate {rate / 1e12:.3g} TFLOP/s"
    )
    for heading in ("step", "ms", "range", "patches/s", "times naive", "peak GiB", "share of matrix rate"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    slowest = statistics.median(times["naive eager"])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        table.add_row(
            name,
            f"{middle * 1e3:.1f}",
            milliseconds(seconds)[1],
            f"{count / middle:,.0f}",
            f"{slowest / middle:.2f}",
            f"{memory[name]:.1f}",
            f"{work * count / middle / rate:.1%}",
        )
    Console(width=150).print(table)


def naive_step(config: TrainingConfig, device: str) -> Step:
    """The step as one would first write it: the discriminator sees every fake patch twice, nothing is fused."""
    networks = new_networks(config, device)
    vae, discriminator = networks.vae, networks.discriminator
    for_vae, for_discriminator = (torch.optim.Adam(network.parameters()) for network in (vae, discriminator))
    real, noise = random_batch(config, device)

    def step() -> object:
        with autocast(device):
            fake = vae(real, noise.latent, noise.prior)
            vae_loss = (
                F.mse_loss(fake.reconstructed.float(), real)
                + config.weight_kl * kl_divergence(fake.mean.float(), fake.log_variance.float())
                + config.weight_reconstructed * real_loss(discriminator(fake.reconstructed).logits)
                + config.weight_generated * real_loss(discriminator(fake.generated).logits)
            )
        for_vae.zero_grad()
        vae_loss.backward()
        for_vae.step()
        with autocast(device):
            discriminator_loss = 0.5 * (
                real_loss(discriminator(real).logits)
                + 0.5 * fake_loss(discriminator(fake.reconstructed.detach()).logits)
                + 0.5 * fake_loss(discriminator(fake.generated.detach()).logits)
            )
        for_discriminator.zero_grad()
        discriminator_loss.backward()
        for_discriminator.step()
        return discriminator_loss

    return step


def our_step(config: TrainingConfig, device: str) -> Step:
    """The step as `discopatch train` runs it on this device."""
    networks = new_networks(config, device)
    if device == "cuda":
        fuse(networks.vae, networks.discriminator)
    optimisers = [
        torch.optim.Adam(learnable(network), fused=device == "cuda")
        for network in (networks.vae, networks.discriminator)
    ]
    real, noise = random_batch(config, device)

    def step() -> object:
        with autocast(device):
            return adversarial_step(networks.vae, networks.discriminator, optimisers, real, noise, config)

    return step


def new_networks(config: TrainingConfig, device: str) -> Networks:
    networks = Networks.from_seed(config.architecture, seed=0)
    networks.vae.to(device)
    networks.discriminator.to(device)
    return networks


def random_batch(config: TrainingConfig, device: str) -> tuple[Tensor, Noise]:
    """Random patches (B, 3, S, S) in channels_last memory, and the noise of one step."""
    generator = torch.Generator(device).manual_seed(0)
    count, size = config.images * config.patches, config.architecture.patch_size
    real = torch.rand(count, size, size, 3, generator=generator, device=device).permute(0, 3, 1, 2) * 2 - 1
    return real, Noise.draw(count, config.architecture.latent, generator)


def autocast(device: str) -> Any:
    """bfloat16 on a GPU, float32 on a CPU, as in training."""
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext()


def peak_memory(step: Step, device: str) -> float:
    """The most GiB that one step holds on the GPU; 0 where there is none."""
    if device != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    step()
    return float(torch.cuda.max_memory_allocated() / 2**30)


def operations_per_patch(config: TrainingConfig) -> float:
    """Floating-point operations of our step's convolutions and matrix products, counted on two patches."""
    step = our_step(replace(config, images=1, patches=2), "cpu")
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops() / 2)


def matrix_rate(device: str) -> float:
    """Operations a second of one large matrix product, in the precision of the step."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (1024, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = [seconds_of(lambda: left @ right, device) for _ in range(13)][3:]
    return float(2 * size**3 / statistics.median(seconds))


if __name__ == "__main__":
    typer.run(main)
