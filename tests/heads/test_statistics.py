"""The statistics head: a Mahalanobis distance over layer statistics, as a logarithm."""

import numpy as np
import pytest
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score

from discopatch.encoders import Features
from discopatch.errors import NotFittedError
from discopatch.heads import StatisticsHead
from tests.samples import made_up_features, moved


def fitted(normal: Features) -> StatisticsHead:
    return StatisticsHead().fit(normal, {})


@pytest.mark.parametrize(("images", "dimensions"), [(30, 200), (500, 40)])
def test_the_score_is_the_logarithm_of_scikit_learns_distance(images: int, dimensions: int) -> None:
    normal, new = (made_up_features(count, dimensions=dimensions, seed=count) for count in (images, 9))
    mean, scale = normal.statistics.mean(0, dtype=np.float64), normal.statistics.std(0, dtype=np.float64)
    reference = LedoitWolf().fit((normal.statistics - mean) / scale)
    expected = np.log(reference.mahalanobis((new.statistics - mean) / scale) / dimensions)
    np.testing.assert_allclose(fitted(normal).score(new), expected, rtol=0, atol=5e-3)


def test_what_is_usual_scores_about_zero() -> None:
    assert np.median(fitted(made_up_features(2000)).score(made_up_features(500, seed=1))) == pytest.approx(0, abs=0.1)


def test_logits_do_not_reach_the_score() -> None:
    head, new = fitted(made_up_features(50)), made_up_features(5, seed=1)
    assert np.array_equal(head.score(new), head.score(Features(new.logits - 100, new.statistics)))


def test_what_is_rare_is_told_from_what_merely_varies() -> None:
    """Both moved by the same length: along what normal images do anyway, and across it."""
    rng = np.random.default_rng(0)
    often = np.zeros(60)
    often[:30] = 1 / 30**0.5
    normal, new = (
        Features(np.zeros((count, 1), np.float32), (rng.normal(size=(count, 60)) + along).astype(np.float32))
        for count, along in ((count, 6 * rng.normal(size=(count, 1)) * often) for count in (300, 200))
    )
    rare = np.where(np.arange(60) % 2, often, -often)
    head = fitted(normal)
    along, across = (head.score(moved(new, 6 * direction)) for direction in (often, rare))
    labels = np.repeat([0, 1], 200)
    assert roc_auc_score(labels, np.concatenate([head.score(new), along])) < 0.75
    assert roc_auc_score(labels, np.concatenate([head.score(new), across])) > 0.95


def test_a_difference_below_one_percent_of_a_constant_statistic_is_no_difference() -> None:
    normal = made_up_features(100)
    normal.statistics[:, 0] = 2.0
    head, new = fitted(normal), made_up_features(20, seed=1)
    new.statistics[:, 0] = 2.0
    by = np.eye(40)[0]
    np.testing.assert_allclose(head.score(moved(new, 0.001 * by)), head.score(new), atol=0.01)
    assert (head.score(moved(new, 1.0 * by)) > head.score(new) + 1).all()


def test_normal_images_that_are_all_alike_still_give_numbers() -> None:
    """As of a camera that hangs: the next such image is as usual as can be, any other is unusual."""
    one = made_up_features(1)
    head = fitted(one.select(np.zeros(40, np.intp)))
    same, other = head.score(one)[0], head.score(moved(one, np.ones(40)))[0]
    assert np.isfinite([same, other]).all()
    assert same < other


def test_an_unfitted_head_says_so() -> None:
    with pytest.raises(NotFittedError):
        StatisticsHead().score(made_up_features(3))


def test_it_has_no_probes() -> None:
    head = fitted(made_up_features(50))
    assert tuple(head.probes) == ()
    assert head.probe_scores(made_up_features(4)).shape == (4, 0)
