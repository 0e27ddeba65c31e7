"""Post-hoc OOD detection methods of others: features of a network become one score per image."""

from discopatch.bench.baselines.base import CLASSES, Baseline, Setting
from discopatch.bench.baselines.distances import FDBD, KNN, MDS, Local, Mahalanobis, NNGuide, ViM
from discopatch.bench.baselines.logits import ASH, MSP, Energy, MaxLogit, RankFeat, RankFeatAndWeight, Scale
from discopatch.bench.networks.base import Classifier
from discopatch.errors import ParameterError

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
    "mds": MDS,
    "knn": KNN,
    "local": Local,
}


def parse_options(text: str) -> tuple[str, dict[str, Setting]]:
    """The name of a baseline and the options that follow it: ash:variant=b:percentile=65.

    An unknown option or value is a ParameterError.
    """
    name, *given = text.split(":")
    options = BASELINES[name].options
    found: dict[str, Setting] = {}
    for each in given:
        option, _, value = each.partition("=")
        if option not in options:
            known = f"choose from {', '.join(options)}" if options else "it has none"
            raise ParameterError(f"{text}: {name} has no option {option!r}: {known}")
        try:
            found[option] = options[option](value)
        except ValueError as error:
            raise ParameterError(f"{text}: {option} is {value!r}: {error}") from None
    return name, {option: found[option] for option in options if option in found}


def make_baseline(text: str, classifier: Classifier) -> Baseline:
    """The baseline of that name with the options that follow it, not fitted yet."""
    name, options = parse_options(text)
    return BASELINES[name](classifier, **options)


__all__ = ["BASELINES", "CLASSES", "Baseline", "Local", "Setting", "make_baseline", "parse_options"]
