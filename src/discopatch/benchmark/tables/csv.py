"""Every figure of a report on a line of its own, for other programs: no rounding, nothing left out."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from discopatch.benchmark.tables.find import Report, protocols

COLUMNS = ("protocol", "set", "group", "method", "metric", "value", "low", "high")
MEAN = "mean"  # the set of a figure that is a mean over the sets of its group

Line = tuple[str, str, str, str, str, float, float | None, float | None]
Named = Mapping[str, Any]


def render(report: Report, more: Iterable[Line] = ()) -> str:
    """The whole file; lines of other origin come last."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(lines(report))
    writer.writerows(more)
    return text.getvalue()


def lines(report: Report) -> Iterator[Line]:
    """Each figure with its ends; those over seeds and of cost have none."""
    for protocol in protocols(report):
        for where, found in _parts(report["protocols"][protocol]):
            for (name, group), method, metric, figure in _figures(where, found):
                yield protocol, name, group, method, metric, *_ends(figure)
    for method, found in report["methods"].items():
        for metric in ("parameters", "milliseconds"):
            if found.get(metric) is not None:
                yield "", "", "cost", method, metric, found[metric], None, None


def _parts(found: Named) -> Iterator[tuple[tuple[str, str], Named]]:
    """Set and group, and what was found there by method and metric."""
    for name, each in (found.get("sets") or {}).items():
        yield (name, each["group"]), each["methods"]
    for name, levels in (found.get("corruptions") or {}).items():
        for severity, each in levels.items():
            yield (f"{name}/{severity}", "covariate"), each
    yield ("severity 0", "control"), {name: {"auroc": each} for name, each in (found.get("control") or {}).items()}
    for method, levels in (found.get("severities") or {}).items():
        for severity, each in levels.items():
            yield (f"severity {severity}", "covariate"), {method: each}
    for group, each in (found.get("means") or {}).items():
        yield (MEAN, group), each
    for group, each in (found.get("differences") or {}).items():
        yield (MEAN, group), {name: _renamed(metrics, "{} difference") for name, metrics in each.items()}
    for group, each in (found.get("seeds") or {}).items():
        yield (MEAN, group), {name: _over_seeds(metrics) for name, metrics in each.items()}


def _figures(where: tuple[str, str], found: Named) -> Iterator[tuple[tuple[str, str], str, str, Any]]:
    for method, metrics in found.items():
        for metric, figure in metrics.items():
            if figure is not None:
                yield where, method, metric, figure


def _ends(figure: Any) -> tuple[float, float | None, float | None]:
    if isinstance(figure, int | float):
        return figure, None, None
    value, low, high = figure
    return value, low, high


def _renamed(metrics: Named, pattern: str) -> Named:
    return {pattern.format(metric): figure for metric, figure in metrics.items()}


def _over_seeds(metrics: Named) -> Named:
    means = {f"{metric} mean over seeds": figure[0] for metric, figure in metrics.items()}
    return means | {f"{metric} spread over seeds": figure[1] for metric, figure in metrics.items()}
