"""The guarantee itself: the mean of the evidence over all streams is 1, and false alarms are as rare as stated."""

from itertools import permutations
from math import exp, factorial, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discopatch.monitor.evidence import (
    AT_ONCE,
    PRIORS,
    Alternatives,
    Evidence,
    Ranking,
    band_sizes,
    later_starts,
    start_weight,
)

Floats = NDArray[np.float64]


def evidence_after(calibration: Floats, scores: Floats, calibration_ties: Floats, ties: Floats) -> float:
    evidence = Evidence(len(calibration))
    ranking = Ranking(calibration[None], calibration_ties[None], evidence.alternatives.highest)
    for score, tie in zip(scores, ties, strict=True):
        below, record = ranking.add(np.array([score]), np.array([tie]))
        evidence.update(evidence.alternatives.band_of_gap[below], record)
    return exp(evidence.log_evidence[0])


@pytest.mark.parametrize(("n", "images"), [(1, 4), (2, 4), (3, 3), (5, 2), pytest.param(4, 4, marks=pytest.mark.slow)])
def test_the_mean_over_all_orders_is_exactly_one(n: int, images: int) -> None:
    """Every order of calibration scores and stream is equally likely when all are normal: this is no simulation."""
    total, none = 0.0, np.zeros(n)
    orders = [order for order in permutations(range(n + images)) if list(order[:n]) == sorted(order[:n])]
    for order in orders:
        scores = np.array(order, float)
        total += evidence_after(scores[:n], scores[n:], none, np.zeros(images))
    assert len(orders) == factorial(n + images) // factorial(n)
    assert total / len(orders) == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
def test_it_is_one_with_equal_scores_too() -> None:
    """All scores out of two values, in an order of their random numbers that is equally likely each."""
    n, images = 2, 3
    for values in [(0, 0, 0, 0, 0), (0, 1, 0, 1, 0), (1, 1, 1, 0, 0)]:
        found = [
            evidence_after(
                np.array([shown[place] for place in range(n)], float),
                np.array(shown[n:], float),
                np.array(order[:n], float),
                np.array(order[n:], float),
            )
            for order in permutations(range(n + images))
            for shown in set(permutations(values))
        ]
        assert np.mean(found) == pytest.approx(1, abs=1e-12)


def test_bands_are_made_of_all_gaps_and_alike_on_both_sides() -> None:
    for n in range(1, 3000):
        sizes = band_sizes(n)
        assert sizes.sum() == n + 1
        assert sizes.min() == sizes[0] >= 1
        assert (sizes == sizes[::-1]).all()
        assert len(sizes) < 100


@given(st.integers(1, 500), st.integers(0, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_every_bet_has_the_mean_one(n: int, seed: int, data: st.DataObject) -> None:
    alternatives, rng = Alternatives(n), np.random.default_rng(seed)
    bands = len(alternatives.sizes)
    urn = (alternatives.sizes + rng.integers(0, 50, bands)).astype(float)[None]
    last = data.draw(st.none() | st.integers(0, bands - 1))
    last_band = None if last is None else np.array([last])
    shares, records = urn[0] / urn.sum(), alternatives.highest / urn.sum()
    mean = np.zeros(len(alternatives.kinds))
    for band in range(bands):
        for record, chance in ((True, records), (False, 1 - records)):
            bets = alternatives.log_bets(urn, np.array([band]), np.array([record]), last_band)[0]
            mean += shares[band] * chance * np.exp(bets)
    assert mean == pytest.approx(np.ones(len(mean)), abs=1e-12)


def test_priors_and_start_weights_sum_to_one() -> None:
    assert sum(PRIORS[kind] for kind in Alternatives(99).kinds) == pytest.approx(1, abs=1e-12)
    weights = [start_weight(images) for images in range(20_000)]
    assert weights[0] > AT_ONCE
    for images in (0, 1, 10, 20_000):
        assert sum(weights[:images]) + later_starts(images) == pytest.approx(1, abs=1e-10)
    assert min(weights) > 0
    assert start_weight(10**12) > 0


def stream_alarms(n: int, streams: int, images: int, *, seed: int, decimals: int | None = None) -> Floats:
    """The highest log-evidence of each of so many normal streams, each with calibration scores of its own."""
    rng = np.random.default_rng(seed)
    evidence, highest = Evidence(n, streams), np.zeros(streams)
    calibration = rng.normal(size=(streams, n))
    calibration = calibration if decimals is None else calibration.round(decimals)
    ranking = Ranking(calibration, rng.random((streams, n)), evidence.alternatives.highest)
    for _ in range(images):
        scores = rng.normal(size=streams)
        scores = scores if decimals is None else scores.round(decimals)
        below, record = ranking.add(scores, rng.random(streams))
        evidence.update(evidence.alternatives.band_of_gap[below], record)
        highest = np.maximum(highest, evidence.log_evidence)
    return highest


@pytest.mark.parametrize(
    ("n", "decimals"), [(99, None), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((19, None), (99, 0)))]
)
def test_false_alarms_are_as_rare_as_stated(n: int, decimals: int | None) -> None:
    highest = stream_alarms(n, 400, 600, seed=n, decimals=decimals)
    for rate, most in ((0.01, 12), (0.1, 60)):
        assert (highest >= -log(rate)).sum() <= most, "binomial: more in one of 1,000 runs at most"


@given(st.lists(st.integers(0, 5), min_size=20, max_size=60), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_places_are_those_of_sorting_all_pairs(values: list[int], seed: int) -> None:
    rng, n = np.random.default_rng(seed), 17
    scores, ties = np.array(values, float), rng.random(len(values))
    ranking = Ranking(scores[None, :n], ties[None, :n], 16)
    pairs = list(zip(scores.tolist(), ties.tolist(), strict=True))
    for place in range(n, len(pairs)):
        below, record = ranking.add(scores[place : place + 1], ties[place : place + 1])
        assert below[0] == sum(each < pairs[place] for each in pairs[:n])
        assert record[0] == (pairs[place] > sorted(pairs[:place])[-16])


@pytest.mark.nightly
def test_a_million_images_leave_finite_numbers() -> None:
    """Normal, changed, frozen and normal again, in four streams at once, which begin with another part each."""
    rng, evidence = np.random.default_rng(0), Evidence(199, 4)
    bands = len(evidence.alternatives.sizes)
    normal = rng.choice(bands, p=evidence.alternatives.sizes / 200, size=(5000, 4))
    for images in range(1_000_000):
        part = (images // 1000 + np.arange(4)) % 4
        band = np.where(part == 1, bands - 1, np.where(part == 2, 5, normal[images % 5000]))
        evidence.update(band, part == 1)
        if images % 1000 == 0:
            assert np.isfinite(evidence.log_evidence).all()
    assert not np.isnan(evidence.log_sums).any()
    assert np.isfinite(evidence.log_evidence).all()
    assert (evidence.urn.sum(1) == 1_000_200).all()
