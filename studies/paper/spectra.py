"""How the power of patches spreads over frequencies: of real ones, and of those that the VAE of a run makes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError
from discopatch.images import Pixels
from discopatch.images.tensors import to_pixels
from discopatch.model import VAE, read_safetensors
from discopatch.training import TrainingConfig
from discopatch.training.augment import shrink
from discopatch.training.batches import random_patches, step_generator
from discopatch.training.checkpoint import RunFolder
from discopatch.training.step import Noise
from discopatch.utils import strip_prefix
from paper.dataset import FIT, Dataset
from paper.plan import Plan

Array = NDArray[np.float64]

NO_RANK = 2**32 - 2  # draws that no training makes
DIGITS = 6  # significant ones


def vae_spectra(run: RunFolder, config: TrainingConfig, dataset: Dataset, plan: Plan, device: str) -> dict[str, Any]:
    """Radial spectra of real, reconstructed and generated patches, as the discriminator got them in training.

    The patches are cut from training photos as the config says, shrunk where it shrinks them, and the VAE's BatchNorm
    takes the statistics of its batch.
    """
    _, tensors = read_safetensors(run.checkpoints.newest_first()[0], kind="checkpoint")
    vae = VAE(config.architecture)
    vae.load_state_dict(strip_prefix(tensors, "vae/network"))
    kinds: dict[str, list[Pixels]] = {}
    for kind, patches in vae_patches(vae, config, dataset.images(FIT), plan, resolve_device(device)):
        kinds.setdefault(kind, []).append(patches)
    curves: dict[str, list[float]] = {}
    for kind, parts in kinds.items():
        frequencies, power = radial_spectrum(np.concatenate(parts).astype(np.float32) / 255)
        curves["frequencies"], curves[kind] = significant(frequencies), significant(power)
    return {"patches": sum(map(len, kinds["real"])), "curves": curves}


@torch.no_grad()
def vae_patches(
    vae: VAE, config: TrainingConfig, images: Pixels, plan: Plan, device: torch.device
) -> Iterator[tuple[str, Pixels]]:
    """Real, reconstructed and generated patches (N, S, S, 3) in uint8, batch by batch, each of other images."""
    vae.to(device).train()
    size = config.architecture.patch_size
    for number in range(plan.spectrum_batches):
        generator = step_generator(plan.seed, number, NO_RANK, device)
        which = np.arange(number * config.images, (number + 1) * config.images) % len(images)
        batch = shrink(torch.from_numpy(images[which]).to(device), config.min_scale, generator)
        real = random_patches(batch, config.patches, size, generator)
        noise = Noise.draw(len(real), config.architecture.latent, generator)
        fake = vae(real, noise.latent, noise.prior)
        for kind, patches in {
            "real": real,
            "reconstructed": fake.reconstructed,
            "generated": fake.generated,
        }.items():
            yield kind, to_pixels(patches).permute(0, 2, 3, 1).cpu().numpy()


def significant(values: Array) -> list[float]:
    """Six digits are enough for a curve."""
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def radial_spectrum(patches: NDArray[np.floating]) -> tuple[Array, Array]:
    """(N, H, W) or (N, H, W, 3) -> frequencies in cycles a pixel up to one half, and mean power at each.

    Power is averaged over patches, channels and directions, so that white noise of variance v is v everywhere. The mean
    of all patches is subtracted and each is faded out towards its border (Hann), which would else add power of its own.
    """
    if patches.ndim not in (3, 4) or not patches.size or min(patches.shape[1:3]) < 4:
        raise ParameterError(
            f"patches of shape {patches.shape}: give (N, H, W) or (N, H, W, 3) with sides of at least 4"
        )
    stack = np.asarray(patches, np.float64).reshape(*patches.shape[:3], -1)
    stack = stack - stack.mean(axis=(0, 1, 2))
    height, width = stack.shape[1:3]
    window = np.outer(hann(height), hann(width))[:, :, None]
    power = np.zeros((height, width // 2 + 1))
    for patch in stack:  # one by one: the transforms of thousands need gigabytes
        power += (np.abs(np.fft.rfft2(patch * window, axes=(0, 1))) ** 2).mean(axis=2)
    power /= len(stack) * (window**2).sum()
    return ring_means(power, height, width)


def hann(size: int) -> Array:
    """A window without a zero at the border, so that small patches keep all their pixels."""
    window: Array = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(size) + 0.5) / size)
    return window


def ring_means(power: Array, height: int, width: int) -> tuple[Array, Array]:
    """Means over rings of equal frequency, the constant left out."""
    side = min(height, width)
    distance = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    ring = np.rint(distance * side).astype(int)
    doubled = np.ones_like(power)  # columns that stand for their mirror images too
    doubled[:, 1 : (width + 1) // 2] = 2
    last = side // 2
    sums, counts = (np.bincount(ring.ravel(), each.ravel())[1 : last + 1] for each in (power * doubled, doubled))
    return np.arange(1, last + 1) / side, sums / counts
