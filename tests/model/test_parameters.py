"""The networks have the paper's number of parameters, and it is known which model its printed number belongs to."""

import torch
from torch import nn

from discopatch.model import VAE, Architecture, Discriminator
from discopatch.training import PRESETS


def n_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def n_parameters_of_both(architecture: Architecture) -> int:
    with torch.device("meta"):
        return n_parameters(Discriminator(architecture)) + n_parameters(VAE(architecture))


def test_the_paper_preset_has_the_papers_parameters() -> None:
    architecture = PRESETS["paper"].architecture
    with torch.device("meta"):
        assert n_parameters(Discriminator(architecture)) == 6_218_753
        assert n_parameters(VAE(architecture)) == 62_899_587
    assert n_parameters_of_both(architecture) == 69_118_340


def test_the_full_preset_is_the_table_of_the_appendix() -> None:
    full = PRESETS["full"].architecture
    assert full == Architecture(patch_size=256, hidden=(32, 64, 128, 256, 512, 1024), latent=1024)
    assert n_parameters_of_both(full) == 69_249_380


def test_the_papers_printed_number_is_another_model_with_an_unused_layer() -> None:
    """69,240,517 is no model of the appendix: it is one of 128 pixels and five layers, with a second, idle head."""
    architecture = Architecture(patch_size=128, hidden=(64, 128, 256, 512, 1024), latent=1024)
    idle_head = architecture.flat + 1
    assert idle_head == 16_385
    assert n_parameters_of_both(architecture) + idle_head == 69_240_517
    assert n_parameters_of_both(PRESETS["full"].architecture) != 69_240_517


def test_the_tiny_preset_stays_tiny() -> None:
    assert n_parameters_of_both(PRESETS["tiny"].architecture) < 500_000
