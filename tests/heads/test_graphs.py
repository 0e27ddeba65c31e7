"""Heads on a GPU and in exported graphs, and a plain numpy reference of what they compute."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from discopatch.encoders import Features
from discopatch.heads import HEADS, CombinedHead, ComponentsHead, Head, SigmoidHead, StatisticsHead, get_head
from discopatch.heads.gaussian import ShrunkGaussian
from tests.samples import made_up_features, moved

DIMENSIONS = 40


def fitted(name: str, *, probes: int = 3) -> Head:
    rng = np.random.default_rng(0)
    known = {f"probe-{n}": rng.normal(size=(5, DIMENSIONS)).astype(np.float32) for n in range(probes)}
    return get_head(name).fit(made_up_features(30), known)


def all_kinds() -> Features:
    """Usual, unusual, far out, and logits of both signs where a sigmoid saturates."""
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


def expected_scores(head: Head, features: Features) -> NDArray[np.float64]:
    logits = features.logits.astype(np.float64)
    match head:
        case CombinedHead():
            parts = {name: value.numpy() for name, value in head.named_buffers()}
            responses = (features.statistics - parts["statistics.gaussian.mean"]) @ parts["filters"].T
            raw = np.column_stack(
                [-logits.mean(1), log_distance(head.statistics.gaussian, features.statistics), responses]
            )
            z = (raw - parts["centres"]) / parts["spreads"]
            if head.probes:
                centre, spread = parts["maximum"]
                z = np.column_stack([z[:, :2], (z[:, 2:].max(1) - centre) / spread])
            return logsumexp(z, axis=1)  # type: ignore[no-any-return]
        case ComponentsHead():
            parts = {name: value.numpy() for name, value in head.named_buffers()}
            values = [-logits.mean(1), log_distance(head.early, features.statistics)]
            if head.probes:
                responses = (features.statistics - parts["mean"]) @ parts["filters"].T
                values.append(((responses - parts["probe_centres"]) / parts["probe_spreads"]).max(1))
            own = parts["counts"] > 0
            return logsumexp(  # type: ignore[no-any-return]
                (np.column_stack(values) - parts["centres"][own]) / parts["spreads"][own], axis=1
            )
        case StatisticsHead():
            return log_distance(head.gaussian, features.statistics)
        case SigmoidHead():
            result: NDArray[np.float64] = expit(-logits).mean(1)
            return result
        case _:
            return np.asarray(-logits.mean(1))


@pytest.mark.parametrize("probes", [0, 3])
@pytest.mark.parametrize("name", HEADS)
def test_every_head_computes_its_formula(name: str, probes: int) -> None:
    head, features = fitted(name, probes=probes), all_kinds()
    np.testing.assert_allclose(head.score(features), expected_scores(head, features), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", HEADS)
def test_on_another_device_a_head_gives_the_same_scores(name: str) -> None:
    head, features = fitted(name), made_up_features(8, seed=1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = copy.deepcopy(head).to(device)
    np.testing.assert_allclose(there.score(features), head.score(features), rtol=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_every_image_is_scored_by_itself(name: str) -> None:
    head, features = fitted(name), all_kinds()
    alone = np.concatenate([head.score(each) for each in features.one_by_one()])
    np.testing.assert_allclose(head.score(features), alone, rtol=1e-12)


def test_an_image_that_is_the_mean_itself_has_a_finite_score() -> None:
    head = fitted("statistics")
    assert isinstance(head, StatisticsHead)
    mean = head.gaussian.mean[None].float().numpy()
    assert np.isfinite(head.score(Features(np.zeros((1, 9), np.float32), mean))).all()


@pytest.mark.parametrize("name", ["combined", "statistics"])
def test_a_runtime_without_float64_keeps_the_digits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As OpenVINO has none: the difference of two large squares would lose them."""
    head, features = fitted(name), made_up_features(8, seed=1)
    expected, graph = head.score(features), copy.deepcopy(head).float()
    monkeypatch.setattr(torch.Tensor, "double", torch.Tensor.float)
    score: Any = graph(torch.from_numpy(features.logits), torch.from_numpy(features.statistics))
    assert score.dtype == torch.float32
    np.testing.assert_allclose(score.numpy(), expected, rtol=0, atol=3e-5)


def test_a_head_does_not_share_memory_with_what_it_was_fitted_on() -> None:
    normal = made_up_features(30)
    head = get_head("statistics").fit(normal)
    before = head.score(all_kinds())
    normal.statistics[:] = 0
    assert np.array_equal(head.score(all_kinds()), before)
