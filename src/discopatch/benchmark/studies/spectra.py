"""How the power of patches spreads over frequencies: of real ones, and of what the VAE of a run makes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.benchmark.studies.gallery import FIT, Gallery
from discopatch.benchmark.studies.plan import Plan
from discopatch.files import below
from discopatch.images import Pixels
from discopatch.model import VAE
from discopatch.model.weights import read_safetensors
from discopatch.patches import cut, random_corners, to_pixels, to_unit
from discopatch.scoring.scorer import chosen
from discopatch.training.order import step_generator
from discopatch.training.pictures import shrunk
from discopatch.training.recipe import Recipe
from discopatch.training.run import Run
from discopatch.training.step import Noise

# (N, H, W, 3) in [0, 1] -> frequencies and power, both (F,)
Spectrum = Callable[[NDArray[np.floating]], tuple[NDArray[np.float64], NDArray[np.float64]]]

NO_RANK = 2**32 - 2  # draws of nobody's training
DIGITS = 6  # significant ones


def spectra(run: Run, recipe: Recipe, gallery: Gallery, plan: Plan, device: str) -> dict[str, Any]:
    """Radial spectra of real, reconstructed and generated patches, as the discriminator met them in training.

    The patches are cut from training photos as the recipe cuts them, shrunk where it shrinks them, and the VAE's
    BatchNorm takes the statistics of its batch.
    """
    from discopatch.benchmark.figures.spectra import radial_spectrum

    return of_kinds(forged(load_vae(run, recipe), recipe, gallery.of(FIT), plan, chosen(device)), radial_spectrum)


def of_kinds(patches: Iterator[tuple[str, Pixels]], spectrum: Spectrum) -> dict[str, Any]:
    """All patches of a kind together, as curves by kind over their common frequencies."""
    kinds: dict[str, list[Pixels]] = {}
    for kind, each in patches:
        kinds.setdefault(kind, []).append(each)
    curves: dict[str, list[float]] = {}
    for kind, parts in kinds.items():
        frequencies, power = spectrum(np.concatenate(parts).astype(np.float32) / 255)
        curves["frequencies"] = [significant(value) for value in frequencies]
        curves[kind] = [significant(value) for value in power]
    return {"patches": sum(map(len, kinds["real"])), "curves": curves}


def load_vae(run: Run, recipe: Recipe) -> VAE:
    """From the run's last checkpoint."""
    _, tensors = read_safetensors(run.checkpoints.newest_first()[0], kind="checkpoint")
    vae = VAE(recipe.architecture)
    vae.load_state_dict(below(tensors, "vae/network"))
    return vae


@torch.no_grad()
def forged(
    vae: VAE, recipe: Recipe, pictures: Pixels, plan: Plan, device: torch.device
) -> Iterator[tuple[str, Pixels]]:
    """Real, reconstructed and generated patches, batch by batch, each of other pictures where there are enough."""
    vae.to(device).train()
    for number in range(plan.spectrum_batches):
        generator = step_generator(plan.seed, number, NO_RANK, device)
        which = np.arange(number * recipe.images, (number + 1) * recipe.images) % len(pictures)
        some = shrunk(torch.from_numpy(pictures[which]).to(device), recipe.smallest_scale, generator)
        size = recipe.architecture.patch_size
        corners = random_corners(len(some), recipe.patches, size=some.shape[1], patch_size=size, generator=generator)
        real = to_unit(cut(some, corners, size))
        noise = Noise.draw(len(real), recipe.architecture.latent, generator)
        made = vae(real, noise.latent, noise.prior)
        for kind, patches in (("real", real), ("reconstructed", made.reconstructed), ("generated", made.generated)):
            yield kind, pixels_of(patches)


def pixels_of(patches: Tensor) -> Pixels:
    """(N, 3, S, S) in [-1, 1] -> (N, S, S, 3) in uint8."""
    return to_pixels(patches).permute(0, 2, 3, 1).cpu().numpy()


def significant(value: np.floating | float) -> float:
    """Six digits are enough for a curve."""
    return float(f"{float(value):.{DIGITS}g}")
