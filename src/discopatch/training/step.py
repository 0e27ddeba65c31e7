"""One step of the paper's Algorithm 1."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from discopatch.model.vae import VAEOutput
from discopatch.training.augment import CropBatch, DegradedBatch
from discopatch.training.config import TrainingConfig
from discopatch.training.losses import Losses, fake_loss, further_losses, kl_divergence, real_loss


class Noise(NamedTuple):
    """The random draws of one step."""

    latent: Tensor  # epsilon_real, (B, latent)
    prior: Tensor  # z_fake, (B, latent)

    @classmethod
    def draw(cls, patches: int, latent: int, generator: torch.Generator) -> Self:
        """Standard normal values on the generator's device."""
        return cls(*(torch.randn(patches, latent, generator=generator, device=generator.device) for _ in range(2)))


def adversarial_step(
    vae: nn.Module,
    discriminator: nn.Module,
    optimisers: Sequence[Optimizer],
    real: Tensor,
    noise: Noise,
    config: TrainingConfig,
    *,
    degraded: DegradedBatch | CropBatch | None = None,
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the VAE and one of the discriminator, from one forward pass of each over real (B, 3, S, S).

    Each fake batch passes the discriminator once: both updates follow from those logits, before either network has
    changed. This equals the VAE's update first and the discriminator's on detached fakes after. With `degraded` the
    discriminator also learns from that batch, which is not in the paper.
    """
    further = None if degraded is None else further_losses(discriminator, degraded, config)
    fake: VAEOutput = vae(real, noise.latent, noise.prior)

    real_logits, reconstructed_logits, generated_logits = patch_logits(
        discriminator, (real, fake.reconstructed, fake.generated), config
    )

    reconstruction = F.mse_loss(fake.reconstructed.float(), real)
    kl = kl_divergence(fake.mean.float(), fake.log_variance.float())
    fool_reconstructed = real_loss(reconstructed_logits)
    fool_generated = real_loss(generated_logits)
    vae_loss = (
        reconstruction
        + config.weight_kl * kl
        + config.weight_reconstructed * fool_reconstructed
        + config.weight_generated * fool_generated
    )
    discriminator_loss = 0.5 * (
        real_loss(real_logits) + 0.5 * fake_loss(generated_logits) + 0.5 * fake_loss(reconstructed_logits)
    )
    added = [torch.zeros_like(discriminator_loss)] * 3
    if further is not None:
        added = [further.total, further.classified, further.distilled]
    discriminator_loss = discriminator_loss + added[0]

    for optimiser in optimisers:
        optimiser.zero_grad()
    backward(vae_loss, inputs=learnable(vae), retain_graph=True)
    backward(discriminator_loss, inputs=learnable(discriminator))
    for optimiser in optimisers:
        optimiser.step()

    losses = Losses(vae_loss, discriminator_loss, reconstruction, kl, fool_reconstructed, fool_generated, *added)
    return Losses(*(loss.detach() for loss in losses))


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


def degraded_step(
    discriminator: nn.Module,
    optimiser: Optimizer,
    batch: DegradedBatch | CropBatch,
    config: TrainingConfig,
    *,
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the discriminator from degraded images alone, where there is no VAE; the VAE's losses are zero."""
    further = further_losses(discriminator, batch, config)
    optimiser.zero_grad()
    backward(further.total, inputs=learnable(discriminator))
    optimiser.step()
    loss, classified, distilled = (each.detach() for each in (further.total, further.classified, further.distilled))
    zero = torch.zeros_like(loss)
    return Losses(zero, loss, zero, zero, zero, zero, loss, classified, distilled)


def learnable(network: nn.Module) -> list[nn.Parameter]:
    """Trained parameters; the fused passes leave some biases out."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
