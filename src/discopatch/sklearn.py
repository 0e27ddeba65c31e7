"""The detector as a scikit-learn estimator."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.detector import Detector
from discopatch.errors import ImageError
from discopatch.utils import require

require("sklearn", extra="sklearn")
from sklearn.base import BaseEstimator, OutlierMixin  # noqa: E402 - after the check
from sklearn.utils.validation import check_is_fitted  # noqa: E402


class ImageOutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Outlier detector for images, with the parameters of `Detector` and the signs of scikit-learn.

    `predict` returns +1 for normal images and -1 for outliers. `score_samples` and `decision_function` are higher for
    more normal images, unlike the scores of `Detector`. X is any source of images, such as an array (N, H, W, 3) in
    uint8. An image that cannot be read raises ImageError.
    """

    __init__ = Detector.__init__

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Fits a detector on normal images; `y` is ignored."""
        self.detector_ = Detector(**self.get_params(deep=False)).fit(X)
        self.offset_ = -self.detector_.threshold_
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(images,), the negative score of the detector: higher for more normal images."""
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
        """(images,): +1 for normal images, -1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)
