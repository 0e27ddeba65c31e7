"""Known changes, in the words in which they are reported, and how they move the statistics of normal images."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.defects import DEFECTS, spoil
from discopatch.images import Pixels
from discopatch.patches import to_pixels, to_unit
from discopatch.scoring.evidence import Evidence

Look = Callable[[Pixels], Evidence]  # pictures (B, size, size, 3) -> the evidence of them, or of parts of them
Change = Callable[[Tensor, torch.Generator], Tensor]  # pictures (B, 3, H, W) in [-1, 1] -> the same, changed


def defect(name: str) -> Change:
    """One of the defects that the discriminator was trained against, each picture at a strength of its own."""
    return lambda pictures, generator: spoil(pictures, DEFECTS[name], generator)


def level(shift: float) -> Change:
    """All values raised or lowered."""
    return lambda pictures, generator: pictures + shift


def contrast(factor: float) -> Change:
    """All values drawn towards their mean, or away from it."""

    def change(pictures: Tensor, generator: torch.Generator) -> Tensor:
        mean = pictures.mean((1, 2, 3), keepdim=True)
        return mean + factor * (pictures - mean)

    return change


def tint(red: float, blue: float) -> Change:
    """Red and blue weighed differently."""
    return lambda pictures, generator: (pictures + 1) * torch.tensor([red, 1.0, blue]).view(1, 3, 1, 1) - 1


CHANGES: dict[str, Change] = {
    "less fine detail than normal": defect("blurred"),
    "more fine detail than normal": defect("sharpened"),
    "more noise than normal": defect("noisy"),
    "coarser noise than normal": defect("grainy"),
    "blocks, as after strong compression": defect("compressed"),
    "coarse pixels, as if enlarged": defect("blocky"),
    "wavy, as through bad glass": defect("warped"),
    "paler or stronger colours than normal": defect("discoloured"),
    "hazier than normal": defect("hazy"),
    "specks or drops": defect("dirty"),
    "brighter than normal": level(0.25),
    "darker than normal": level(-0.25),
    "more contrast than normal": contrast(1.4),
    "less contrast than normal": contrast(0.65),
    "warmer colours than normal": tint(1.15, 0.85),
    "colder colours than normal": tint(0.85, 1.15),
}


def displacements(look: Look, pixels: Pixels, *, seed: int) -> dict[str, NDArray[np.float32]]:
    """How each change moves the statistics that one sees, looking at these pictures before and after it."""
    before = look(pixels).statistics
    pictures = to_unit(torch.from_numpy(pixels)).permute(0, 3, 1, 2)
    found = {}
    for name, change in CHANGES.items():
        changed = to_pixels(change(pictures, torch.Generator().manual_seed(seed)))
        found[name] = look(changed.permute(0, 2, 3, 1).numpy()).statistics - before
    return found
