"""The scores behind a report."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.tables.find import Report, look, sets

Array = NDArray[np.float64]

TEST = "test"  # the normal images


class Scores(Protocol):
    """Where scores are kept, such as `ScoreStore`."""

    def read(self, protocol: str, name: str) -> Mapping[str, Array]:
        """Those of a set, each (images,), by `seed:method`; nothing where the set was not scored."""


def of_method(found: Mapping[str, Array], method: str) -> Array | None:
    """Those with the first seed."""
    keys = [key for key in found if key.partition(":")[2] == method]
    return found[min(keys, key=lambda key: int(key.partition(":")[0]))] if keys else None


def names_of(report: Report, protocol: str, group: str) -> Iterator[str]:
    """The sets of a group under their names in the store."""
    if group != "covariate":
        yield from sets(report, group)
        return
    for corruption, levels in (look(report, "protocols", protocol, "corruptions") or {}).items():
        yield from (f"{corruption}/{severity}" for severity in levels)
