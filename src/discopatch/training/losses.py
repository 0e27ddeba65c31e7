"""Terms of the losses of both networks."""

from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.training.augment import CropBatch, DegradedBatch
from discopatch.training.config import TrainingConfig
from discopatch.training.teachers import (
    BEGINNING,
    LOGITS,
    MAPS,
    POOLED,
    SMALLEST_SCALE,
    AuxiliaryOutput,
    Targets,
    kind_of,
)


class Losses(NamedTuple):
    """Losses of one step, each a scalar; also the columns of a run's CSV."""

    vae: Tensor
    discriminator: Tensor
    reconstruction: Tensor
    kl: Tensor
    fool_reconstructed: Tensor
    fool_generated: Tensor
    degraded: Tensor  # sum of all terms that are not in the paper, and of these
    classified: Tensor
    distilled: Tensor


class FurtherLosses(NamedTuple):
    """Weighted terms of the discriminator's loss that are not in the paper."""

    told_apart: Tensor  # real from degraded
    classified: Tensor
    distilled: Tensor

    @classmethod
    def weighted(cls, told_apart: Tensor, classified: Tensor, distilled: Tensor, config: TrainingConfig) -> Self:
        return cls(
            config.weight_degraded * told_apart,
            config.weight_classified * classified,
            config.weight_distilled * distilled,
        )

    @property
    def total(self) -> Tensor:
        return self.told_apart + self.classified + self.distilled


def real_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy with the label "real", -log D, which does not saturate in the logits."""
    return F.softplus(-logits.float()).mean()


def fake_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy with the label "fake", -log(1 - D), which does not saturate in the logits."""
    return F.softplus(logits.float()).mean()


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """From N(mean, variance) to N(0, 1): summed over the latent, averaged over the batch."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def further_losses(discriminator: nn.Module, batch: DegradedBatch | CropBatch, config: TrainingConfig) -> FurtherLosses:
    """Terms from degraded images, or from crops of which half are degraded."""
    if isinstance(batch, CropBatch):
        return crop_losses(discriminator, batch, config)
    return degraded_losses(discriminator, batch, config)


def degraded_losses(discriminator: nn.Module, batch: DegradedBatch, config: TrainingConfig) -> FurtherLosses:
    """Terms from whole images, which are real at every place, and their degraded copies, which are fake."""
    real: AuxiliaryOutput = discriminator(batch.images, 1, auxiliary=True)
    degraded: AuxiliaryOutput = discriminator(batch.degraded, 1, auxiliary=True)
    told_apart = 0.5 * (real_loss(real.logits) + fake_loss(degraded.logits))
    classified = distilled = torch.zeros_like(told_apart)
    if real.classes is not None and degraded.classes is not None:
        intact = torch.zeros_like(batch.classes)
        classified = 0.5 * (F.cross_entropy(real.classes, intact) + F.cross_entropy(degraded.classes, batch.classes))
    if batch.targets is not None:
        outputs = zip((real, degraded), batch.targets, strict=True)
        distilled = 0.5 * torch.stack([distillation_loss(*each, config) for each in outputs]).sum()
    return FurtherLosses.weighted(told_apart, classified, distilled, config)


def crop_losses(discriminator: nn.Module, batch: CropBatch, config: TrainingConfig) -> FurtherLosses:
    """Terms from crops; the label of a cell is the share of its pixels that is not degraded."""
    output: AuxiliaryOutput = discriminator(batch.images, 1, auxiliary=True)
    logits = output.logits.float()
    real = F.interpolate(batch.real, logits.shape[1:] or (1, 1), mode="area").view_as(logits)
    told_apart = F.binary_cross_entropy_with_logits(logits, real)
    classified = distilled = torch.zeros_like(told_apart)
    if output.classes is not None:
        classified = F.cross_entropy(output.classes.float(), batch.classes)
    if batch.targets is not None:
        distilled = distillation_loss(output, batch.targets, config) + kept_loss(output, batch, config)
    return FurtherLosses.weighted(told_apart, classified, distilled, config)


def distillation_loss(student: AuxiliaryOutput, targets: Targets, config: TrainingConfig) -> Tensor:
    """Smooth L1 distances to the teachers' outputs.

    The logits are the student's own, the rest is predicted; maps are resized to the teacher's grid.
    """
    assert student.predictions is not None
    distances = [torch.zeros_like(student.logits.sum(), dtype=torch.float32)]
    for target, expected in targets.items():
        kind = kind_of(target)
        if target.startswith(BEGINNING):
            continue
        found = student.logits if kind == LOGITS else student.predictions[target]
        if found.shape[2:] != expected.shape[2:]:
            found = F.interpolate(found, expected.shape[2:], mode="bilinear")
        weight = config.weight_maps if kind in MAPS else config.weight_pooled if kind == POOLED else 1.0
        distances.append(weight * F.smooth_l1_loss(found.float(), expected))
    return torch.stack(distances).sum()


def kept_loss(student: AuxiliaryOutput, batch: CropBatch, config: TrainingConfig) -> Tensor:
    """Distance of the features from those that the network began with, where nothing is degraded.

    In deviations of each channel. The network keeps its description of content and is free where images are degraded.
    """
    assert student.features is not None
    assert batch.targets is not None
    distances = [torch.zeros_like(student.logits.sum(), dtype=torch.float32)]
    for number, found in enumerate(student.features):
        expected = batch.targets.get(f"{BEGINNING}/{number}")
        if expected is not None:
            scale = expected.std((0, 2, 3), keepdim=True) + SMALLEST_SCALE
            real = F.interpolate(batch.real, expected.shape[2:], mode="area")
            difference = F.smooth_l1_loss(found.float() / scale, expected / scale, reduction="none")
            distances.append((real * difference).mean() / real.mean().clamp(min=SMALLEST_SCALE))
    return config.weight_kept * torch.stack(distances).sum()
