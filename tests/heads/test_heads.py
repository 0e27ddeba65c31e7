"""Every head: its formula in plain numpy, on a GPU, in float32, one image at a time, and as tensors."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import NotFittedError, ParameterError, WeightsError
from discopatch.heads import HEADS, CombinedHead, Head, LogitHead, ProbeShifts, SigmoidHead, StatisticsHead, get_head
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.parts import centre_and_spread, part_scale, soft_maximum
from discopatch.metrics import auroc
from tests.samples import made_up_features, moved

DIMENSIONS, MANY = 40, 400
SIZES = FeatureSizes(DIMENSIONS, 0, 0, logits=True)


def fitted(name: str) -> Head:
    return get_head(name).fit(made_up_features(30), displaced("blur", "noise", "haze"))


def all_kinds() -> Features:
    """Usual, unusual, far out, and logits of both signs where a sigmoid saturates in float32."""
    usual = made_up_features(8, seed=1)
    saturated = Features(np.where(np.arange(8)[:, None] % 2, 60, -60) + usual.logits, usual.statistics)
    return Features.concatenate([usual, moved(usual, np.array(2.0)), moved(usual, np.array(1e4)), saturated])


def log_distance(gaussian: ShrunkGaussian, statistics: NDArray[np.float32]) -> NDArray[np.float64]:
    parts = {name: value.numpy() for name, value in gaussian.named_buffers()}
    standard = (statistics - parts["mean"]) / parts["scale"]
    along = standard @ parts["axes"].T
    between = np.square(standard).sum(1) - np.square(along).sum(1)
    squared = np.square(along) @ (1 / parts["variances"]) + between / parts["rest"]
    result: NDArray[np.float64] = np.log(np.maximum(squared / statistics.shape[1], 1e-9))
    return result


def test_heads_of_one_part_compute_their_formulas() -> None:
    features, statistics = all_kinds(), get_head("statistics").fit(made_up_features(30))
    logits = features.logits.astype(np.float64)
    assert isinstance(statistics, StatisticsHead)
    for head, expected in (
        (statistics, log_distance(statistics.gaussian, features.statistics)),
        (SigmoidHead(), expit(-logits).mean(1)),
        (LogitHead(), -logits.mean(1)),
    ):
        np.testing.assert_allclose(head.score(features), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", HEADS)
def test_a_score_is_the_same_alone_in_any_order_and_on_a_gpu(name: str) -> None:
    head, features = fitted(name), all_kinds()
    together = head.score(features)
    assert together.dtype == np.float64
    alone = np.concatenate([head.score(each) for each in features.one_by_one()])
    np.testing.assert_allclose(alone, together, rtol=1e-12)
    np.testing.assert_allclose(head.score(features.select(slice(None, None, -1)))[::-1], together, rtol=1e-12)
    there = copy.deepcopy(head).to("cuda" if torch.cuda.is_available() else "cpu")
    np.testing.assert_allclose(there.score(features), together, rtol=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_survives_as_tensors_to_the_bit_and_only_with_its_own_networks(name: str) -> None:
    head, new = fitted(name), all_kinds()
    again = HEADS[name].from_tensors(head.to_tensors(), head.probes, SIZES)
    assert np.array_equal(again.score(new), head.score(new))
    assert again.probes == head.probes
    others = SIZES._replace(statistics=DIMENSIONS + 2) if head.to_tensors() else SIZES._replace(logits=False)
    with pytest.raises(WeightsError):
        HEADS[name].from_tensors(head.to_tensors(), head.probes, others)


def test_damaged_tensors_are_refused() -> None:
    head = fitted("combined")
    tensors = head.to_tensors()
    for name, damaged in (
        ("centres", tensors["centres"].float().half()),
        ("centres", tensors["centres"][1:]),
        ("centres", torch.full_like(tensors["centres"], torch.nan)),
        ("spreads", torch.zeros_like(tensors["spreads"])),
        ("filters", tensors["filters"][:, :, None]),
        ("maximum", -tensors["maximum"]),
        ("statistics.gaussian.axes", torch.zeros(600, DIMENSIONS)),
        ("more", tensors["centres"]),
    ):
        with pytest.raises(WeightsError):
            CombinedHead.from_tensors({**tensors, name: damaged}, head.probes)
    with pytest.raises(WeightsError):
        CombinedHead.from_tensors({name: tensors[name] for name in tensors if name != "maximum"}, head.probes)


@pytest.mark.parametrize("name", HEADS)
def test_fitting_again_leaves_the_first_fitted_head_as_it_was(name: str) -> None:
    head, normal = get_head(name), made_up_features(60)
    first = head.fit(normal)
    before = first.score(made_up_features(5, seed=1))
    head.fit(made_up_features(60, seed=2))
    normal.statistics[:] = 0
    assert np.array_equal(first.score(made_up_features(5, seed=1)), before)


@pytest.mark.parametrize("name", ["combined", "statistics"])
def test_a_runtime_without_float64_keeps_the_digits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO has none: the difference of two large squares would lose them."""
    head, features = fitted(name), made_up_features(8, seed=1)
    expected, graph = head.score(features), copy.deepcopy(head).float()
    monkeypatch.setattr(torch.Tensor, "double", torch.Tensor.float)
    score: Any = graph(torch.from_numpy(features.logits), torch.from_numpy(features.statistics))
    assert score.dtype == torch.float32
    np.testing.assert_allclose(score.numpy(), expected, rtol=0, atol=3e-5)


def test_sigmoid_scores_keep_their_order_where_float32_saturates() -> None:
    logits = np.array([[30.0], [40.0], [60.0], [1e4], [-1e4]], np.float32)
    scores = SigmoidHead().score(Features(logits, np.zeros((5, 2), np.float32))).tolist()
    assert scores[0] > scores[1] > scores[2] > scores[3] >= 0
    assert scores[4] == 1


@pytest.mark.parametrize("name", ["statistics", "combined", "components"])
def test_normal_images_that_are_all_alike_give_finite_scores(name: str) -> None:
    one = made_up_features(1)
    head = get_head(name).fit(one.select(np.zeros(40, np.intp)))
    same, other = head.score(one)[0], head.score(moved(one, np.ones(40)))[0]
    assert np.isfinite([same, other]).all()
    assert same < other


def test_unknown_and_unfitted_heads_are_errors() -> None:
    with pytest.raises(ParameterError, match="components"):
        get_head("tail")
    for name in ("combined", "components", "statistics"):
        with pytest.raises(NotFittedError):
            get_head(name).score(made_up_features(3))


# The combined head


def direction_of(name: str, dimensions: int = DIMENSIONS) -> NDArray[np.float64]:
    found = np.random.default_rng(sum(name.encode())).normal(size=dimensions)
    return found / np.linalg.norm(found)


def displaced(*names: str, dimensions: int = DIMENSIONS) -> ProbeShifts:
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
