"""Probes: known changes of an image, and how each moves the statistics of normal images."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.corruptions.degradations import DEGRADATIONS, degrade
from discopatch.encoders import Features
from discopatch.images import Pixels
from discopatch.images.tensors import to_pixels, to_unit

Change = Callable[[Tensor, torch.Generator], Tensor]  # images (B, 3, H, W) in [-1, 1] -> the same, changed

MIN_Z = 3.0  # from which a known change is named as a reason
MAX_REASONS = 3


class Probe(NamedTuple):
    """A known change, and the words in which it is reported."""

    text: str
    change: Change


def degradation(name: str) -> Change:
    """One of the degradations that the discriminator was trained against, each image at a strength of its own."""
    return lambda images, generator: degrade(images, DEGRADATIONS[name], generator)


def shift_level(shift: float) -> Change:
    """All values raised or lowered."""
    return lambda images, generator: images + shift


def scale_contrast(factor: float) -> Change:
    """All values moved towards the image's mean, or away from it."""

    def change(images: Tensor, generator: torch.Generator) -> Tensor:
        mean = images.mean((1, 2, 3), keepdim=True)
        return mean + factor * (images - mean)

    return change


def tint(red: float, blue: float) -> Change:
    """Red and blue multiplied by these factors."""
    return lambda images, generator: (images + 1) * torch.tensor([red, 1.0, blue]).view(1, 3, 1, 1) - 1


# Saved detectors hold the ids; the texts may change.
PROBES: dict[str, Probe] = {
    "blur": Probe("less fine detail than normal", degradation("blurred")),
    "sharpening": Probe("more fine detail than normal", degradation("sharpened")),
    "noise": Probe("more noise than normal", degradation("noisy")),
    "grain": Probe("coarser noise than normal", degradation("grainy")),
    "compression": Probe("blocks, as after strong compression", degradation("compressed")),
    "pixelation": Probe("coarse pixels, as if enlarged", degradation("blocky")),
    "warp": Probe("wavy, as through bad glass", degradation("warped")),
    "colour": Probe("paler or stronger colours than normal", degradation("discoloured")),
    "haze": Probe("hazier than normal", degradation("hazy")),
    "specks": Probe("specks or drops", degradation("dirty")),
    "brighter": Probe("brighter than normal", shift_level(0.25)),
    "darker": Probe("darker than normal", shift_level(-0.25)),
    "more_contrast": Probe("more contrast than normal", scale_contrast(1.4)),
    "less_contrast": Probe("less contrast than normal", scale_contrast(0.65)),
    "warmer": Probe("warmer colours than normal", tint(1.15, 0.85)),
    "colder": Probe("colder colours than normal", tint(0.85, 1.15)),
}


def measure_shifts(
    extract: Callable[[Pixels], Features], pixels: Pixels, *, seed: int
) -> dict[str, NDArray[np.float32]]:
    """How each probe's change moves the statistics of images (B, size, size, 3): probe id -> (images, 2 x channels).

    `extract` gives the features of images, or of parts of them.
    """
    before = extract(pixels).statistics
    images = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    shifts = {}
    for name, probe in PROBES.items():
        changed = to_pixels(probe.change(images, torch.Generator().manual_seed(seed)))
        shifts[name] = extract(changed.permute(0, 2, 3, 1).numpy()).statistics - before
    return shifts


def notable_probes(image: Mapping[str, float], regions: Mapping[str, float]) -> dict[str, float]:
    """The probes that stand out with their z-scores, the largest first, none below half of that.

    A change of the whole image shows in its own statistics, one of a corner only in those of the corner's regions.
    """
    z = {name: max(image.get(name, 0.0), regions[name]) for name in regions}
    enough = max(MIN_Z, max(z.values(), default=0.0) / 2)
    notable = sorted((name for name in z if z[name] >= enough), key=lambda name: -z[name])
    return {name: z[name] for name in notable[:MAX_REASONS]}
