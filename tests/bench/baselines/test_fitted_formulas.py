"""Baselines that are fitted are their formulas, or scikit-learn's, with few normal images as with many."""

import tracemalloc
from math import exp, log, sqrt

import numpy as np
import pytest
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from discopatch.bench.baselines import (
    CLASSES,
    PENULTIMATE,
    STATISTICS,
    Array,
    Baseline,
    Classifier,
    FeatureDict,
    neighbours,
)
from discopatch.bench.baselines.distances import FDBD, MDS, Mahalanobis, ViM
from discopatch.bench.baselines.neighbours import KNN, NNGuide
from discopatch.bench.methods import HeadBaseline
from discopatch.errors import ParameterError
from discopatch.heads import StatisticsHead

from .samples import N_CLASSES, in_double, random_classifier, random_features

HEAD = random_classifier()
WEIGHT, BIAS = HEAD.weight.astype(np.float64), HEAD.bias.astype(np.float64)
NORMAL, NEW = random_features(150), random_features(25, seed=1)


def energy_of(f: Array) -> float:
    return log(sum(exp(float(w @ f) + float(b)) for w, b in zip(WEIGHT, BIAS, strict=True)))


def length(x: Array) -> float:
    return sqrt(sum(float(value) ** 2 for value in x))


@pytest.mark.parametrize("k", [1, 10, 150, 1000])
def test_nnguide_is_energy_times_the_mean_of_the_largest_products(k: int) -> None:
    bank = [f / length(f) * energy_of(f) for f in in_double(NORMAL)]
    expected = []
    for f in in_double(NEW):
        products = sorted((float(f / length(f) @ entry) for entry in bank), reverse=True)[:k]
        expected.append(-energy_of(f) * sum(products) / len(products))
    np.testing.assert_allclose(NNGuide(HEAD, k=k).fit(NORMAL).score(NEW), expected, rtol=1e-9)


def test_nnguide_keeps_its_formula_where_energies_are_negative() -> None:
    low = Classifier(HEAD.weight, HEAD.bias - 20)
    energies = [energy_of(f) - 20 for f in in_double(NORMAL)]
    assert max(energies) < 0
    bank = [f / length(f) * energy for f, energy in zip(in_double(NORMAL), energies, strict=True)]
    expected = [
        -(energy_of(f) - 20) * np.mean(sorted(float(f / length(f) @ entry) for entry in bank)[-5:])
        for f in in_double(NEW)
    ]
    np.testing.assert_allclose(NNGuide(low, k=5).fit(NORMAL).score(NEW), expected, rtol=1e-6)


def test_fdbd_is_the_mean_distance_to_the_boundaries_over_that_to_the_mean() -> None:
    mean, expected = in_double(NORMAL).mean(0), []
    for f in in_double(NEW):
        logits = [float(w @ f + b) for w, b in zip(WEIGHT, BIAS, strict=True)]
        best = logits.index(max(logits))
        others = [c for c in range(N_CLASSES) if c != best]
        distances = [abs(logits[best] - logits[c]) / length(WEIGHT[best] - WEIGHT[c]) for c in others]
        expected.append(-sum(distances) / len(distances) / length(f - mean))
    np.testing.assert_allclose(FDBD(HEAD).fit(NORMAL).score(NEW), expected, rtol=1e-9)


def test_a_twin_of_the_likeliest_class_changes_nothing_in_fdbd() -> None:
    """Between two classes of one weight there is no boundary."""
    alone = FDBD(HEAD).fit(NORMAL)
    best = HEAD.logits(NEW[PENULTIMATE]).argmax(1)
    which = int(np.bincount(best).argmax())
    twins = Classifier(np.vstack([HEAD.weight, HEAD.weight[which]]), np.append(HEAD.bias, HEAD.bias[which] - 3))
    of_the_class = {PENULTIMATE: NEW[PENULTIMATE][best == which]}
    np.testing.assert_allclose(FDBD(twins).fit(NORMAL).score(of_the_class), alone.score(of_the_class), rtol=1e-9)


def test_fdbd_has_no_array_of_images_by_classes_by_dimensions() -> None:
    head = random_classifier(classes=200, size=200)
    features = random_features(400, size=200)
    assert 10 * peak_bytes(FDBD(head).fit(features), features) < 400 * 200 * 200 * 8


def virtual_logits(normal: Array, new: Array, dimensions: int) -> tuple[float, Array]:
    """Alpha, and the residual norms of new features: in the null space, as the paper's own program does."""
    origin = -np.linalg.lstsq(WEIGHT, BIAS, rcond=None)[0]  # the shortest solution is the pseudo-inverse's
    outside = np.linalg.svd((normal - origin).T)[0][:, dimensions:]
    residuals = [length(outside.T @ (f - origin)) for f in normal]
    largest = [max(WEIGHT @ f + BIAS) for f in normal]
    return sum(largest) / sum(residuals), np.array([length(outside.T @ (f - origin)) for f in new])


@pytest.mark.parametrize(("images", "dimensions", "used"), [(150, 12, 12), (150, None, 20), (20, None, 10), (9, 30, 4)])
def test_vim_is_energy_against_the_residual(images: int, dimensions: int | None, used: int) -> None:
    normal = random_features(images)
    alpha, residuals = virtual_logits(in_double(normal), in_double(NEW), used)
    expected = alpha * residuals - [energy_of(f) for f in in_double(NEW)]
    np.testing.assert_allclose(ViM(HEAD, dimensions=dimensions).fit(normal).score(NEW), expected, rtol=1e-8)


@pytest.mark.parametrize(("size", "dimensions"), [(2048, 1000), (1500, 1000), (1280, 512), (768, 512), (512, 256)])
def test_vim_has_the_dimensions_of_its_paper(size: int, dimensions: int) -> None:
    head = Classifier(np.zeros((2, size), np.float32), np.zeros(2, np.float32))
    assert ViM(head).n_axes(10**6) == dimensions
    assert ViM(head).n_axes(100) == 50


@pytest.mark.parametrize("images", [1, 2, 3, 10])
def test_vim_with_a_handful_of_images_is_finite(images: int) -> None:
    baseline = ViM(HEAD).fit(random_features(images))
    assert baseline.space is not None
    assert 0 < baseline.space.alpha < 1e3
    assert np.isfinite(baseline.score(NEW)).all()


def test_vim_is_finite_when_all_normal_images_are_the_same() -> None:
    same = {PENULTIMATE: np.repeat(NORMAL[PENULTIMATE][:1], 30, axis=0)}
    assert np.isfinite(ViM(HEAD).fit(same).score(NEW)).all()


@pytest.mark.parametrize("dimensions", [-1, 40])
def test_vim_refuses_to_leave_no_residual(dimensions: int) -> None:
    with pytest.raises(ParameterError, match="dimensions"):
        ViM(HEAD, dimensions=dimensions)


@pytest.mark.parametrize("images", [20, 150, 1000])
def test_mahalanobis_is_the_distance_of_scikit_learn(images: int) -> None:
    normal, new = in_double(random_features(images)), in_double(NEW)
    scale = np.sqrt(normal.var(0) + 0.01**2 * normal.var(0).mean())
    reference = LedoitWolf().fit((normal - normal.mean(0)) / scale)
    shrunk = (1 - reference.shrinkage_) * np.cov(((normal - normal.mean(0)) / scale).T, bias=True)
    shrunk += reference.shrinkage_ * np.eye(len(scale))
    away = (new - normal.mean(0)) / scale
    found = Mahalanobis(HEAD).fit({PENULTIMATE: normal}).score(NEW)
    np.testing.assert_allclose(found, reference.mahalanobis(away), rtol=1e-3)  # its identity is times the mean variance
    np.testing.assert_allclose(found, np.einsum("nd,de,ne->n", away, np.linalg.inv(shrunk), away), rtol=1e-4)


@pytest.mark.parametrize("images", [12, 30, 150, 1000])
def test_mds_is_the_least_distance_from_a_class_with_one_covariance_for_all(images: int) -> None:
    """With fewer images than dimensions, too, where the covariance has no inverse but the pseudo-inverse."""
    normal = random_features(images)
    values, classes = in_double(normal), normal[CLASSES]
    means = {c: values[classes == c].mean(0) for c in set(classes)}
    centred = np.stack([f - means[c] for f, c in zip(values, classes, strict=True)])
    precision = EmpiricalCovariance().fit(centred).precision_
    expected = [min((f - mean) @ precision @ (f - mean) for mean in means.values()) for f in in_double(NEW)]
    np.testing.assert_allclose(MDS(HEAD).fit(normal).score(NEW), expected, rtol=1e-6)


def test_mds_does_not_mind_how_classes_are_numbered() -> None:
    other = {**NORMAL, CLASSES: 1000.0 - 7 * NORMAL[CLASSES]}
    np.testing.assert_allclose(MDS(HEAD).fit(other).score(NEW), MDS(HEAD).fit(NORMAL).score(NEW), rtol=1e-9)


def test_mds_and_mahalanobis_are_two_methods() -> None:
    mds, free = (kind(HEAD).fit(NORMAL).score(NEW) for kind in (MDS, Mahalanobis))
    assert np.corrcoef(np.argsort(np.argsort(mds)), np.argsort(np.argsort(free)))[0, 1] < 0.99


def test_mahalanobis_does_not_mind_the_unit_of_all_features() -> None:
    one, other = (
        Mahalanobis(HEAD).fit({PENULTIMATE: by * NORMAL[PENULTIMATE]}).score({PENULTIMATE: by * NEW[PENULTIMATE]})
        for by in (1, 1000)
    )
    np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize(("images", "k"), [(1, 1), (99, 1), (350, 3), (4999, 49), (5000, 50), (6000, 50)])
def test_knn_is_the_distance_of_scikit_learn_to_the_kth_neighbour(images: int, k: int) -> None:
    """The fiftieth, but never beyond the nearest percent of the normal images."""
    normal = random_features(images)
    tree = NearestNeighbors(n_neighbors=k, algorithm="kd_tree").fit(normalize(in_double(normal)))
    expected = tree.kneighbors(normalize(in_double(NEW)))[0][:, -1]
    np.testing.assert_allclose(KNN(HEAD).fit(normal).score(NEW), expected, rtol=1e-9)


@pytest.mark.parametrize(("asked", "k"), [(3, 3), (150, 150), (1000, 150)])
def test_knn_takes_the_kth_neighbour_or_the_last_there_is(asked: int, k: int) -> None:
    distances = [sorted(length(f / length(f) - g / length(g)) for g in in_double(NORMAL)) for f in in_double(NEW)]
    expected = [neighbours[k - 1] for neighbours in distances]
    np.testing.assert_allclose(KNN(HEAD, k=asked).fit(NORMAL).score(NEW), expected, rtol=1e-9)


def test_a_normal_image_is_no_distance_from_itself() -> None:
    assert (KNN(HEAD, k=1).fit(NORMAL).score(NORMAL) == 0).all()


def test_an_all_zero_normal_image_is_as_far_from_everything_as_it_is() -> None:
    """Though its product with others is larger than that of an opposite."""
    opposite, zero = np.full((1, 40), -1.0), np.zeros((1, 40))
    new = {PENULTIMATE: np.ones((1, 40))}
    assert KNN(HEAD).fit({PENULTIMATE: np.vstack([opposite, zero])}).score(new)[0] == pytest.approx(1)
    assert KNN(HEAD).fit({PENULTIMATE: opposite}).score(new)[0] == pytest.approx(2)


@pytest.mark.parametrize("baseline", [KNN, NNGuide])
def test_fewer_than_one_neighbour_is_refused(baseline: type[KNN | NNGuide]) -> None:
    with pytest.raises(ParameterError, match="k is 0"):
        baseline(HEAD, k=0)


@pytest.mark.parametrize("baseline", [KNN, NNGuide])
@pytest.mark.parametrize("rows", [1, 7, 25, 1000])
def test_scores_in_chunks_are_the_scores_of_all(
    baseline: type[KNN | NNGuide], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = baseline(HEAD).fit(NORMAL)
    at_once = fitted.score(NEW)
    monkeypatch.setattr(neighbours, "MAX_PRODUCTS", rows * 150)
    np.testing.assert_allclose(fitted.score(NEW), at_once, rtol=1e-12)


@pytest.mark.parametrize("baseline", [KNN, NNGuide])
def test_memory_does_not_grow_with_the_scored_images(
    baseline: type[KNN | NNGuide], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "MAX_PRODUCTS", 2**16)
    features = random_features(1500)
    assert 4 * peak_bytes(baseline(HEAD).fit(features), features) < 1500 * 1500 * 8


def peak_bytes(baseline: Baseline, features: FeatureDict) -> int:
    tracemalloc.start()
    try:
        baseline.score(features)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_statistics_is_the_logarithm_of_scikit_learns_distance() -> None:
    normal, new = in_double(NORMAL, STATISTICS), in_double(NEW, STATISTICS)
    reference = LedoitWolf().fit((normal - normal.mean(0)) / normal.std(0))
    expected = np.log(reference.mahalanobis((new - normal.mean(0)) / normal.std(0)) / normal.shape[1])
    head = HeadBaseline(StatisticsHead(), (STATISTICS,)).fit(NORMAL)
    np.testing.assert_allclose(head.score(NEW), expected, atol=5e-3)
