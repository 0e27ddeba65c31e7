"""How images pass a network from outside: resized whole, one by one, and what is refused of it."""

from typing import Self

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from discopatch.encoders import NetworkEncoder, OutsideNetwork
from discopatch.encoders.network import as_map
from discopatch.errors import ParameterError, WeightsError
from discopatch.images import Transform
from tests.samples import one_camera


class Recording(OutsideNetwork):
    """Gives its input as the only layer, and keeps it."""

    def __init__(self, *, side: int | None = None, any_side: bool = True) -> None:
        super().__init__("recording", "0" * 16, side=side, any_side=any_side)
        self.given: list[Tensor] = []

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        self.given.append(x)
        return [x], x.mean((2, 3))

    def on_device(self, device: torch.device) -> Self:
        return self


@pytest.mark.parametrize(
    ("side", "any_side", "height", "width"),
    [(64, True, 24, 18), (512, True, 192, 144), (None, True, 96, 72), (40, False, 40, 40)],
)
def test_images_are_resized_whole_as_256_pixels_are_to_the_side(
    side: int | None, any_side: bool, height: int, width: int
) -> None:
    """Pillow rounds to bytes after each direction."""
    network = Recording(side=side, any_side=any_side).check()
    pixels = one_camera(1, size=96)[0].pixels[:, :72]
    network.given.clear()
    NetworkEncoder(network, transform=Transform(size=96)).extract_pixels(pixels[None])
    (found,) = network.given
    expected = np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    assert found.shape == (1, 3, height, width)
    assert np.abs(found[0].permute(1, 2, 0).numpy() - expected).max() <= 1.01


def test_tokens_become_the_grid_that_they_stand_for() -> None:
    grid = torch.arange(2 * 9 * 4.0).reshape(2, 9, 4)
    tokens = torch.cat([torch.full((2, 5, 4), -1.0), grid], 1)
    found = as_map(tokens)
    assert found.shape == (2, 4, 3, 3)
    assert torch.equal(found[1, 2, 1], grid[1, 3:6, 2]), "row by row"
    maps = torch.zeros(1, 2, 3, 3)
    assert as_map(maps) is maps
    with pytest.raises(WeightsError, match="square"):
        as_map(torch.zeros(1, 32 * 32 + 40, 4))


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ParameterError, match="batch_size"):
        NetworkEncoder(Recording().check(), batch_size=0)
