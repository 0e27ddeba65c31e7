"""AUROC in the cells of the studies' tables."""

from collections.abc import Iterator

from discopatch.benchmark.tables.find import Report, look
from discopatch.benchmark.tables.table import Better, Cell, cell, percent


def auroc_cells(found: Report, score: str, groups: tuple[str, ...]) -> Iterator[Cell]:
    """With its interval, group by group; what was not measured leaves a gap."""
    for group in groups:
        yield cell(percent(look(found, group, score), better=better_in(group), interval=True))


def better_in(group: str) -> Better:
    """Higher, but in the control there is nothing to be good at."""
    return 0 if group == "control" else 1
