"""The detector with scikit-learn's habits, for pipelines and searches."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.detector import Detector
from discopatch.parameters import Parameters

try:
    from sklearn.base import BaseEstimator, OutlierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ModuleNotFoundError("this needs scikit-learn: pip install 'discopatch[sklearn]'") from error


class ImageOutlierDetector(OutlierMixin, BaseEstimator, Parameters):  # type: ignore[misc]  # scikit-learn has no types
    """An outlier detector as scikit-learn knows them; X is anything that holds images, such as (N, H, W, 3) in uint8.

    Mind the signs, which are scikit-learn's: `predict` gives +1 for normal and -1 for outliers, and
    `score_samples` and `decision_function` are higher for *more normal* images, the latter below 0 for outliers.
    `Detector` has it the other way round. An image that cannot be read is an error here. Parameters are the detector's.
    """

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Learns from normal images alone; `y` is ignored."""
        self.detector_ = Detector(**self.get_params(deep=False)).fit(X)
        self.offset_ = -self.detector_.threshold
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(images,), higher for more normal: the detector's score, turned round."""
        check_is_fitted(self)
        scores = self.detector_.score(X)
        if np.isnan(scores).any():
            raise ValueError(f"{np.isnan(scores).sum()} images cannot be read: Detector.predict says which and why")
        return -scores

    def decision_function(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(images,), negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray[np.int64]:  # noqa: N803
        """+1 for normal images, -1 for outliers; of normal images the promised share becomes -1."""
        return np.where(self.decision_function(X) < 0, -1, 1)
