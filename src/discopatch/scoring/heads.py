"""Heads: what the discriminator says of an image's patches becomes one number, higher for more out-of-distribution."""

from typing import Protocol

import torch
from torch import Tensor


class Head(Protocol):
    """Turns an image's logits into its score."""

    def score(self, logits: Tensor) -> Tensor:
        """(images, patches) -> (images,)."""


class LogitHead:
    """The mean logit, turned round: the paper's order of images, without its saturation."""

    def score(self, logits: Tensor) -> Tensor:
        """-mean(logit)."""
        return -logits.double().mean(1)


class SigmoidHead:
    """The paper's score: one minus the mean probability of being real. Float64, since sigmoids saturate."""

    def score(self, logits: Tensor) -> Tensor:
        """1 - mean(sigmoid(logit)), as the mean of sigmoid(-logit) so that small scores keep their digits."""
        return torch.sigmoid(-logits.double()).mean(1)


HEADS: dict[str, type[Head]] = {"logit": LogitHead, "sigmoid": SigmoidHead}


def find_head(name: str) -> Head:
    """The head of that name, or an error that lists the names there are."""
    try:
        return HEADS[name]()
    except KeyError:
        raise ValueError(f"unknown head {name!r}: choose one of {', '.join(HEADS)}") from None
