"""The terms of both networks' losses."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from discopatch.training.augment import DegradedBatch
from discopatch.training.auxiliary import AuxiliaryOutput
from discopatch.training.config import TrainingConfig
from discopatch.training.distill import TeacherOutput


class Losses(NamedTuple):
    """The losses of one step, each a scalar; also the columns of a run's log."""

    vae: Tensor
    discriminator: Tensor
    reconstruction: Tensor
    kl: Tensor
    fool_reconstructed: Tensor
    fool_generated: Tensor
    degraded: Tensor


def real_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy with the label "real", -log D, which does not saturate in the logits."""
    return F.softplus(-logits.float()).mean()


def fake_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy with the label "fake", -log(1 - D), which does not saturate in the logits."""
    return F.softplus(logits.float()).mean()


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """From N(mean, variance) to N(0, 1): summed over the latent, averaged over the batch."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def degraded_loss(discriminator: nn.Module, batch: DegradedBatch, config: TrainingConfig) -> Tensor:
    """The images are real at every place, their degraded copies fake; not in the paper.

    Where the discriminator has the auxiliary outputs, the degradations are classified and a teacher is reproduced.
    """
    real: AuxiliaryOutput = discriminator(batch.images, 1, auxiliary=True)
    degraded: AuxiliaryOutput = discriminator(batch.degraded, 1, auxiliary=True)
    loss = config.weight_degraded * 0.5 * (real_loss(real.logits) + fake_loss(degraded.logits))
    if real.classes is not None and degraded.classes is not None:
        intact = torch.zeros_like(batch.classes)
        classification = F.cross_entropy(real.classes, intact) + F.cross_entropy(degraded.classes, batch.classes)
        loss = loss + config.weight_classified * 0.5 * classification
    if batch.targets is not None:
        distances = distillation_loss(real, batch.targets[0]) + distillation_loss(degraded, batch.targets[1])
        loss = loss + config.weight_distilled * 0.5 * distances
    return loss


def distillation_loss(student: AuxiliaryOutput, teacher: TeacherOutput) -> Tensor:
    """Smooth L1 distance of the logits and of the predicted statistics, so that outliers do not dominate."""
    assert student.statistics is not None
    logits = F.smooth_l1_loss(student.logits.float(), teacher.logits)
    return logits + F.smooth_l1_loss(student.statistics.float(), teacher.statistics)
