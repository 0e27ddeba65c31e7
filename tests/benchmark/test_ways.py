from collections.abc import Callable

import numpy as np
import pytest

from discopatch.benchmark.protocols import Protocol, matched, paper
from discopatch.benchmark.storage import LOSSLESS, Storage
from discopatch.benchmark.suites.suite import OtherSet, Suite
from discopatch.benchmark.ways import Corrupt, Crop, Resize, Store, Way, describe, travel
from discopatch.images import Transform
from discopatch.images.corrupt import corrupt
from discopatch.images.samples import sample_photos

TRANSFORM = Transform(size=96)
PHOTO = sample_photos(["coffee"])["coffee"]


def suite(*, stored: Storage = LOSSLESS, in_files: bool = False) -> Suite:
    corrupted = {("fog", 1): ()} if in_files else {}
    return Suite("of nothing", (), (), (), corrupted, stored)


def test_a_way_is_its_steps_one_after_the_other() -> None:
    way: Way = (Resize(TRANSFORM), Corrupt("fog", 2), Store((Storage(80),)))
    by_hand = Storage(80).store(corrupt(TRANSFORM(PHOTO), "fog", 2, seed=7))
    assert np.array_equal(travel(PHOTO, way, 7), by_hand)


def test_the_seed_of_a_corruption_is_the_number_of_the_picture() -> None:
    way: Way = (Resize(TRANSFORM), Corrupt("gaussian_noise", 1))
    first, again, second = (travel(PHOTO, way, number) for number in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_pictures_are_stored_in_turn_as_the_files_of_a_set_are() -> None:
    store = Store((Storage(30), Storage(95)))
    small = TRANSFORM(PHOTO)
    assert np.array_equal(store(small, 2), Storage(30).store(small))
    assert np.array_equal(store(small, 3), Storage(95).store(small))


def test_a_crop_is_the_middle() -> None:
    picture = np.arange(10 * 8 * 3, dtype=np.uint8).reshape(10, 8, 3)
    assert np.array_equal(Crop(4)(picture, 0), picture[3:7, 2:6])


def test_two_ways_that_differ_are_described_differently() -> None:
    ways: list[Way] = [
        (Resize(TRANSFORM),),
        (Resize(Transform(size=96, resample="bilinear")),),
        (Resize(TRANSFORM), Store((Storage(92),))),
        (Resize(TRANSFORM), Store((Storage(92, 0),))),
        (Resize(TRANSFORM), Corrupt("fog", 1)),
        (Resize(TRANSFORM), Corrupt("fog", 2)),
        (Resize(TRANSFORM), Crop(64)),
    ]
    assert len({str(describe(way)) for way in ways}) == len(ways)


def test_matched_sends_all_images_the_same_way() -> None:
    for stored in (LOSSLESS, Storage(92)):
        protocol = matched(suite(stored=stored), TRANSFORM)
        assert protocol.normal == protocol.other == protocol.in_files == protocol.severity_0(suite(stored=stored))
        clean = [step for step in protocol.corrupted(("fog", 3)) if not isinstance(step, Corrupt)]
        assert tuple(clean) == protocol.normal


def test_matched_ends_in_the_storage_of_the_images_to_fit_on_which_have_it_already() -> None:
    protocol = matched(suite(stored=Storage(92)), TRANSFORM)
    assert protocol.normal[-1] == Store((Storage(92),))
    assert protocol.fit == protocol.normal[:-1]


def test_the_papers_protocol_is_the_authors_code() -> None:
    protocol = paper(suite(), TRANSFORM)
    normal, other = protocol.normal[0], protocol.other[0]
    assert isinstance(normal, Resize)
    assert isinstance(other, Resize)
    assert (normal.transform.fit, normal.transform.resample) == ("crop", "lanczos")
    assert (other.transform.fit, other.transform.resample) == ("squash", "bilinear")
    kinds = [type(step).__name__ for step in protocol.corrupted(("fog", 3))]
    assert kinds == ["Resize", "Crop", "Corrupt", "Store", "Resize"], "cut at 224, stored, and only then enlarged"
    assert protocol.severity_0(suite()) == (*protocol.before, *protocol.after)


@pytest.mark.parametrize("protocol", [matched, paper])
def test_a_control_comes_as_the_files_of_the_set_came_and_goes_on_as_they_do(
    protocol: Callable[[Suite, Transform], Protocol],
) -> None:
    made = protocol(suite(), TRANSFORM)
    way = made.control(OtherSet("steel", "far", (), sizes=(40, 80)), (Storage(75), LOSSLESS))
    assert way[:2] == (Resize(Transform(size=40)), Resize(Transform(size=80)))
    assert way[2] == Store((Storage(75), LOSSLESS))
    assert way[3:] == made.other


@pytest.mark.parametrize("protocol", [matched, paper])
def test_the_control_of_corrupted_files_is_cut_and_stored_as_imagenet_c_was(
    protocol: Callable[[Suite, Transform], Protocol],
) -> None:
    made = protocol(suite(in_files=True), TRANSFORM)
    way = made.severity_0(suite(in_files=True))
    assert [type(step).__name__ for step in way[:3]] == ["Resize", "Crop", "Store"]
    assert way[3:] == made.in_files


@pytest.mark.parametrize("protocol", [matched, paper])
def test_every_way_ends_at_the_size_of_the_transform(protocol: Callable[[Suite, Transform], Protocol]) -> None:
    made = protocol(suite(), TRANSFORM)
    control = made.control(OtherSet("any", "far", (), sizes=(50,)), (Storage(75),))
    for way in (made.fit, made.normal, made.other, made.corrupted(("snow", 5)), made.in_files, control):
        assert travel(PHOTO, way, 0).shape == (96, 96, 3)
