"""The heads by their names."""

from discopatch.scoring.combined import CombinedHead
from discopatch.scoring.heads import Head, LogitHead, SigmoidHead
from discopatch.scoring.statistics import StatisticsHead

HEADS: dict[str, type[Head]] = {
    "combined": CombinedHead,
    "statistics": StatisticsHead,
    "logit": LogitHead,
    "sigmoid": SigmoidHead,
}


def find_head(name: str) -> Head:
    """The head of that name, or an error that lists the names there are."""
    try:
        return HEADS[name]()
    except KeyError:
        raise ValueError(f"unknown head {name!r}: choose one of {', '.join(HEADS)}") from None
