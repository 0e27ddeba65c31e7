"""The combined head: the soft maximum of the logit, the distance and the largest probe, as z-scores."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import WeightsError
from discopatch.heads import CombinedHead, ProbeShifts, StatisticsHead
from discopatch.heads.parts import centre_and_spread, part_scale, soft_maximum
from discopatch.metrics import auroc
from tests.samples import made_up_features, moved

MANY = 400  # dimensions


def direction_of(name: str, dimensions: int = 40) -> NDArray[np.float64]:
    found = np.random.default_rng(sum(name.encode())).normal(size=dimensions)
    return found / np.linalg.norm(found)


def displaced(*names: str, dimensions: int = 40) -> ProbeShifts:
    """As a few images showed them: each at a strength of its own, and not quite in the same direction."""
    rng = np.random.default_rng(5)
    found = {}
    for name in names:
        strengths, noise = rng.uniform(0.5, 3, (6, 1)), 0.02 * rng.normal(size=(6, dimensions))
        found[name] = (strengths * (direction_of(name, dimensions) + noise)).astype(np.float32)
    return found


@torch.inference_mode()
def values(head: CombinedHead, features: Features) -> NDArray[np.float64]:
    found: NDArray[np.float64] = head.values(**head.tensors(features)).numpy()
    return found


@torch.inference_mode()
def joined(head: CombinedHead, features: Features) -> NDArray[np.float64]:
    found: NDArray[np.float64] = head.joined(head.values(**head.tensors(features))).numpy()
    return found


def test_a_known_direction_stands_out_where_the_distance_over_many_dimensions_drowns_it() -> None:
    known = displaced("blur", "noise", "haze", dimensions=MANY)
    head = CombinedHead().fit(made_up_features(150, dimensions=MANY), known)
    usual = made_up_features(300, dimensions=MANY, seed=1)
    blurred = moved(made_up_features(300, dimensions=MANY, seed=2), 3 * direction_of("blur", MANY))
    columns = zip(values(head, usual).T, values(head, blurred).T, strict=True)
    logit, distance, blur, *others = [auroc(normal, shifted) for normal, shifted in columns]
    assert distance < 0.75, "or nothing is drowned"
    assert blur > 0.95
    assert max(others) < 0.8
    assert logit == pytest.approx(0.5, abs=0.1)
    assert auroc(head.score(usual), head.score(blurred)) > 0.9


def test_the_filter_is_the_best_linear_function_there_is() -> None:
    """Fisher's, for the covariance of the Gaussian: no other direction separates the change from normal as well."""
    head = CombinedHead().fit(made_up_features(400), displaced("blur"))
    filter_, gaussian = head.filters[0].numpy(), head.statistics.gaussian
    axes, scale = gaussian.axes.numpy(), gaussian.scale.numpy()
    between = np.eye(40) - axes.T @ axes
    covariance = (axes.T * gaussian.variances.numpy() @ axes + float(gaussian.rest) * between) * np.outer(scale, scale)
    standard = displaced("blur")["blur"] / scale
    change = (standard / np.linalg.norm(standard, axis=1, keepdims=True)).mean(0) * scale
    best = np.linalg.solve(covariance, change)
    cosine = filter_ @ best / np.linalg.norm(filter_) / np.linalg.norm(best)
    assert cosine == pytest.approx(1, abs=1e-6)


def test_with_few_images_the_scale_is_still_about_right() -> None:
    """It comes from images that a part was not fitted on: from its own, all others would look unusual."""
    honest: list[NDArray[np.float64]] = []
    flattered: list[NDArray[np.float64]] = []
    for seed in range(12):
        normal = made_up_features(30, dimensions=MANY, seed=seed)
        head = CombinedHead().fit(normal, displaced("blur", dimensions=MANY))
        new = values(head, made_up_features(300, dimensions=MANY, seed=seed + 100))
        for found, (centres, spreads) in (
            (honest, (head.centres.numpy(), head.spreads.numpy())),
            (flattered, centre_and_spread(values(head, normal))),
        ):
            found.append(np.median((new - centres) / spreads, 0))
    assert np.abs(np.mean(honest, 0)).max() < 1
    assert np.mean(flattered, 0)[1] > 5, "or the folds are not needed"


def test_the_soft_maximum_is_scipys_and_never_overflows() -> None:
    z = np.random.default_rng(0).normal(0, 5, (50, 18))
    np.testing.assert_allclose(soft_maximum(torch.from_numpy(z)).numpy(), logsumexp(z, axis=1), rtol=1e-12)
    assert soft_maximum(torch.tensor([[1e6, 0.0], [-1e6, -1e6]])).tolist() == pytest.approx([1e6, -1e6])


def test_however_many_probes_there_are_they_are_one_part() -> None:
    """An unknown change is found as well with forty of them as with one."""
    normal, new = made_up_features(400), made_up_features(4000, seed=1)
    shifted = moved(made_up_features(300, seed=2), 2.2 * direction_of("unknown"))
    found = []
    for known in (displaced("blur"), displaced(*(f"change {number}" for number in range(40)))):
        head = CombinedHead().fit(normal, known)
        z = joined(head, new)
        assert z.shape == (4000, 3)
        np.testing.assert_allclose(np.median(z, 0), 0, atol=0.25)
        np.testing.assert_allclose(np.quantile(z, norm.cdf(1), 0), 1, atol=0.35)
        found.append(auroc(head.score(new), head.score(shifted)))
    assert found[1] > found[0] - 0.03


@pytest.mark.parametrize("positions", [9, 0])
def test_the_score_is_that_of_the_logit_if_there_is_one_the_distance_and_the_largest_probe(positions: int) -> None:
    known = displaced("a", "b")
    normal, new = (
        each._replace(logits=each.logits[:, :positions])
        for each in (made_up_features(90), made_up_features(30, seed=1))
    )

    def parts(fitted: StatisticsHead, features: Features) -> NDArray[np.float64]:
        responses = (features.statistics - fitted.gaussian.mean.numpy()) @ fitted.gaussian.matched_filters(known).T
        logit = [-features.logits.astype(np.float64).mean(1)] if positions else []
        return np.column_stack([*logit, fitted.score(features), responses])

    held_out, fold = np.empty((90, 4 if positions else 3)), np.arange(90) % 5
    for number in range(5):
        others = StatisticsHead().fit(normal.select(fold != number))
        held_out[fold == number] = parts(others, normal.select(fold == number))
    centre, spread = np.median(held_out, 0), np.quantile(held_out, 0.8413, axis=0) - np.median(held_out, 0)
    largest = ((held_out - centre) / spread)[:, -2:].max(1)
    z = (parts(StatisticsHead().fit(normal), new) - centre) / spread
    middle = np.median(largest)
    probes = (z[:, -2:].max(1) - middle) / (np.quantile(largest, 0.8413) - middle)
    head = CombinedHead().fit(normal, known)
    expected = logsumexp(np.column_stack([z[:, :-2], probes]), axis=1)
    np.testing.assert_allclose(head.score(new), expected, rtol=1e-9)
    sizes = FeatureSizes(40, 0, 0, logits=positions > 0)
    again = CombinedHead.from_tensors(head.to_tensors(), head.probes, sizes)
    assert np.array_equal(again.score(new), head.score(new))
    with pytest.raises(WeightsError):
        CombinedHead.from_tensors(head.to_tensors(), head.probes, sizes._replace(logits=not positions))


def test_a_scale_is_that_of_a_quantile_and_leaves_out_what_is_not_known() -> None:
    rng = np.random.default_rng(0)
    found = np.column_stack([rng.normal(5, 2, 20_000), np.full(20_000, np.nan), np.full(20_000, 3.0)])
    found[::2, 0] = np.nan
    for scale in (centre_and_spread, part_scale):
        centres, spreads = scale(found)
        np.testing.assert_allclose(centres, [5, 0, 3], atol=0.05)
        np.testing.assert_allclose(spreads, [2, 1, 1], rtol=0.03)
