"""The smallest run that is still a run: real photos, a network of two layers, batches of eight patches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from discopatch.demo import sample_photos
from discopatch.images import Transform, open_cache
from discopatch.images.tensors import to_unit
from discopatch.model import Architecture, Networks, extract_patches
from discopatch.model.patches import random_corners
from discopatch.training import TrainingConfig, get_preset
from discopatch.training.batches import TrainingImages, draw_batches, step_generator
from discopatch.training.folder import COLUMNS
from discopatch.training.step import Losses, Noise, adversarial_step
from discopatch.training.teachers import AuxiliaryDiscriminator
from tests.samples import TINY_EMBEDDED, TINY_INVERTED, camera_pixels

ARCHITECTURE = Architecture(patch_size=16, hidden=(4, 8), latent=4)


def tiny_config(**changes) -> TrainingConfig:
    tiny = {
        "architecture": ARCHITECTURE,
        "transform": Transform(size=64),
        "images": 2,
        "patches": 4,
        "steps": 12,
        "grouping": "batch",
    }
    return replace(get_preset("tiny"), **{**tiny, **changes})


def crop_config(**changes) -> TrainingConfig:
    """Crops of 48 pixels for an inverted network."""
    crops = {"architecture": TINY_INVERTED, "crop": 48, "weight_degraded": 1.0, "weight_classified": 0.5}
    return tiny_config(**{**crops, **changes})


def embedded_config(**changes) -> TrainingConfig:
    return crop_config(**{"architecture": TINY_EMBEDDED, "weight_embedded": 1.0, **changes})


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def squares(count: int = 22) -> Tensor:
    """(count, 64, 64, 3) in uint8."""
    return torch.from_numpy(camera_pixels(count))


def first_step(photos: Path, cache: Path, config: TrainingConfig, rank: int = 0) -> tuple[Losses, dict[str, nn.Module]]:
    """Losses of the first step of a rank, by hand and without Fabric, and the networks, which have its gradients."""
    networks = Networks.from_seed(config.architecture, config.seed)
    discriminator = AuxiliaryDiscriminator(networks.discriminator, config, {})
    still = [torch.optim.SGD(network.parameters(), lr=0.0) for network in (networks.vae, discriminator)]
    opened = open_cache(str(photos), config.transform, cache)
    images = TrainingImages(opened, torch.device("cpu"), config).take(rank * config.images, config.images)
    generator = step_generator(config.seed, 0, rank, "cpu")
    corners = random_corners(config.images, config.patches, size=64, patch_size=16, generator=generator)
    real = to_unit(extract_patches(images, corners, 16))
    noise = Noise(*(torch.randn(len(real), config.architecture.latent, generator=generator) for _ in range(2)))
    further = draw_batches(images, generator, 0, config) if config.weight_degraded else ()
    losses = adversarial_step(networks.vae, discriminator, still, real, noise, config, further=further)
    return losses, {"vae": networks.vae, "discriminator": discriminator}


def read_losses(path: Path) -> dict[str, np.ndarray]:
    """The columns of a file of losses."""
    table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return dict(zip(COLUMNS, table.T, strict=True))


def photo_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, photo in sample_photos(("astronaut", "coffee", "rocket", "camera", "cat")).items():
        Image.fromarray(photo).save(folder / f"{name}.png", compress_level=1)
    return folder
