"""PyOD 3.6.7 on the pooled features of ResNet-50, with its defaults and its own threshold.

    detector = KNN().fit(features)
    scores, flagged = detector.decision_function(new_features), detector.predict(new_features)

Its threshold flags a tenth of the fitted images, its default. Features as in pytorch_ood_methods.py.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from time import process_time

from peer import Fitted, Suite, main
from pytorch_ood_methods import pooled

PACKAGES = (
    *("torch==2.13.0", "torchvision==0.28.0", "pyod==3.6.7", "scikit-learn==1.9.1", "numpy==2.4.6"),
    *("pillow==13.0.0", "safetensors==0.8.0"),
)
LINES = 10  # with imports, and those that make the features


def method(module: str, name: str) -> Callable[[Suite], Fitted]:
    def fit(suite: Suite) -> Fitted:
        import numpy as np

        features, _ = pooled(suite)
        seeded = {"random_state": 0} if name == "IForest" else {}
        detector = getattr(import_module(f"pyod.models.{module}"), name)(**seeded)
        normal, start = np.stack([features[str(each)] for each in suite.files("fit")]), process_time()
        detector.fit(normal)
        fit_seconds = process_time() - start + float(features["seconds"]) * len(normal)

        def score(files: Sequence[Path]) -> Sequence[float]:
            return list(detector.decision_function(np.stack([features[str(each)] for each in files])))

        return Fitted(
            score,
            LINES,
            threshold=float(detector.threshold_),
            fit_seconds=fit_seconds,
            earlier_seconds=float(features["seconds"]),
        )

    return fit


METHODS = {
    f"pyod-{module}": method(module, name)
    for module, name in {"knn": "KNN", "lof": "LOF", "ecod": "ECOD", "iforest": "IForest"}.items()
}

if __name__ == "__main__":
    main(__doc__, "pyod", "pyod", PACKAGES, METHODS)
