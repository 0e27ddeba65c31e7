"""Logits and statistics become one score an image, higher for more out-of-distribution."""

from discopatch.scoring.combined import CombinedHead
from discopatch.scoring.evidence import Evidence
from discopatch.scoring.heads import Head, LogitHead, SigmoidHead
from discopatch.scoring.named import HEADS, find_head
from discopatch.scoring.scorer import Score, Scorer
from discopatch.scoring.statistics import StatisticsHead

__all__ = [
    "HEADS",
    "CombinedHead",
    "Evidence",
    "Head",
    "LogitHead",
    "Score",
    "Scorer",
    "SigmoidHead",
    "StatisticsHead",
    "find_head",
]
