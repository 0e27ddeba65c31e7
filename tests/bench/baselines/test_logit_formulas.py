"""Baselines that need the classifier alone are their formulas, written out image by image."""

from math import exp, log

import numpy as np
import pytest

from discopatch.bench.baselines import PENULTIMATE, RANK_BEFORE, RANK_LAST, Array, Classifier
from discopatch.bench.baselines.logits import MSP, Energy, MaxLogit
from discopatch.bench.baselines.shaping import ASH, RankFeat, RankFeatAndWeight, Scale
from discopatch.errors import ParameterError

from .samples import SIZE, in_double, random_classifier, random_features

HEAD = random_classifier()
NEW = random_features(25, seed=1)


def logits_of(f: Array, head: Classifier = HEAD) -> list[float]:
    return [float(w.astype(np.float64) @ f) + float(b) for w, b in zip(head.weight, head.bias, strict=True)]


def energy_of(logits: list[float]) -> float:
    return max(logits) + log(sum(exp(logit - max(logits)) for logit in logits))


def test_msp_is_the_probability_of_the_likeliest_class() -> None:
    expected = []
    for f in in_double(NEW):
        powers = [exp(logit) for logit in logits_of(f)]
        expected.append(-max(powers) / sum(powers))
    np.testing.assert_allclose(MSP(HEAD).score(NEW), expected, rtol=1e-12)


def test_maxlogit_is_the_largest_logit() -> None:
    np.testing.assert_allclose(
        MaxLogit(HEAD).score(NEW), [-max(logits_of(f)) for f in in_double(NEW)], rtol=1e-12, atol=1e-12
    )


def test_energy_is_the_logarithm_of_the_sum_of_powers() -> None:
    np.testing.assert_allclose(
        Energy(HEAD).score(NEW), [-energy_of(logits_of(f)) for f in in_double(NEW)], rtol=1e-12, atol=1e-12
    )


def test_logits_of_thousands_do_not_overflow() -> None:
    far = {PENULTIMATE: 1e5 * NEW[PENULTIMATE]}
    np.testing.assert_allclose(Energy(HEAD).score(far), MaxLogit(HEAD).score(far), rtol=1e-12)
    assert (MSP(HEAD).score(far) >= -1).all()


@pytest.mark.parametrize("percentile", [0, 65, 90, 99.9])
@pytest.mark.parametrize("baseline", [ASH, Scale])
def test_ash_prunes_and_sharpens_and_scale_only_sharpens(baseline: type[ASH | Scale], percentile: float) -> None:
    expected = []
    for f in in_double(NEW):
        pruned = f.copy()
        for place in np.argsort(f)[: min(round(SIZE * percentile / 100), SIZE - 1)]:
            pruned[place] = 0
        sharpened = (pruned if baseline is ASH else f) * exp(sum(f) / sum(pruned))
        expected.append(-energy_of(logits_of(sharpened)))
    np.testing.assert_allclose(baseline(HEAD, percentile=percentile).score(NEW), expected, rtol=1e-9)


def test_ash_and_scale_have_the_percentiles_of_their_papers() -> None:
    assert ASH(HEAD).percentile == 90
    assert Scale(HEAD).percentile == 85


@pytest.mark.parametrize("baseline", [ASH, Scale])
def test_features_that_are_equal_are_treated_alike(baseline: type[ASH | Scale]) -> None:
    """In whatever order the channels come: whole numbers are equal again and again."""
    rng = np.random.default_rng(0)
    values, order = rng.integers(0, 4, (30, SIZE)).astype(np.float32), rng.permutation(SIZE)
    other = Classifier(HEAD.weight[:, order], HEAD.bias)
    np.testing.assert_allclose(
        baseline(HEAD).score({PENULTIMATE: values}), baseline(other).score({PENULTIMATE: values[:, order]}), rtol=1e-9
    )


@pytest.mark.parametrize("baseline", [ASH, Scale])
@pytest.mark.parametrize("percentile", [-1, 100, float("nan")])
def test_a_percentile_that_leaves_nothing_is_refused(baseline: type[ASH | Scale], percentile: float) -> None:
    with pytest.raises(ParameterError, match="percentile"):
        baseline(HEAD, percentile=percentile)


@pytest.mark.parametrize("baseline", [RankFeat, RankFeatAndWeight])
def test_rankfeat_is_the_energy_of_the_mean_logits_of_two_blocks(baseline: type[RankFeat]) -> None:
    weight = HEAD.weight.astype(np.float64)
    if baseline is RankFeatAndWeight:
        squares, directions = np.linalg.eigh(weight.T @ weight)
        assert squares[-1] > 1.05 * squares[-2], "or the largest is not clear"
        weight = weight - np.outer(weight @ directions[:, -1], directions[:, -1])
    expected = []
    for last, before in zip(in_double(NEW, RANK_LAST), in_double(NEW, RANK_BEFORE), strict=True):
        one, other = (logits_of(f, Classifier(weight, HEAD.bias)) for f in (last, before))
        expected.append(-energy_of([(a + b) / 2 for a, b in zip(one, other, strict=True)]))
    np.testing.assert_allclose(baseline(HEAD).score(NEW), expected, rtol=1e-9)


def test_rankweight_leaves_a_weight_of_rank_one_less() -> None:
    head = RankFeatAndWeight(HEAD).head
    before, after = (np.linalg.svd(weight, compute_uv=False) for weight in (HEAD.weight, head.weight))
    np.testing.assert_allclose(after, [*before[1:], 0], atol=1e-6)
    assert np.array_equal(head.bias, HEAD.bias)
