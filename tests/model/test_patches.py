"""Patches are cut where their corners say."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from discopatch.errors import ParameterError
from discopatch.model.patches import extract_patches, grid_corners, random_corners, scoring_corners


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(count: int, height: int, width: int, *, seed: int = 0) -> Tensor:
    return torch.randint(256, (count, height, width, 3), generator=seeded(seed), dtype=torch.uint8)


def cut_by_hand(images: Tensor, corners: Tensor, patch_size: int) -> Tensor:
    """One slice after the other."""
    found = []
    for image, places in zip(images, corners.tolist(), strict=True):
        for top, left in places:
            found.append(image[top : top + patch_size, left : left + patch_size].permute(2, 0, 1))
    return torch.stack(found)


def test_random_corners_reach_every_position_evenly() -> None:
    corners = random_corners(100, 400, size=40, patch_size=32, generator=seeded())
    assert corners.shape == (100, 400, 2)
    for axis in (0, 1):
        counts = torch.bincount(corners[..., axis].flatten(), minlength=9)
        assert len(counts) == 9, "positions 0 to 40 - 32"
        expected = 40_000 / 9
        chi_squared = float(((counts - expected) ** 2 / expected).sum())
        assert chi_squared < 26.1, "8 degrees of freedom, one in a thousand"


@pytest.mark.parametrize("patches", [2, 3, 16, 17, 64])
def test_a_grid_has_its_number_of_places_and_reaches_every_border(patches: int) -> None:
    corners = grid_corners(patches, size=256, patch_size=64)
    assert corners.shape == (patches, 2)
    assert len({tuple(corner) for corner in corners.tolist()}) == patches, "no place twice"
    assert corners.min(0).values.tolist() == [0, 0]
    assert corners.max(0).values.tolist() == [192, 192]
    assert grid_corners(1, size=256, patch_size=64).tolist() == [[96, 96]], "one is the centre"
    assert not grid_corners(5, size=64, patch_size=64).any()


@pytest.mark.parametrize(
    ("sampling", "patches", "named"),
    [("random", 4, r"65 .* 64"), ("grid", 0, "0 patches: give from 1"), ("spiral", 9, "'spiral'.* random or grid")],
)
def test_patches_that_cannot_be_cut_are_refused(sampling: Any, patches: int, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        scoring_corners(sampling, patches, size=64, patch_size=65, seed=0)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_cut_equals_plain_slices(data: st.DataObject) -> None:
    count, patches = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    height, width = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 24))
    patch_size = data.draw(st.integers(1, min(height, width)))
    place = st.tuples(st.integers(0, height - patch_size), st.integers(0, width - patch_size))
    one_image = st.lists(place, min_size=patches, max_size=patches)
    corners = torch.tensor(data.draw(st.lists(one_image, min_size=count, max_size=count)))
    images = random_images(count, height, width)
    assert torch.equal(extract_patches(images, corners, patch_size), cut_by_hand(images, corners, patch_size))
