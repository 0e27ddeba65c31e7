"""What users would use instead: a classifier's features become one score an image, behind the same interface."""

from discopatch.baselines.method import Classifier, Features, Method
from discopatch.baselines.named import BASELINES, Baseline, find_baseline

__all__ = ["BASELINES", "Baseline", "Classifier", "Features", "Method", "find_baseline"]
