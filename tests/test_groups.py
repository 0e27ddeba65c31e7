"""What belongs together is told by names, or found in the features."""

from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discopatch.errors import ParameterError
from discopatch.groups import (
    BLOCK,
    MAX_COMPARED,
    comparable_images,
    find_groups,
    find_near_copies,
    group_names,
    group_numbers,
)
from tests.samples import made_up_features


@pytest.mark.parametrize(
    ("name", "folder", "without_number"),
    [
        ("day-1/part-17_0003.png", "day-1", "day-1/part-17"),
        ("day-1/part-17 (4).png", "day-1", "day-1/part-17"),
        ("shards/a.tar/x/0001.jpg", "shards/a.tar/x", "shards/a.tar/x/0001"),
        ("frame12.jpg", ".", "frame"),
        ("scene.4.jpeg", ".", "scene"),
        ("blank.png", ".", "blank"),
    ],
)
def test_names_tell_folders_and_series(name: str, folder: str, without_number: str) -> None:
    assert group_names([name], "folder") == [folder]
    assert group_names([name], "name") == [without_number]
    assert group_names([name], len) == [len(name)]


def test_a_rule_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ParameterError, match="'folder', 'name', 'auto'"):
        group_names(["a.png"], "scene")  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(), st.text(), st.tuples(st.integers(0, 3), st.booleans())), min_size=1))
def test_numbers_stand_for_the_same_groups(groups: list[Hashable]) -> None:
    numbers = group_numbers(groups)
    assert set(numbers) == set(range(len(set(groups))))
    assert all((numbers[a] == numbers[b]) == (groups[a] == groups[b]) for a in range(len(groups)) for b in range(a))


def frames(scenes: int, length: int, *, noise: float, seed: int) -> NDArray[np.float32]:
    """(scenes x length, dimensions): the frames of a scene follow one another and differ by the noise."""
    centres = made_up_features(scenes, seed=seed).statistics
    rng = np.random.default_rng([seed, 1])
    noises = rng.normal(0, noise, (scenes * length, centres.shape[1]))
    return (np.repeat(centres, length, axis=0) + noises).astype(np.float32)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("scenes", "length"), [(27, 4), (60, 2), (8, 10)])
def test_the_frames_of_a_scene_are_found_wherever_they_lie(scenes: int, length: int, shuffled: bool) -> None:
    order = np.random.default_rng(0).permutation(scenes * length) if shuffled else np.arange(scenes * length)
    found, _ = find_near_copies(frames(scenes, length, noise=0.05, seed=1)[order])
    assert np.array_equal(group_numbers(found), group_numbers(order // length))


def test_frames_that_follow_one_another_are_found_even_if_they_differ_as_much_as_scenes_nearly_do() -> None:
    hardly = frames(40, 3, noise=0.8, seed=0)
    found, in_order = find_near_copies(hardly)
    assert in_order
    assert (np.bincount(found)[found] > 1).mean() > 0.5
    assert has_no_copies(hardly[np.random.default_rng(0).permutation(120)]), "only their order shows them"


def has_no_copies(features: NDArray[np.float32]) -> bool:
    return np.array_equal(find_near_copies(features)[0], np.arange(len(features)))


def test_images_that_are_independent_have_no_near_copies() -> None:
    sets = [made_up_features(size, seed=seed).statistics for size in (30, 60, 200) for seed in range(30)]
    assert sum(not has_no_copies(each) for each in sets) <= 3
    assert has_no_copies(np.concatenate([sets[-1], sets[-1][:3]])), "a few copies among many images are no groups"


def test_of_too_many_images_blocks_are_compared_and_auto_asks_for_a_rule() -> None:
    looked_at = comparable_images(10 * MAX_COMPARED)
    assert len(looked_at) <= MAX_COMPARED
    assert (np.diff(looked_at) == 1).mean() > 1 - 2 / BLOCK, "or frames of one burst would not meet"
    many = np.zeros((MAX_COMPARED + 1, 1), np.float32)
    with pytest.raises(ParameterError, match="'folder', 'name' or one id"):
        find_groups("auto", many, [""] * len(many), np.arange(len(many)))


def test_near_copies_are_told_unless_groups_were_given_or_taken() -> None:
    statistics = frames(27, 4, noise=0.05, seed=2)
    names = [f"{place // 4}/{place}.png" for place in range(108)]
    alone = find_groups(None, statistics, names, np.arange(108))
    assert (alone.total, alone.kind, len(set(alone.alike))) == (108, None, 27)
    assert alone.caution is not None
    assert "groups='auto'" in alone.caution
    taken = find_groups("auto", statistics, names, np.arange(108))
    by_folder = find_groups("folder", statistics, names, np.arange(108))
    given_ids = find_groups([place // 4 for place in range(109)], statistics, names, np.arange(1, 109))
    assert [(each.total, each.kind, each.caution) for each in (taken, by_folder)] == [
        (27, "auto", None),
        (27, "folder", None),
    ]
    assert (given_ids.total, given_ids.kind) == (28, "given"), "ids count refused images too"
