"""Pixels become floats in [-1, 1] and are found again exactly."""

import torch

from discopatch.images.tensors import to_pixels, to_range, to_unit


def test_all_256_values_are_found_again() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    unit = to_unit(values)
    assert unit.dtype == torch.float32
    assert unit[[0, -1]].tolist() == [-1, 1]
    assert (unit.diff() > 0).all()
    assert torch.equal(to_pixels(unit), values)


def test_values_beyond_the_range_become_black_and_white() -> None:
    assert to_pixels(torch.tensor([-1.5, 1.5, float("-inf"), float("inf")])).tolist() == [0, 255, 0, 255]


def test_the_range_is_chosen_by_name() -> None:
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_range(values, "symmetric"), to_unit(values))
    torch.testing.assert_close(to_range(values, "unit"), torch.linspace(0, 1, 256))
