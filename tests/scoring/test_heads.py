"""Heads: an image's logits become one number, and no digit is lost on the way."""

import numpy as np
import pytest
import torch

from discopatch.scoring import HEADS, LogitHead, SigmoidHead, find_head

LOGITS = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)) * 3


def test_the_logit_head_is_minus_the_mean_logit() -> None:
    expected = -LOGITS.numpy().astype(np.float64).mean(1)
    scores = LogitHead().score(LOGITS)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-12)


def test_the_sigmoid_head_is_one_minus_the_mean_probability() -> None:
    probabilities = 1 / (1 + np.exp(-LOGITS.numpy().astype(np.float64)))
    scores = SigmoidHead().score(LOGITS)
    np.testing.assert_allclose(scores.numpy(), 1 - probabilities.mean(1), rtol=0, atol=1e-12)
    assert ((scores >= 0) & (scores <= 1)).all()


def test_the_sigmoid_head_keeps_the_order_where_float32_saturates() -> None:
    logits = torch.tensor([[30.0], [40.0], [60.0], [100.0]])
    saturated = 1 - torch.sigmoid(logits).mean(1)
    assert len(set(saturated.tolist())) == 1, "or this test proves nothing"
    scores = SigmoidHead().score(logits).tolist()
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4


@pytest.mark.parametrize("name", HEADS)
def test_higher_logits_are_less_strange(name: str) -> None:
    real, forged = find_head(name).score(torch.tensor([[2.0, 3.0], [-2.0, -3.0]])).tolist()
    assert real < forged


def test_an_unknown_head_names_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown head 'tail': choose one of logit, sigmoid"):
        find_head("tail")
