"""The detector with scikit-learn's conventions, for pipelines and searches."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.detector import Detector
from discopatch.errors import ImageError
from discopatch.utils import require

require("sklearn", extra="sklearn")
from sklearn.base import BaseEstimator, OutlierMixin  # noqa: E402 - what is missing is said first
from sklearn.utils.validation import check_is_fitted  # noqa: E402


class ImageOutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # no types there
    """An outlier detector as scikit-learn knows them; X is anything that holds images, such as (N, H, W, 3) in uint8.

    Mind the signs, which are scikit-learn's: `predict` gives +1 for normal and -1 for outliers, and
    `score_samples` and `decision_function` are higher for *more normal* images, the latter below 0 for outliers.
    `Detector` has it the other way round. An image that cannot be read is an error here.
    """

    __init__ = Detector.__init__  # the same parameters

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Learns from normal images alone; `y` is ignored."""
        self.detector_ = Detector(**self.get_params(deep=False)).fit(X)
        self.offset_ = -self.detector_.threshold_
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(images,), higher for more normal: minus the detector's score."""
        check_is_fitted(self)
        scores = []
        for each in self.detector_.predict_images(X):
            if each.refusal is not None:
                raise ImageError(each.refusal.reason, f"{each.refusal.name}: {each.refusal.error}")
            scores.append(each.prediction.score)
        return -np.array(scores, np.float64)

    def decision_function(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(images,), negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:  # noqa: N803
        """(images,): +1 for normal images, -1 for outliers; of normal images at most the false-alarm rate are -1."""
        return np.where(self.decision_function(X) < 0, -1, 1)
