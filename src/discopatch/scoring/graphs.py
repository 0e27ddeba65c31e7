"""The heads once more, in torch: to be exported, and to score on a GPU what was seen there.

All of it in float64, as in numpy; a runtime that has none computes in float32. So nothing here subtracts large numbers.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from discopatch.scoring.combined import SHARPNESS, CombinedHead
from discopatch.scoring.evidence import Evidence
from discopatch.scoring.heads import Array, Head, LogitHead, SigmoidHead
from discopatch.scoring.statistics import SMALLEST_DISTANCE, StatisticsHead


class NoGraph(ValueError):  # noqa: N818 - it says what is the matter
    """A head is known in numpy alone."""


class HeadOnDevice:
    """A fitted head where the network is: there no product waits for cores that are busy with decoding."""

    def __init__(self, head: Head, device: torch.device) -> None:
        self.head, self.device = head, device
        self._graph = head_graph(head).to(device)

    @torch.inference_mode()
    def score(self, evidence: Evidence) -> Array:
        """(images,), as the head itself has it, to rounding."""
        scores: Array = self._graph(*(torch.from_numpy(each).to(self.device) for each in evidence)).cpu().numpy()
        return scores


class LogitGraph(nn.Module):
    """See `LogitHead`."""

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, places), (B, 2 x channels) -> (B,)."""
        return -logits.double().mean(1)


class SigmoidGraph(nn.Module):
    """See `SigmoidHead`."""

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, places), (B, 2 x channels) -> (B,)."""
        return torch.sigmoid(-logits.double()).mean(1)


class StatisticsGraph(nn.Module):
    """See `StatisticsHead` and `ShrunkGaussian`."""

    mean: Tensor
    scale: Tensor
    axes: Tensor
    weights: Tensor

    def __init__(self, head: StatisticsHead) -> None:
        super().__init__()
        gaussian = head.fitted
        constants = {"mean": gaussian.mean, "scale": gaussian.scale, "weights": 1 / gaussian.variances}
        hold(self, **constants, axes=gaussian.axes)
        self.rest = gaussian.rest

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, places), (B, 2 x channels) -> (B,).

        What lies between the axes is measured itself: as the difference of two squares it would lose its digits.
        """
        standard = (statistics.double() - self.mean) / self.scale
        axes = self.axes.double()
        along = standard @ axes.T
        between = standard - along @ axes
        squared = (along * along) @ self.weights + (between * between).sum(1) / self.rest
        return (squared / len(self.mean)).clamp(min=SMALLEST_DISTANCE).log()


class CombinedGraph(nn.Module):
    """See `CombinedHead`."""

    filters: Tensor
    centres: Tensor
    spreads: Tensor

    def __init__(self, head: CombinedHead) -> None:
        super().__init__()
        self.distance = StatisticsGraph(head.statistics)
        hold(self, filters=head.filters, centres=head.centres, spreads=head.spreads)
        self.largest = tuple(head.largest.tolist())

    def forward(self, logits: Tensor, statistics: Tensor) -> Tensor:
        """(B, places), (B, 2 x channels) -> (B,)."""
        logit = -logits.double().mean(1, keepdim=True)
        distance = self.distance(logits, statistics)[:, None]
        answers = (statistics.double() - self.distance.mean) @ self.filters.T
        surprises = (torch.cat([logit, distance, answers], 1) - self.centres) / self.spreads
        return soft_maximum(self.voices(surprises))

    def voices(self, surprises: Tensor) -> Tensor:
        """(B, 2 + changes) -> (B, 3), or 2 where no changes are known."""
        if not self.largest:
            return surprises
        centre, spread = self.largest
        loudest = (surprises[:, 2:].amax(1, keepdim=True) - centre) / spread
        return torch.cat([surprises[:, :2], loudest], 1)


def soft_maximum(voices: Tensor) -> Tensor:
    """(B, voices) -> (B,); the largest is taken out before the exponential, which float32 could not hold."""
    largest = voices.amax(1, keepdim=True)
    summed = (SHARPNESS * (voices - largest)).exp().sum(1)
    return largest[:, 0] + summed.log() / SHARPNESS


def hold(module: nn.Module, **constants: ArrayLike) -> None:
    """As buffers of the module: copies, so that nobody's arrays are touched."""
    for name, value in constants.items():
        module.register_buffer(name, torch.from_numpy(np.array(value)))


def head_graph(head: Head) -> nn.Module:
    """The graph of a fitted head."""
    match head:
        case CombinedHead():
            return CombinedGraph(head)
        case StatisticsHead():
            return StatisticsGraph(head)
        case SigmoidHead():
            return SigmoidGraph()
        case LogitHead():
            return LogitGraph()
        case _:
            raise NoGraph(
                f"no graph is known for a head of type {type(head).__name__}: add one in discopatch/scoring/graphs.py, "
                "or fit with the head combined, statistics, logit or sigmoid"
            )
