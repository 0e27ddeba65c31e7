"""Labels stand beside what they name, and not on each other."""

import numpy as np
import pytest

from discopatch.bench.plots.label_placement import place_labels

BOX = (0.0, 0.0, 150.0, 220.0)


def overlap(centres, sizes) -> float:
    """The largest area that two labels share."""
    reach = (sizes[:, None] + sizes[None]) / 2
    shared = np.clip(reach - np.abs(centres[:, None] - centres[None]), 0, None).prod(2)
    np.fill_diagonal(shared, 0)
    return float(shared.max())


@pytest.mark.parametrize("seed", range(5))
def test_labels_of_two_crowded_columns_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    marks = np.stack([np.repeat([50.0, 80.0], 8) + rng.normal(0, 1, 16), rng.uniform(20, 200, 16)], axis=1)
    sizes = np.stack([rng.uniform(15, 45, 16), np.full(16, 7.0)], axis=1)
    centres = place_labels(marks, np.full(16, 4.0), sizes, BOX)
    assert overlap(centres, sizes) == 0
    assert (centres - sizes / 2 >= BOX[:2]).all()
    assert (centres + sizes / 2 <= BOX[2:]).all()


def test_a_label_alone_stands_close_by_and_off_its_mark() -> None:
    marks, sizes = np.array([[75.0, 100.0]]), np.array([[30.0, 7.0]])
    (centre,) = place_labels(marks, np.array([5.0]), sizes, BOX)
    gap = np.abs(centre - marks[0]) - sizes[0] / 2
    assert 5 <= np.hypot(*np.maximum(gap, 0)) < 12


def test_it_is_the_same_twice_and_takes_nothing_at_all() -> None:
    marks = np.random.default_rng(0).uniform(20, 130, (9, 2))
    sizes = np.full((9, 2), (20.0, 7.0))
    first, second = (place_labels(marks, np.full(9, 3.0), sizes, BOX) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert place_labels(np.zeros((0, 2)), np.zeros(0), np.zeros((0, 2)), BOX).shape == (0, 2)
