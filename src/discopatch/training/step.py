"""One step of the paper's Algorithm 1."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from discopatch.model.networks import VAEOutput
from discopatch.training.batches import Batch
from discopatch.training.config import TrainingConfig
from discopatch.training.objectives import further_losses


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
    distilled: Tensor


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
    vae: nn.Module,
    discriminator: nn.Module,
    optimisers: Sequence[Optimizer],
    real: Tensor,
    noise: Noise,
    config: TrainingConfig,
    *,
    further: Sequence[Batch] = (),
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the VAE and one of the discriminator, from one forward pass of each over real (B, 3, S, S).

    Each fake batch passes the discriminator once: both updates follow from those logits, before either network has
    changed. This equals the VAE's update first and the discriminator's on detached fakes after. The discriminator also
    learns from `further` batches, which are not in the paper.
    """
    added = further_losses(discriminator, further, config) if further else {}
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
    zero = torch.zeros_like(vae_loss)
    degraded = sum(added.values(), zero)
    discriminator_loss = degraded + 0.5 * (
        real_loss(real_logits) + 0.5 * fake_loss(generated_logits) + 0.5 * fake_loss(reconstructed_logits)
    )

    for optimiser in optimisers:
        optimiser.zero_grad()
    backward(vae_loss, inputs=learnable(vae), retain_graph=True)
    backward(discriminator_loss, inputs=learnable(discriminator))
    for optimiser in optimisers:
        optimiser.step()

    losses = (vae_loss, discriminator_loss, reconstruction, kl, fool_reconstructed, fool_generated, degraded)
    parts = (added.get("classified", zero), added.get("distilled", zero))
    return Losses(*(loss.detach() for loss in (*losses, *parts)))


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
    batches: Sequence[Batch],
    config: TrainingConfig,
    *,
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the discriminator by the further objectives alone, without a VAE, whose losses are zero."""
    added = further_losses(discriminator, batches, config)
    loss = sum(added.values(), torch.zeros_like(added["degraded"]))
    optimiser.zero_grad()
    backward(loss, inputs=learnable(discriminator))
    optimiser.step()
    zero = torch.zeros_like(loss)
    losses = (zero, loss, zero, zero, zero, zero, loss, added["classified"], added["distilled"])
    return Losses(*(each.detach() for each in losses))


def learnable(network: nn.Module) -> list[nn.Parameter]:
    """Trained parameters; the fused passes leave some biases out."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
