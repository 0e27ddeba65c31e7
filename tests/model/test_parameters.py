"""The networks have the paper's number of parameters, and it is known which model its printed number belongs to."""

import torch
from torch import nn

from discopatch.model import PRESETS, VAE, Architecture, Discriminator


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def together(architecture: Architecture) -> int:
    with torch.device("meta"):
        return count(Discriminator(architecture)) + count(VAE(architecture))


def test_the_paper_preset_has_the_papers_parameters() -> None:
    architecture = PRESETS["paper"].architecture
    with torch.device("meta"):
        assert count(Discriminator(architecture)) == 6_218_753
        assert count(VAE(architecture)) == 62_899_587
    assert together(architecture) == 69_118_340


def test_the_full_preset_is_the_table_of_the_appendix() -> None:
    full = PRESETS["full"].architecture
    assert full == Architecture(patch_size=256, hidden=(32, 64, 128, 256, 512, 1024), latent=1024)
    assert together(full) == 69_249_380


def test_the_papers_printed_number_is_another_model_with_an_unused_layer() -> None:
    """69,240,517 is no model of the appendix: it is one of 128 pixels and five layers, with a second, idle head."""
    architecture = Architecture(patch_size=128, hidden=(64, 128, 256, 512, 1024), latent=1024)
    idle_head = architecture.flat + 1
    assert idle_head == 16_385
    assert together(architecture) + idle_head == 69_240_517
    assert together(PRESETS["full"].architecture) != 69_240_517


def test_the_small_preset_stays_small() -> None:
    assert together(PRESETS["tiny"].architecture) < 500_000
