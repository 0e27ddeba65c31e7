"""Every corruption at every severity, a table for each method, as in the paper's appendix."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from discopatch.benchmark.tables.find import Report, look, measured, methods, protocols, severities
from discopatch.benchmark.tables.labels import corruption_label, method_label
from discopatch.benchmark.tables.table import Cell, Heading, Row, Table, cell, percent

PAIR = ("auroc", "fpr95")
AVERAGE = "Average"


def corruption_tables(report: Report) -> Iterator[Table]:
    """One for each method and protocol; those that saw no corrupted images have none."""
    for protocol in protocols(report):
        for number, method in enumerate(methods(report), start=1):
            found = cells(report, protocol, method)
            if found:
                yield table(report, protocol, method, found, f"corruptions-{protocol}-{number}")


def cells(report: Report, protocol: str, method: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """What the method found, by corruption and severity."""
    everything = look(report, "protocols", protocol, "corruptions") or {}
    found = {
        name: {severity: each[method] for severity, each in levels.items() if method in each}
        for name, levels in everything.items()
    }
    return {name: levels for name, levels in found.items() if levels}


def table(report: Report, protocol: str, method: str, found: dict[str, Any], name: str) -> Table:
    """A row for each corruption in the order of the alphabet, averages last."""
    levels = severities(found)
    rows: list[Row] = [
        (
            corruption_label(corruption),
            *(pair(found[corruption].get(level, {})) for level in levels),
            average(list(found[corruption].values())),
        )
        for corruption in sorted(found)
    ]
    by_severity = look(report, "protocols", protocol, "severities", method) or {}
    overall = pair(measured(report, protocol, "covariate", method))
    rows.append((AVERAGE, *(pair(by_severity.get(level, {})) for level in levels), overall))
    above = "Corruption severity"
    headings = (Heading("Corruption"), *(Heading(level, above) for level in levels), Heading(AVERAGE))
    title = f"Corruptions, {protocol}: {method_label(method)}"
    return Table(name, title, "AUROC/FPR95.", headings, tuple(rows), averages=1)


def pair(metrics: Mapping[str, Any]) -> Cell:
    """97.2/10.6."""
    return cell(*(percent(metrics.get(metric)) for metric in PAIR))


def average(found: Sequence[Mapping[str, Any]]) -> Cell:
    """Over the severities that were measured; intervals do not average, and are left out."""
    means = {
        metric: [fmean(values)] * 3
        for metric in PAIR
        if (values := [each[metric][0] for each in found if each.get(metric) is not None])
    }
    return pair(means)
