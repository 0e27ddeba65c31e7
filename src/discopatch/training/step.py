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
