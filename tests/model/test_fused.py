"""The fast passes of training give the numbers of the plain ones."""

import copy
from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from discopatch.model import Networks, Normalisation
from discopatch.model.kernels import fuse
from discopatch.model.kernels.fused import NormaliseActivate
from discopatch.training.step import Losses, Noise, adversarial_step
from discopatch.training.teachers import AuxiliaryDiscriminator
from tests.model.samples import normal, patches_of, relative_difference
from tests.samples import TINY
from tests.training.tiny import tiny_config


def plain_and_fused(normalisation: Normalisation = "patch") -> tuple[Networks, Networks]:
    plain = Networks.from_seed(replace(TINY, normalisation=normalisation), 0)
    with torch.no_grad():  # as if trained a little: scales and shifts are not 1 and 0
        for number, (name, parameter) in enumerate(
            (*plain.vae.named_parameters(), *plain.discriminator.named_parameters())
        ):
            if "norm" in name:
                parameter.add_(0.2 * normal(*parameter.shape, seed=number))
    fused = copy.deepcopy(plain)
    fuse(fused.vae, fused.discriminator)
    return plain, fused


def one_step(networks: Networks, grouping: Literal["batch", "image"]) -> Losses:
    heavy = {"weight_reconstructed": 0.5, "weight_generated": 0.5}
    config = tiny_config(architecture=networks.vae.architecture, patches=3, grouping=grouping, **heavy)
    noise = Noise(normal(6, TINY.latent, seed=1), normal(6, TINY.latent, seed=2))
    auxiliary = AuxiliaryDiscriminator(networks.discriminator, config, {})
    return adversarial_step(networks.vae, auxiliary, [], patches_of(6), noise, config)


def as_module(networks: Networks) -> nn.Module:
    return nn.ModuleDict({"vae": networks.vae, "discriminator": networks.discriminator})


@pytest.mark.parametrize(
    ("normalisation", "grouping"), [("patch", "batch"), ("patch", "image"), ("batch", "batch"), ("group", "batch")]
)
def test_a_step_has_the_losses_gradients_and_statistics_of_the_plain_one(
    normalisation: Normalisation, grouping: Literal["batch", "image"]
) -> None:
    plain, fused = plain_and_fused(normalisation)
    expected, found = one_step(plain, grouping), one_step(fused, grouping)

    torch.testing.assert_close(torch.stack([*found]), torch.stack([*expected]), rtol=1e-4, atol=1e-6)
    wanted, compared = dict(as_module(plain).named_parameters()), 0
    for name, parameter in dict(as_module(fused).named_parameters()).items():
        if parameter.requires_grad:
            reference = wanted[name].grad
            assert parameter.grad is not None
            assert reference is not None
            difference = (parameter.grad - reference).norm()
            assert difference < 1e-4 * reference.norm() + 1e-6, name
            compared += 1
    assert compared > 20
    statistics = dict(as_module(plain).named_buffers())
    assert any("running_var" in name for name in statistics)
    for name, values in dict(as_module(fused).named_buffers()).items():
        torch.testing.assert_close(values, statistics[name], rtol=1e-4, atol=1e-6, msg=name)
    assert "NormaliseActivate" in fused.vae.encoder[0](patches_of(4)).features.grad_fn.name(), "or it is not fused"


@torch.no_grad()
def test_evaluation_is_the_plain_one_to_the_bit() -> None:
    plain, fused = plain_and_fused()
    for networks in (plain, fused):
        as_module(networks).eval()
    x, noise, prior = patches_of(8), normal(8, 8, seed=1), normal(8, 8, seed=2)
    for ours, theirs in zip(fused.vae(x, noise, prior), plain.vae(x, noise, prior), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(fused.discriminator(x, 4).logits, plain.discriminator(x, 4).logits)


def test_half_precision_stays_near_full_precision() -> None:
    _, fused = plain_and_fused()
    x = patches_of(12)
    full = fused.discriminator(x, 4).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = fused.discriminator(x, 4).logits
    assert relative_difference(half.float(), full) < 0.05


@pytest.mark.parametrize("mean", [0.0, 300.0])
@pytest.mark.parametrize("group", [2, 3, 6])
def test_normalisation_and_activation_are_torchs(group: int, mean: float) -> None:
    x = (normal(6, 5, 8, 4) + mean).requires_grad_()
    weight, bias = (normal(5, seed=1) + 1).requires_grad_(), normal(5, seed=2).requires_grad_()
    ours, means, variances = NormaliseActivate.apply(x, weight, bias, group, 1e-5)
    exact, where = x.detach().double(), (x, weight, bias)
    groups = exact.view(-1, group, 5, 8, 4)
    torch.testing.assert_close(means.double(), groups.mean((1, 3, 4)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variances.double(), groups.var((1, 3, 4), unbiased=False), rtol=1e-4, atol=0)
    theirs = torch.cat(
        [F.leaky_relu(F.batch_norm(part, None, None, weight, bias, training=True)) for part in x.split(group)]
    )
    rounding = 1e-5 if mean == 0 else 1e-3
    torch.testing.assert_close(ours, theirs, rtol=0, atol=rounding)
    upstream = normal(6, 5, 8, 4, seed=11)
    for our, their in zip(
        torch.autograd.grad(ours, where, upstream), torch.autograd.grad(theirs, where, upstream), strict=True
    ):
        assert relative_difference(our, their) < (1e-4 if mean == 0 else 1e-2)
