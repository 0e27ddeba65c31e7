"""A head is the same function as a graph as it is in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from discopatch.scoring import HEADS, CombinedHead, Evidence, Head, find_head
from discopatch.scoring.graphs import HeadOnDevice, NoGraph, head_graph
from discopatch.scoring.heads import PaperHead
from tests.scoring.samples import made_up_evidence, moved

DIMENSIONS = 40


def fitted(name: str, *, changes: int = 3) -> Head:
    rng = np.random.default_rng(0)
    known = {f"change {n}": rng.normal(size=(5, DIMENSIONS)).astype(np.float32) for n in range(changes)}
    return find_head(name).fit(made_up_evidence(30), known)


def by_graph(head: Head, evidence: Evidence) -> np.ndarray[Any, np.dtype[np.float64]]:
    score = head_graph(head)(torch.from_numpy(evidence.logits), torch.from_numpy(evidence.statistics))
    assert score.dtype == torch.float64
    return score.numpy()  # type: ignore[no-any-return]


def all_kinds() -> Evidence:
    """Usual, strange, far out, and the logits of both signs where a sigmoid saturates."""
    usual = made_up_evidence(8, seed=1)
    strange = moved(usual, np.array(2.0))
    far = moved(usual, np.array(1e4))
    saturated = Evidence(np.where(np.arange(8)[:, None] % 2, 60, -60) + usual.logits, usual.statistics)
    return Evidence.concatenate([usual, strange, far, saturated])


@pytest.mark.parametrize("name", HEADS)
def test_every_head_gives_the_same_scores(name: str) -> None:
    head, evidence = fitted(name), all_kinds()
    np.testing.assert_allclose(by_graph(head, evidence), head.score(evidence), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", HEADS)
def test_where_the_network_is_a_head_gives_the_same_scores(name: str) -> None:
    head, evidence = fitted(name), made_up_evidence(8, seed=1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    np.testing.assert_allclose(HeadOnDevice(head, device).score(evidence), head.score(evidence), rtol=1e-6)


def test_a_head_that_knows_no_changes_gives_the_same_scores() -> None:
    head, evidence = fitted("combined", changes=0), all_kinds()
    assert not head.names
    np.testing.assert_allclose(by_graph(head, evidence), head.score(evidence), rtol=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_every_image_is_judged_by_itself(name: str) -> None:
    head, evidence = fitted(name), all_kinds()
    alone = np.concatenate([by_graph(head, each) for each in evidence.one_by_one()])
    np.testing.assert_allclose(by_graph(head, evidence), alone, rtol=1e-12)


def test_an_image_that_is_the_mean_itself_has_a_finite_score() -> None:
    head = fitted("statistics")
    mean = head.arrays()["mean"][None].astype(np.float32)
    at_the_mean = Evidence(np.zeros((1, 9), np.float32), mean)
    assert np.isfinite(by_graph(head, at_the_mean)).all()


@pytest.mark.parametrize("name", ["combined", "statistics"])
def test_a_runtime_without_float64_keeps_the_digits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As OpenVINO has none: the difference of two large squares would lose them."""
    head, evidence = fitted(name), made_up_evidence(8, seed=1)
    graph = head_graph(head).float()
    monkeypatch.setattr(torch.Tensor, "double", torch.Tensor.float)
    score = graph(torch.from_numpy(evidence.logits), torch.from_numpy(evidence.statistics))
    assert score.dtype == torch.float32
    np.testing.assert_allclose(score.numpy(), head.score(evidence), rtol=0, atol=3e-5)


def test_a_graph_shares_no_memory_with_its_head() -> None:
    head = fitted("combined")
    assert isinstance(head, CombinedHead)
    before = head.score(all_kinds())
    with torch.no_grad():
        for constant in head_graph(head).buffers():
            constant.zero_()
    assert np.array_equal(head.score(all_kinds()), before)


def test_a_head_without_a_graph_says_what_to_do() -> None:
    class Newest(PaperHead):
        def score(self, evidence: Evidence) -> np.ndarray[Any, np.dtype[np.float64]]:
            return evidence.logits[:, 0].astype(np.float64)

    with pytest.raises(NoGraph, match=r"no graph is known for a head of type Newest: add one in .*graphs\.py"):
        head_graph(Newest())
