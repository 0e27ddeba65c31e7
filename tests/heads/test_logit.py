"""Heads: features become one number an image, and no digit is lost on the way."""

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.special import expit

from discopatch.encoders import Features
from discopatch.errors import ParameterError
from discopatch.heads import HEADS, LogitHead, SigmoidHead, get_head
from tests.samples import made_up_features, one_by_one

LOGITS = np.random.default_rng(0).normal(0, 3, (6, 64)).astype(np.float32)
KNOWN = {"left": np.eye(40, dtype=np.float32)[:3], "right": -np.eye(40, dtype=np.float32)[:3]}


def with_logits(logits: ArrayLike) -> Features:
    array = np.asarray(logits, np.float32)
    return Features(array, np.zeros((len(array), 2), np.float32))


def test_the_logit_head_is_minus_the_mean_logit() -> None:
    scores = LogitHead().score(with_logits(LOGITS))
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, [-sum(map(float, row)) / 64 for row in LOGITS], rtol=0, atol=1e-12)


def test_the_sigmoid_head_is_one_minus_the_mean_probability() -> None:
    scores = SigmoidHead().score(with_logits(LOGITS))
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, 1 - expit(LOGITS.astype(np.float64)).mean(1), rtol=0, atol=1e-12)
    assert ((scores >= 0) & (scores <= 1)).all()


def test_the_sigmoid_head_keeps_the_order_where_float32_saturates() -> None:
    logits = np.array([[30.0], [40.0], [60.0], [100.0]], np.float32)
    assert len(set((1 - expit(logits)).ravel().tolist())) == 1, "or this test proves nothing"
    scores = SigmoidHead().score(with_logits(logits)).tolist()
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4


@pytest.mark.parametrize("logit", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_no_logit_is_too_large_for_a_sigmoid(logit: float) -> None:
    """Overflows warn, and warnings are errors here."""
    assert SigmoidHead().score(with_logits([[logit]])) == pytest.approx(expit(-logit), rel=1e-12)


@pytest.mark.parametrize("name", ["combined", "logit", "sigmoid"])
def test_higher_logits_have_lower_scores(name: str) -> None:
    normal = made_up_features(60)
    real, fake = (Features(normal.logits[:1] + by, normal.statistics[:1]) for by in (0.0, -8.0))
    head = get_head(name).fit(normal, KNOWN)
    assert head.score(real)[0] < head.score(fake)[0]


@pytest.mark.parametrize("name", ["combined", "statistics"])
def test_statistics_farther_from_normal_have_higher_scores(name: str) -> None:
    normal = made_up_features(60)
    head = get_head(name).fit(normal, KNOWN)
    away = np.random.default_rng(1).normal(size=40)
    scores = [
        head.score(Features(normal.logits[:1], (normal.statistics.mean(0) + far * away)[None]))[0]
        for far in (1.0, 2.0, 4.0, 8.0)
    ]
    assert scores == sorted(scores)
    assert len(set(scores)) == 4


@pytest.mark.parametrize("name", HEADS)
def test_every_head_gives_a_score_an_image_and_a_column_a_probe(name: str) -> None:
    head = get_head(name).fit(made_up_features(60), KNOWN)
    new = made_up_features(7, seed=1)
    assert head.score(new).shape == (7,)
    assert head.score(new).dtype == np.float64
    assert np.isfinite(head.score(new)).all()
    assert head.probe_scores(new).shape == (7, len(head.probes))
    assert tuple(head.probes) == (("left", "right") if name in ("combined", "components") else ())


@pytest.mark.parametrize("name", HEADS)
def test_a_score_depends_on_its_own_features_alone(name: str) -> None:
    head = get_head(name).fit(made_up_features(60), KNOWN)
    new = made_up_features(12, seed=1)
    together = head.score(new)
    assert len(set(together.tolist())) == 12
    np.testing.assert_allclose(one_by_one(head.score, new), together, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(head.score(new.select(slice(None, None, -1)))[::-1], together, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", HEADS)
def test_what_a_head_learnt_survives_as_tensors_to_the_bit(name: str) -> None:
    head = get_head(name).fit(made_up_features(60), KNOWN)
    again = HEADS[name].from_tensors(head.to_tensors(), head.probes)
    new = made_up_features(12, seed=1)
    assert np.array_equal(again.score(new), head.score(new))
    assert np.array_equal(again.probe_scores(new), head.probe_scores(new))
    assert tuple(again.probes) == tuple(head.probes)


@pytest.mark.parametrize("name", HEADS)
def test_fitting_leaves_the_head_that_was_asked_as_it_was(name: str) -> None:
    head = get_head(name)
    first = head.fit(made_up_features(60), KNOWN)
    before = first.score(made_up_features(5, seed=1))
    head.fit(made_up_features(60, seed=2), {})
    assert np.array_equal(first.score(made_up_features(5, seed=1)), before)


def test_an_unknown_head_names_the_choices() -> None:
    with pytest.raises(ParameterError, match="combined, components, statistics, logit, sigmoid"):
        get_head("tail")
