"""The baselines by their names."""

from typing import Protocol

from discopatch.baselines.ash import ASH
from discopatch.baselines.energy import Energy
from discopatch.baselines.fdbd import FDBD
from discopatch.baselines.knn import KNN
from discopatch.baselines.mahalanobis import Mahalanobis
from discopatch.baselines.maxlogit import MaxLogit
from discopatch.baselines.method import Classifier, Method
from discopatch.baselines.msp import MSP
from discopatch.baselines.nnguide import NNGuide
from discopatch.baselines.rankfeat import RankFeat, RankFeatAndWeight
from discopatch.baselines.scale import Scale
from discopatch.baselines.statistics import Statistics
from discopatch.baselines.vim import ViM


class Baseline(Method, Protocol):
    """A method that is made from a classifier, with the settings of its paper."""

    def __init__(self, classifier: Classifier) -> None: ...


BASELINES: dict[str, type[Baseline]] = {
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


def find_baseline(name: str) -> type[Baseline]:
    """The baseline of that name, or an error that lists the names there are."""
    try:
        return BASELINES[name]
    except KeyError:
        raise ValueError(f"unknown baseline {name!r}: choose one of {', '.join(BASELINES)}") from None
