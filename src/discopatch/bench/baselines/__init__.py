"""The post-hoc OOD methods that users would take instead: features of a network become one score an image."""

from discopatch.bench.baselines.base import CLASSES, NO_CLASSES, Baseline, ClassifierBaseline, Setting
from discopatch.bench.baselines.distances import FDBD, MDS, Mahalanobis, ViM
from discopatch.bench.baselines.logits import MSP, Energy, MaxLogit
from discopatch.bench.baselines.neighbours import KNN, Local, NNGuide
from discopatch.bench.baselines.shaping import ASH, RankFeat, RankFeatAndWeight, Scale
from discopatch.bench.networks.base import (
    LOCAL,
    PENULTIMATE,
    RANK_BEFORE,
    RANK_LAST,
    RANK_WEIGHT,
    STATISTICS,
    Array,
    Classifier,
    FeatureDict,
)
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
    "mds": MDS,
    "knn": KNN,
    "local": Local,
}


def get_baseline(name: str) -> type[ClassifierBaseline]:
    """The class of that name, constructed from a Classifier; ParameterError lists the names there are."""
    try:
        return BASELINES[name]
    except KeyError:
        raise ParameterError(f"unknown baseline {name!r}: choose one of {', '.join(BASELINES)}") from None


def parse_options(text: str) -> tuple[str, dict[str, Setting]]:
    """The name of a baseline and the options that follow it: ash:variant=b:percentile=65.

    ParameterError for an option that the baseline does not have, which lists those that it has, and for a value of
    another type; which values an option may have, the baseline itself says.
    """
    name, *given = text.split(":")
    options = get_baseline(name).options
    found: dict[str, Setting] = {}
    for each in given:
        option, _, value = each.partition("=")
        if option not in options:
            known = f"choose from {', '.join(options)}" if options else "it has none"
            raise ParameterError(f"{text}: {name} has no option {option!r}: {known}")
        if option in found:
            raise ParameterError(f"{text}: {option} is given twice: leave one out")
        try:
            found[option] = options[option](value)
        except ValueError:
            kind = "a whole number" if options[option] is int else "a number"
            raise ParameterError(f"{text}: {option} is {value!r}, not {kind}: write {option}=NUMBER") from None
    return name, {option: found[option] for option in options if option in found}


def make_baseline(text: str, classifier: Classifier) -> ClassifierBaseline:
    """The baseline of that name with the options that follow it, not fitted yet."""
    name, options = parse_options(text)
    try:
        return BASELINES[name](classifier, **options)
    except ParameterError as error:
        raise ParameterError(f"{text}: {error}") from None


__all__ = [
    "BASELINES",
    "CLASSES",
    "LOCAL",
    "NO_CLASSES",
    "PENULTIMATE",
    "RANK_BEFORE",
    "RANK_LAST",
    "RANK_WEIGHT",
    "STATISTICS",
    "Array",
    "Baseline",
    "Classifier",
    "ClassifierBaseline",
    "FeatureDict",
    "Local",
    "Setting",
    "get_baseline",
    "make_baseline",
    "parse_options",
]
