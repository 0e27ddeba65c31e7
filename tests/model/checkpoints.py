"""A discriminator as the paper's authors build and save it, written from their keys and shapes alone."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PATCH, WIDTHS = 16, (32, 64)
State = dict[str, Tensor]


def their_network(normalisation: str, *, widths: tuple[int, ...] = WIDTHS, patch: int = PATCH) -> nn.Sequential:
    """As their repository (caetas/DisCoPatch) lays it out: order, shapes and keys."""
    torch.manual_seed(len(widths))
    blocks = []
    for inputs, outputs in pairwise((3, *widths)):
        norm = nn.BatchNorm2d(outputs) if normalisation == "batch" else nn.GroupNorm(32, outputs)
        nn.init.normal_(norm.weight, 1, 0.3)
        nn.init.normal_(norm.bias, 0, 0.3)
        blocks.append(nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), norm, nn.LeakyReLU()))
    flat = widths[-1] * (patch // 2 ** len(widths)) ** 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(flat, 1), nn.Sigmoid())


def their_state(network: nn.Sequential) -> State:
    """Its state dict as they save it, with the linear layer that they never use."""
    state = {f"encoder.{name}": value for name, value in network.state_dict().items()}
    flat = state[f"encoder.{len(network) - 2}.weight"].shape[1]
    return {**state, "fc.weight": torch.randn(1, flat), "fc.bias": torch.randn(1)}


def saved(state: Any, folder: Path) -> Path:
    torch.save(state, folder / "Discriminator_imagenet.pt")
    return folder / "Discriminator_imagenet.pt"
