"""Baselines that need the classifier alone are their formulas, written out image by image."""

from math import exp, log

import numpy as np
import pytest
from discopatch.bench.baselines.logits import MSP, Energy, MaxLogit

from discopatch.bench.baselines import PENULTIMATE, RANK_BEFORE, RANK_LAST, RANK_WEIGHT, Array, Classifier
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


@pytest.mark.parametrize("percentile", [0, 65, 90, 99.9])
@pytest.mark.parametrize("variant", ["b", "p"])
def test_ash_b_makes_the_rest_equal_and_ash_p_leaves_it(variant: str, percentile: float) -> None:
    expected = []
    for f in in_double(NEW) + 0.01 * np.random.default_rng(0).random((25, SIZE)):  # no two are equal
        kept = np.argsort(f)[min(round(SIZE * percentile / 100), SIZE - 1) :]
        pruned = np.zeros(SIZE)
        pruned[kept] = f[kept] if variant == "p" else f.sum() / len(kept)
        expected.append(-energy_of(logits_of(pruned)))
    values = in_double(NEW) + 0.01 * np.random.default_rng(0).random((25, SIZE))
    found = ASH(HEAD, variant=variant, percentile=percentile).score({PENULTIMATE: values})
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("blocks", "kinds"), [("3+4", (RANK_LAST, RANK_BEFORE)), ("4", (RANK_LAST,)), ("3", (RANK_BEFORE,))]
)
def test_rankfeat_is_the_energy_of_the_mean_logits_of_its_blocks(blocks: str, kinds: tuple[str, ...]) -> None:
    expected = []
    for features in zip(*(in_double(NEW, kind) for kind in kinds), strict=True):
        logits = zip(*(logits_of(f) for f in features), strict=True)
        expected.append(-energy_of([sum(each) / len(kinds) for each in logits]))
    np.testing.assert_allclose(RankFeat(HEAD, blocks=blocks).score(NEW), expected, rtol=1e-9)


def test_rankweight_is_the_energy_of_what_the_changed_network_extracts() -> None:
    expected = [-energy_of(logits_of(f)) for f in in_double(NEW, RANK_WEIGHT)]
    np.testing.assert_allclose(RankFeatAndWeight(HEAD).score(NEW), expected, rtol=1e-9)
