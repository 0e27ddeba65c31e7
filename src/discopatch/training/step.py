"""One step of the paper's Algorithm 1, readable top to bottom."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from discopatch.model import Forgery
from discopatch.training.critic import Verdict
from discopatch.training.lesson import Answer, Lesson
from discopatch.training.recipe import Recipe


class Noise(NamedTuple):
    """The random draws of one step."""

    latent: Tensor  # epsilon_real, (B, latent)
    prior: Tensor  # z_fake, (B, latent)

    @classmethod
    def draw(cls, patches: int, latent: int, generator: torch.Generator) -> "Noise":
        """Standard normal, on the generator's device."""
        return cls(*(torch.randn(patches, latent, generator=generator, device=generator.device) for _ in range(2)))


class Losses(NamedTuple):
    """What one step was about, each a scalar."""

    vae: Tensor
    discriminator: Tensor
    reconstruction: Tensor
    kl: Tensor
    fool_reconstructed: Tensor
    fool_generated: Tensor
    spoiled: Tensor


def adversarial_step(
    vae: nn.Module,
    critic: nn.Module,
    optimisers: Iterable[Optimizer],
    real: Tensor,
    noise: Noise,
    recipe: Recipe,
    *,
    lesson: Lesson | None = None,
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the VAE and one of the discriminator from one forward pass of each.

    The discriminator judges each forgery once: the VAE's update and its own both follow from that judgement, before
    either network has changed. This equals the VAE's step first and the discriminator's on detached forgeries after.
    With a lesson the discriminator learns from that too, which is not the paper's.
    """
    forged: Forgery = vae(real, noise.latent, noise.prior)

    real_logits = critic(real, recipe.group).logits
    reconstructed_logits = critic(forged.reconstructed, recipe.group).logits
    generated_logits = critic(forged.generated, recipe.group).logits

    reconstruction = F.mse_loss(forged.reconstructed.float(), real)
    kl = kl_divergence(forged.mean.float(), forged.log_variance.float())
    fool_reconstructed = called_real(reconstructed_logits)
    fool_generated = called_real(generated_logits)
    vae_loss = (
        reconstruction
        + recipe.weight_kl * kl
        + recipe.weight_reconstructed * fool_reconstructed
        + recipe.weight_generated * fool_generated
    )
    discriminator_loss = 0.5 * (
        called_real(real_logits) + 0.5 * called_fake(generated_logits) + 0.5 * called_fake(reconstructed_logits)
    )
    spoiled = torch.zeros_like(discriminator_loss) if lesson is None else lesson_loss(critic, lesson, recipe)
    discriminator_loss = discriminator_loss + spoiled

    for optimiser in optimisers:
        optimiser.zero_grad()
    backward(vae_loss, inputs=learnable(vae), retain_graph=True)
    backward(discriminator_loss, inputs=learnable(critic))
    for optimiser in optimisers:
        optimiser.step()

    return Losses(
        *(
            loss.detach()
            for loss in (vae_loss, discriminator_loss, reconstruction, kl, fool_reconstructed, fool_generated, spoiled)
        )
    )


def lesson_step(
    critic: nn.Module,
    optimiser: Optimizer,
    lesson: Lesson,
    recipe: Recipe,
    *,
    backward: Callable[..., Any] = torch.autograd.backward,
) -> Losses:
    """One update of the discriminator from spoiled pictures alone, where there is no VAE; its losses are zero."""
    loss = lesson_loss(critic, lesson, recipe)
    optimiser.zero_grad()
    backward(loss, inputs=learnable(critic))
    optimiser.step()
    nothing = torch.zeros_like(loss.detach())
    return Losses(nothing, loss.detach(), nothing, nothing, nothing, nothing, loss.detach())


def lesson_loss(critic: nn.Module, lesson: Lesson, recipe: Recipe) -> Tensor:
    """A picture is real wherever one looks, its spoiled copy nowhere; each gets its name, and the teacher's answer."""
    real: Verdict = critic(lesson.pictures, 1, whole=True)
    spoiled: Verdict = critic(lesson.spoiled, 1, whole=True)
    loss = recipe.weight_spoiled * 0.5 * (called_real(real.logits) + called_fake(spoiled.logits))
    if real.names is not None and spoiled.names is not None:
        nothing = torch.zeros_like(lesson.defects)
        naming = F.cross_entropy(real.names, nothing) + F.cross_entropy(spoiled.names, lesson.defects)
        loss = loss + recipe.weight_named * 0.5 * naming
    if lesson.answers is not None:
        apart = [disagreement(*each) for each in zip((real, spoiled), lesson.answers, strict=True)]
        loss = loss + recipe.weight_taught * 0.5 * (apart[0] + apart[1])
    return loss


def disagreement(verdict: Verdict, answer: Answer) -> Tensor:
    """How far the discriminator is from what its teacher sees; what is far off pulls no more than what is near."""
    assert verdict.statistics is not None
    logits = F.smooth_l1_loss(verdict.logits.float(), answer.logits)
    return logits + F.smooth_l1_loss(verdict.statistics.float(), answer.statistics)


def kl_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """From N(mean, variance) to N(0, 1): summed over the latent, averaged over the batch."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()


def called_real(logits: Tensor) -> Tensor:
    """Binary cross-entropy on logits with the label "real", -log D."""
    return F.softplus(-logits.float()).mean()


def called_fake(logits: Tensor) -> Tensor:
    """Binary cross-entropy on logits with the label "fake", -log(1 - D)."""
    return F.softplus(logits.float()).mean()


def learnable(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]
