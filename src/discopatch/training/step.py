"""One step of the paper's Algorithm 1, and the objectives of the discriminator that are not in the paper.

Such an objective is a function of the discriminator's output for a batch, the batch and the config that returns a
weighted loss. A new one is such a function, its entry in `OBJECTIVES`, and its weight in `TrainingConfig`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from discopatch.model.networks import VAEOutput
from discopatch.training.batches import Batch
from discopatch.training.config import TrainingConfig
from discopatch.training.teachers import (
    BEGINNING,
    EMBEDDING,
    MAPS,
    POOLED,
    SMALLEST_SCALE,
    AuxiliaryOutput,
    kind_of,
)


class Noise(NamedTuple):
    """The random draws of one step."""

    latent: Tensor  # epsilon_real, (B, latent)
    prior: Tensor  # z_fake, (B, latent)

    @classmethod
    def draw(cls, patches: int, latent: int, generator: torch.Generator) -> Self:
        """Standard normal values on the generator's device."""
        return cls(*(torch.randn(patches, latent, generator=generator, device=generator.device) for _ in range(2)))


class Losses(NamedTuple):
    """Losses of one step, each a scalar; also the columns of a run's CSV."""

    vae: Tensor
    discriminator: Tensor
    reconstruction: Tensor
    kl: Tensor
    fool_reconstructed: Tensor
    fool_generated: Tensor
    degraded: Tensor  # sum of all objectives that are not in the paper, and of these
    classified: Tensor
    embedded: Tensor
    distilled: Tensor


TEMPERATURE = 0.1  # of the similarity of embeddings


def real_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy with the label "real", -log D, which does not saturate in the logits."""
    return F.softplus(-logits.float()).mean()


def fake_loss(logits: Tensor) -> Tensor:
    """Binary cross-entropy with the label "fake", -log(1 - D), which does not saturate in the logits."""
    return F.softplus(logits.float()).mean()


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """From N(mean, variance) to N(0, 1): summed over the latent, averaged over the batch."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def adversarial_step(
    vae: nn.Module | None,
    discriminator: nn.Module,
    optimisers: Sequence[Optimizer],
    real: Tensor | None,
    noise: Noise | None,
    config: TrainingConfig,
    *,
    further: Sequence[Batch] = (),
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the VAE and one of the discriminator, from one forward pass of each over real (B, 3, S, S).

    Each fake batch passes the discriminator once: both updates follow from those logits, before either network has
    changed. This equals the VAE's update first and the discriminator's on detached fakes after. The discriminator also
    learns from `further` batches, which are not in the paper; without a VAE from these alone.
    """
    added = further_losses(discriminator, further, config) if further else {}
    zero = torch.zeros((), device=next(discriminator.parameters()).device)
    losses = dict.fromkeys(Losses._fields, zero) | added
    losses["degraded"] = losses["discriminator"] = sum(added.values(), zero)
    if vae is not None:
        assert real is not None
        assert noise is not None
        fake: VAEOutput = vae(real, noise.latent, noise.prior)
        real_logits, reconstructed_logits, generated_logits = patch_logits(
            discriminator, (real, fake.reconstructed, fake.generated), config
        )
        losses["reconstruction"] = F.mse_loss(fake.reconstructed.float(), real)
        losses["kl"] = kl_divergence(fake.mean.float(), fake.log_variance.float())
        losses["fool_reconstructed"] = real_loss(reconstructed_logits)
        losses["fool_generated"] = real_loss(generated_logits)
        losses["vae"] = (
            losses["reconstruction"]
            + config.weight_kl * losses["kl"]
            + config.weight_reconstructed * losses["fool_reconstructed"]
            + config.weight_generated * losses["fool_generated"]
        )
        losses["discriminator"] = losses["degraded"] + 0.5 * (
            real_loss(real_logits) + 0.5 * fake_loss(generated_logits) + 0.5 * fake_loss(reconstructed_logits)
        )

    for optimiser in optimisers:
        optimiser.zero_grad()
    if vae is not None:
        backward(losses["vae"], inputs=learnable(vae), retain_graph=True)
    backward(losses["discriminator"], inputs=learnable(discriminator))
    for optimiser in optimisers:
        optimiser.step()
    return Losses(**{name: loss.detach() for name, loss in losses.items()})


def patch_logits(discriminator: nn.Module, batches: Sequence[Tensor], config: TrainingConfig) -> Sequence[Tensor]:
    """The logits (B,) of each batch of patches.

    Without normalisation they pass together: the same results from a third of the launches.
    """
    if config.architecture.kind == "inverted" and config.group is not None:
        together: Tensor = discriminator(
            torch.cat([each.to(batches[0].dtype) for each in batches]), config.group
        ).logits
        return together.chunk(len(batches))
    return [discriminator(each, config.group).logits for each in batches]


def learnable(network: nn.Module) -> list[nn.Parameter]:
    """Trained parameters; the fused passes leave some biases out."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


# Objectives that are not in the paper


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


def embedded(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Cross-entropy of finding equally degraded images among all others by the cosine of their embeddings.

    After Khosla et al., Supervised Contrastive Learning (2020), and Agnolucci et al., ARNIQA (2024). Images of other
    scenes that are degraded equally come together; the same image, degraded otherwise or not at all, is kept apart.
    """
    if output.embedding is None:
        return zero(output)
    directions, recipes = F.normalize(output.embedding.float()), batch.recipes
    itself = torch.eye(len(recipes), dtype=torch.bool, device=recipes.device)
    similarity = directions @ directions.T / TEMPERATURE
    similarity = similarity.masked_fill(itself | (recipes < 0), -1 / SMALLEST_SCALE**2)
    same = (recipes[:, None] == recipes) & (recipes >= 0) & ~itself
    found = (similarity.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)
    return config.weight_embedded * -found.sum() / same.any(1).sum().clamp(min=1)


def distilled(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Distances to the teachers' outputs, and to the features that the network began with."""
    if batch.targets is None:
        return zero(output)
    return config.weight_distilled * (teacher_distance(output, batch, config) + kept_distance(output, batch, config))


OBJECTIVES = {"degraded": real_or_degraded, "classified": classified, "embedded": embedded, "distilled": distilled}


def further_losses(discriminator: nn.Module, batches: Sequence[Batch], config: TrainingConfig) -> dict[str, Tensor]:
    """Each objective, averaged over the batches."""
    outputs = [discriminator(batch.images, 1, auxiliary=True) for batch in batches]
    pairs = list(zip(outputs, batches, strict=True))
    return {
        name: torch.stack([objective(*pair, config) for pair in pairs]).mean() for name, objective in OBJECTIVES.items()
    }


def teacher_distance(output: AuxiliaryOutput, batch: Batch, config: TrainingConfig) -> Tensor:
    """Smooth L1 distances, of embeddings 1 - cosine.

    The embedding is the student's own; the rest is predicted, maps on the teacher's grid.
    """
    assert output.predictions is not None
    assert batch.targets is not None
    distances = [zero(output)]
    for target, expected in batch.targets.items():
        if target.startswith(BEGINNING):
            continue
        kind = kind_of(target)
        if kind == EMBEDDING:
            assert output.embedding is not None
            distance = 1 - F.cosine_similarity(output.embedding.float(), expected).mean()
            distances.append(config.weight_cosine * distance)
            continue
        found = output.predictions[target]
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
