"""Objectives of the discriminator that are not in the paper.

An objective is a function of the discriminator's output for a batch, the batch and the config that returns a weighted
loss. A new one is such a function, its entry in `OBJECTIVES`, and its weight in `TrainingConfig`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.training.batches import Batch
from discopatch.training.config import TrainingConfig
from discopatch.training.teachers import BEGINNING, LOGITS, MAPS, POOLED, SMALLEST_SCALE, AuxiliaryOutput, kind_of


def real_or_degraded(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Binary cross-entropy of every cell; its label is the share of its pixels that is not degraded."""
    logits = output.logits.float()
    if isinstance(batch.real, bool):
        loss = F.softplus(-logits if batch.real else logits).mean()
    else:
        real = F.interpolate(batch.real, logits.shape[1:] or (1, 1), mode="area").view_as(logits)
        loss = F.binary_cross_entropy_with_logits(logits, real)
    return config.weight_degraded * loss


def classified(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Cross-entropy of the degradation."""
    if output.classes is None:
        return zero(output)
    return config.weight_classified * F.cross_entropy(output.classes.float(), batch.classes)


def distilled(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Distances to the teachers' outputs, and to the features that the network began with."""
    if batch.targets is None:
        return zero(output)
    return config.weight_distilled * (teacher_distance(output, batch, config) + kept_distance(output, batch, config))


OBJECTIVES = {"degraded": real_or_degraded, "classified": classified, "distilled": distilled}


def further_losses(discriminator: nn.Module, batches: Sequence[Batch], config: TrainingConfig) -> dict[str, Tensor]:
    """Each objective, averaged over the batches."""
    outputs = [discriminator(batch.images, 1, auxiliary=True) for batch in batches]
    pairs = list(zip(outputs, batches, strict=True))
    return {
        name: torch.stack([objective(*pair, config) for pair in pairs]).mean() for name, objective in OBJECTIVES.items()
    }


def teacher_distance(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Smooth L1 distances; the logits are the student's own, the rest is predicted, maps on the teacher's grid."""
    assert output.predictions is not None
    assert batch.targets is not None
    distances = [zero(output)]
    for target, expected in batch.targets.items():
        if target.startswith(BEGINNING):
            continue
        kind = kind_of(target)
        found = output.logits if kind == LOGITS else output.predictions[target]
        if found.shape[2:] != expected.shape[2:]:
            found = F.interpolate(found, expected.shape[2:], mode="bilinear")
        weight = config.weight_maps if kind in MAPS else config.weight_pooled if kind == POOLED else 1.0
        distances.append(weight * F.smooth_l1_loss(found.float(), expected))
    return torch.stack(distances).sum()


def kept_distance(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Distance of the features from those that the network began with, where nothing is degraded.

    In deviations of each channel. The network keeps its description of content and is free where images are degraded.
    """
    assert output.features is not None
    assert batch.targets is not None
    distances = [zero(output)]
    for number, found in enumerate(output.features):
        expected = batch.targets.get(f"{BEGINNING}/{number}")
        if expected is not None:
            assert isinstance(batch.real, Tensor)  # only networks that are trained on crops begin as a teacher
            scale = expected.std((0, 2, 3), keepdim=True) + SMALLEST_SCALE
            real = F.interpolate(batch.real, expected.shape[2:], mode="area")
            difference = F.smooth_l1_loss(found.float() / scale, expected / scale, reduction="none")
            distances.append((real * difference).mean() / real.mean().clamp(min=SMALLEST_SCALE))
    return config.weight_kept * torch.stack(distances).sum()


def zero(output: AuxiliaryOutput) -> Tensor:
    return output.logits.new_zeros((), dtype=torch.float32)
