"""Logits become one score an image, higher for more out-of-distribution."""

from discopatch.scoring.heads import HEADS, Head, LogitHead, SigmoidHead, find_head
from discopatch.scoring.scorer import Score, Scorer

__all__ = ["HEADS", "Head", "LogitHead", "Score", "Scorer", "SigmoidHead", "find_head"]
