"""The post-hoc OOD methods that users would take instead: features of a classifier become one score an image."""

from discopatch.bench.baselines.base import (
    PENULTIMATE,
    RANK_BEFORE,
    RANK_LAST,
    STATISTICS,
    Array,
    Baseline,
    Classifier,
    ClassifierBaseline,
    FeatureDict,
)
from discopatch.bench.baselines.distances import FDBD, Mahalanobis, Statistics, ViM
from discopatch.bench.baselines.logits import MSP, Energy, MaxLogit
from discopatch.bench.baselines.neighbours import KNN, NNGuide
from discopatch.bench.baselines.shaping import ASH, RankFeat, RankFeatAndWeight, Scale
from discopatch.errors import ParameterError

BASELINES: dict[str, type[ClassifierBaseline]] = {
    "msp": MSP,
    "maxlogit": MaxLogit,
    "energy": Energy,
    "ash": ASH,
    "scale": Scale,
    "nnguide": NNGuide,
    "rankfeat": RankFeat,
    "rankfeat-weight": RankFeatAndWeight,
    "fdbd": FDBD,
    "vim": ViM,
    "mahalanobis": Mahalanobis,
    "knn": KNN,
    "statistics": Statistics,
}


def get_baseline(name: str) -> type[ClassifierBaseline]:
    """The class of that name, constructed from a Classifier; ParameterError lists the names there are."""
    try:
        return BASELINES[name]
    except KeyError:
        raise ParameterError(f"unknown baseline {name!r}: choose one of {', '.join(BASELINES)}") from None


__all__ = [
    "BASELINES",
    "PENULTIMATE",
    "RANK_BEFORE",
    "RANK_LAST",
    "STATISTICS",
    "Array",
    "Baseline",
    "Classifier",
    "FeatureDict",
    "get_baseline",
]
