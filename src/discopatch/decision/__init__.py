"""A score becomes a decision."""

from discopatch.decision.conformal import TooFewImages, p_values, threshold
from discopatch.decision.explanation import Explanation
from discopatch.decision.judging import Judgement, Judging
from discopatch.decision.prediction import Prediction
from discopatch.decision.trust import Trust

__all__ = ["Explanation", "Judgement", "Judging", "Prediction", "TooFewImages", "Trust", "p_values", "threshold"]
