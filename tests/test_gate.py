"""The decision about a folder as a whole: exact for normal images, and not blind to others."""

from collections.abc import Sequence
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import betabinom

from discopatch import Prediction, Predictions, folder_test
from discopatch.calibration import p_values
from discopatch.errors import ParameterError
from discopatch.gate import FolderCounts, tail_probabilities
from tests.samples import NumberDetector

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def detector() -> NumberDetector:
    return NumberDetector()


def predictions_of(p: Sequence[float], detector: NumberDetector, names: Sequence[str] | None = None) -> Predictions:
    rate, names = detector.guarantee_.bound, names or [f"{place}.png" for place in range(len(p))]
    return Predictions(Prediction(name, 1 - each, each, each <= rate) for name, each in zip(names, p, strict=True))


def ranks_of(scores: NDArray[np.float64], calibration: NDArray[np.float64]) -> NDArray[np.int64]:
    n = len(calibration)
    counts: NDArray[np.int64] = np.bincount(
        np.rint(p_values(scores, calibration) * (n + 1)).astype(int) - 1, minlength=n + 1
    )
    return counts


@pytest.mark.parametrize(("images", "level", "n"), [(1, 1, 9), (10, 2, 19), (3, 9, 9), (1000, 10, 999)])
def test_tails_are_those_of_the_beta_binomial(images: int, level: int, n: int) -> None:
    pmf = betabinom.pmf(np.arange(images + 1), images, level, n + 1 - level)
    assert tail_probabilities(images, level, n) == pytest.approx(np.cumsum(pmf[::-1])[::-1], rel=1e-9)


@pytest.mark.parametrize(("n", "images", "alarms"), [(5, 4, 1), (6, 3, 2), (4, 6, 1), (9, 2, 1), (3, 1, 3)])
def test_at_every_rate_at_most_that_share_of_all_orders_fails(n: int, images: int, alarms: int) -> None:
    """Every order of n + m scores is equally likely when all images are normal, so this is no simulation."""
    orders = []
    for places in combinations(range(n + images), images):
        scores = np.array(places, float)
        orders.append(FolderCounts((ranks_of(scores, np.setdiff1d(np.arange(n + images), places)), alarms)).p_value)
    assert len(orders) == comb(n + images, images)
    for rate in np.unique(orders):
        assert np.mean(np.array(orders) <= rate + 1e-12) <= rate + 1e-9
    assert min(orders) < 1


def test_ties_only_make_it_rarer() -> None:
    """Scores that are rounded to a few values, in all combinations."""
    n, images, found = 4, 3, []
    for values in product(range(3), repeat=n + images):
        scores = np.array(values, float)
        found.append(FolderCounts((ranks_of(scores[n:], scores[:n]), 1)).p_value)
    for rate in np.unique(found):
        assert np.mean(np.array(found) <= rate + 1e-12) <= rate + 1e-9


def test_folders_that_are_off_fail() -> None:
    """One in ten is far off; all are off by a standard deviation; all are off by half of one."""
    for by, least in ((30 * (np.arange(100) < 10), 95), (np.ones(100), 95), (np.full(100, 0.5), 50)):
        ranks = [ranks_of(rng.normal(size=100) + by, rng.normal(size=199)) for _ in range(100)]
        assert sum(FolderCounts((each, 2)).p_value <= 0.01 for each in ranks) >= least


def test_an_image_alone_fails_when_it_is_flagged(detector: NumberDetector) -> None:
    flagged, normal = predictions_of([0.01], detector), predictions_of([0.02], detector)
    found = folder_test(flagged, detector)
    assert (found.fails, found.images, found.flagged) == (True, 1, 1)
    assert found.p_value == pytest.approx(0.01)
    assert not folder_test(normal, detector).fails
    among_many = folder_test(predictions_of([0.01, *np.arange(2, 101) / 100], detector), detector)
    assert (among_many.fails, among_many.flagged) == (False, 1), "left to the decision about images"


def test_the_sentence_tells_how_many_would_be_too_many(detector: NumberDetector) -> None:
    def test_of(flagged: int) -> tuple[bool, str]:
        found = folder_test(predictions_of([0.01] * flagged + [0.6] * (100 - flagged), detector), detector)
        return found.fails, found.text

    fails = [test_of(flagged)[0] for flagged in range(12)]
    needed = fails.index(True)
    assert fails == [False] * needed + [True] * (12 - needed)
    for flagged in (0, needed):
        assert f"{flagged} of 100 images flagged, where normal folders have {needed} or more" in test_of(flagged)[1]


def test_a_folder_that_can_never_fail_is_named() -> None:
    small = NumberDetector(19, 0.05)
    found = folder_test(predictions_of([0.05], small), small)
    assert not found.fails
    assert "no folder of 1 image can fail" in found.text
    assert "can fail" not in folder_test(predictions_of([0.05] * 3, small), small).text
    assert folder_test(predictions_of([0.05], small), small, fail_rate=0.05).fails


def test_refused_images_do_not_count(detector: NumberDetector) -> None:
    refused = Prediction("broken.png", None, None, None, "empty: 0 bytes")
    given = predictions_of([0.01, 0.3], detector)
    assert folder_test([refused, *given, refused], detector) == folder_test(given, detector)
    assert folder_test([refused], detector).images == 0
    assert not folder_test([refused], detector).fails


def test_one_image_of_each_group_counts(detector: NumberDetector) -> None:
    """A burst of one unusual scene is one unusual image, in any order."""
    names = [f"burst-{place}.png" for place in range(30)] + [f"part-{part}-1.png" for part in "abcdefghij"]
    given = predictions_of([0.01] * 30 + [0.9] * 10, detector, names)
    assert folder_test(given, detector).fails
    by_name = folder_test(given, detector, groups="name")
    assert (by_name.fails, by_name.images, by_name.flagged) == (False, 11, 1)
    assert "11 of 40" in by_name.text
    assert folder_test(list(reversed(given)), detector, groups="name") == by_name
    assert folder_test(given, detector, groups=["burst"] * 30 + list(range(10))).images == 11
    assert folder_test(given, detector, groups=lambda name: name[:5]).images == 2
    assert folder_test(given, detector, groups="none") == folder_test(given, detector)


def test_which_image_of_a_group_counts_does_not_depend_on_its_score(detector: NumberDetector) -> None:
    names, flagged = [f"burst-{place}.png" for place in range(20)], 0
    for place in range(20):
        p = np.where(np.arange(20) == place, 0.01, 0.9).tolist()
        flagged += folder_test(predictions_of(p, detector, names), detector, groups="name").flagged
    assert flagged == 1


def test_groups_are_those_of_the_fit_where_names_show_them() -> None:
    detector = NumberDetector()
    given = predictions_of([0.01] * 30, detector, [f"burst-{place}.png" for place in range(30)])
    for fitted, images in (("name", 1), ("folder", 1), ("auto", 30), ("given", 30), (None, 30)):
        found = folder_test(given, NumberDetector(groups=fitted))
        assert found.images == images
        assert ("--groups" in found.text) == (fitted in ("auto", "given"))
    assert folder_test(given, detector, groups="none").images == 30


def test_wrong_rates_and_groups_are_refused(detector: NumberDetector) -> None:
    for rate in (0, 1, -0.1, float("nan")):
        with pytest.raises(ParameterError, match="fail_rate"):
            folder_test([], detector, fail_rate=rate)
    with pytest.raises(ParameterError, match="one id for each"):
        folder_test(predictions_of([0.5, 0.5], detector), detector, groups=["a"])
    with pytest.raises(ParameterError, match="groups"):
        folder_test(predictions_of([0.5], detector), detector, groups="colour")
