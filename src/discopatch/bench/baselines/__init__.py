"""Post-hoc OOD detection methods of others: features of a network become one score per image."""

from discopatch.bench.baselines import distances, logits
from discopatch.bench.baselines.base import CLASSES as CLASSES
from discopatch.bench.baselines.base import Baseline as Baseline
from discopatch.bench.baselines.base import Setting as Setting
from discopatch.bench.networks.base import Classifier
from discopatch.errors import ParameterError

BASELINES: dict[str, type[Baseline]] = {
    "msp": logits.MSP,
    "maxlogit": logits.MaxLogit,
    "energy": logits.Energy,
    "ash": logits.ASH,
    "scale": logits.Scale,
    "adascale": logits.AdaScale,
    "nnguide": distances.NNGuide,
    "rankfeat": logits.RankFeat,
    "rankfeat-weight": logits.RankFeatAndWeight,
    "fdbd": distances.FDBD,
    "nci": distances.NCI,
    "vim": distances.ViM,
    "mahalanobis": distances.Mahalanobis,
    "mahalanobis++": distances.UnitMahalanobis,
    "mds": distances.MDS,
    "mds++": distances.UnitMDS,
    "dfm": distances.DFM,
    "knn": distances.KNN,
    "combood": distances.CombOOD,
    "local": distances.Local,
    "cdf": distances.ActivationCDF,
    "niqe": distances.NIQE,
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
