"""Heads: models of normal features that give one score per image, higher for more out-of-distribution."""

from discopatch.errors import ParameterError
from discopatch.heads.base import Head, ProbeShifts
from discopatch.heads.basic import CombinedHead, LogitHead, SigmoidHead, StatisticsHead
from discopatch.heads.components import ComponentsHead
from discopatch.heads.places import PlaceModel
from discopatch.heads.probes import PROBES, measure_shifts
from discopatch.heads.trials import make_trials

DEFAULT_HEAD = "components"
HEADS: dict[str, type[Head]] = {
    "combined": CombinedHead,
    "components": ComponentsHead,
    "statistics": StatisticsHead,
    "logit": LogitHead,
    "sigmoid": SigmoidHead,
}


def get_head(name: str) -> Head:
    """A new head of that name, or ParameterError with the names there are."""
    if name not in HEADS:
        raise ParameterError(f"unknown head {name!r}: choose one of {', '.join(HEADS)}")
    return HEADS[name]()


__all__ = [
    "DEFAULT_HEAD",
    "HEADS",
    "PROBES",
    "CombinedHead",
    "ComponentsHead",
    "Head",
    "LogitHead",
    "PlaceModel",
    "ProbeShifts",
    "SigmoidHead",
    "StatisticsHead",
    "get_head",
    "make_trials",
    "measure_shifts",
]
