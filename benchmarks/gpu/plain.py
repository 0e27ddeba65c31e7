"""The plain pass, as the scorer has it."""

from collections.abc import Callable

import torch
from torch import Tensor

from discopatch.model import Discriminator
from discopatch.patches import cut, to_unit


def plain_pass(network: Discriminator, corners: Tensor | None, *, half: bool) -> Callable[[Tensor], Tensor]:
    """Pictures -> statistics and logits side by side, with autocast to bfloat16 or all in float32."""

    def see(pictures: Tensor) -> Tensor:
        group, patches = 1, pictures.permute(0, 3, 1, 2)
        if corners is not None:
            group = len(corners)
            patches = cut(pictures, corners.expand(len(pictures), -1, -1), network.architecture.patch_size)
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=half):
            found = network.inspect(to_unit(patches), group)
        return torch.cat((found.statistics, found.logits.float().reshape(len(pictures), -1)), 1)

    return see
