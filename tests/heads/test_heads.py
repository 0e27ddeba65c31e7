"""Every head: its formula in plain numpy, on a GPU, in float32, one image at a time, and as tensors."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit

from discopatch.encoders import Features, FeatureSizes
from discopatch.errors import NotFittedError, ParameterError, WeightsError
from discopatch.heads import HEADS, CombinedHead, Head, LogitHead, SigmoidHead, StatisticsHead, get_head
from discopatch.heads.gaussian import ShrunkGaussian
from tests.samples import made_up_features, moved

DIMENSIONS = 40
SIZES = FeatureSizes(DIMENSIONS, 0, 0, logits=True)


def fitted(name: str) -> Head:
    rng = np.random.default_rng(0)
    known = {f"probe-{n}": rng.normal(size=(5, DIMENSIONS)).astype(np.float32) for n in range(3)}
    return get_head(name).fit(made_up_features(30), known)


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
