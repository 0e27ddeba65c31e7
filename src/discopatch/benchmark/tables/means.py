"""Means over the sets of a group: how sure they are, what the way explains, other metrics, other seeds."""

from collections.abc import Iterator, Mapping, Sequence

from discopatch.benchmark.tables.column import Column, by_method
from discopatch.benchmark.tables.find import Report, groups, look, measured, methods, protocols
from discopatch.benchmark.tables.labels import group_label, method_label
from discopatch.benchmark.tables.table import Better, Cell, Heading, Number, Table, cell, percent

OPENOOD: dict[str, tuple[str, Better]] = {
    "fpr95_in": ("FPR95-in", -1),
    "aupr_in": ("AUPR-in", 1),
    "aupr_out": ("AUPR-out", 1),
}
PAIR: dict[str, tuple[str, Better]] = {"auroc": ("AUROC", 1), "fpr95": ("FPR95", -1)}
ROUTE: dict[str, tuple[str, Better]] = {
    "auroc": ("AUROC", 0),
    "control": ("control", 0),
    "route_matched": ("route-matched", 1),
}


def means_tables(report: Report) -> Iterator[Table]:
    """With intervals, and how far the reference is ahead on the same images."""
    for protocol in protocols(report):
        reference = look(report, "protocols", protocol, "reference")
        columns = [
            column
            for group in groups(report)
            for column in (
                mean_column(report, protocol, group, "auroc", "AUROC", better=1, interval=True),
                difference_column(report, protocol, group),
            )
        ]
        caption = "AUROC with its 95 % interval"
        if reference is not None:
            caption += f"; ahead: {method_label(reference)} minus this method, paired over the same images"
        yield by_method(f"means-{protocol}", f"Group means, {protocol}", f"{caption}.", columns, methods(report))


def route_tables(report: Report) -> Iterator[Table]:
    """What is left when the normal images take the way of the set."""
    caption = (
        "AUROC; control: normal images along the way of a set against normal images; "
        "route-matched: the set against normal images along its way."
    )
    return metric_tables(report, "route", "What the way explains", caption, ROUTE)


def metrics_tables(report: Report) -> Iterator[Table]:
    """Those of OpenOOD that the paper leaves out."""
    caption = (
        "FPR95-in: share of strange images accepted when 95 % of the normal ones are; "
        "AUPR-in and AUPR-out: average precision in finding normal and strange images."
    )
    return metric_tables(report, "metrics", "Other metrics", caption, OPENOOD)


def metric_tables(
    report: Report, name: str, title: str, caption: str, metrics: Mapping[str, tuple[str, Better]]
) -> Iterator[Table]:
    """A table for each protocol, in it a column for each group and metric."""
    for protocol in protocols(report):
        columns = [
            mean_column(report, protocol, group, metric, heading, better=better)
            for group in groups(report)
            for metric, (heading, better) in metrics.items()
        ]
        yield by_method(f"{name}-{protocol}", f"{title}, {protocol}", caption, columns, methods(report))


def seeds_tables(report: Report) -> Iterator[Table]:
    """Mean and standard deviation over draws of the images to fit on."""
    seeds: Sequence[int] = look(report, "made", "seeds") or []
    for protocol in protocols(report):
        found = look(report, "protocols", protocol, "seeds") or {}
        columns = [
            Column(Heading(title, group_label(group)), seed_cells(found[group], metric, better))
            for group in groups(report)
            if group in found
            for metric, (title, better) in PAIR.items()
        ]
        caption = f"Mean and standard deviation over {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}."
        if any(any(column.cells.values()) for column in columns):
            yield by_method(f"seeds-{protocol}", f"Over seeds, {protocol}", caption, columns, methods(report))


def mean_column(
    report: Report, protocol: str, group: str, metric: str, title: str, *, better: Better, interval: bool = False
) -> Column:
    """One metric of a group."""
    found = {method: measured(report, protocol, group, method).get(metric) for method in methods(report)}
    cells = {method: cell(percent(figure, better=better, interval=interval)) for method, figure in found.items()}
    return Column(Heading(title, group_label(group)), cells)


def difference_column(report: Report, protocol: str, group: str) -> Column:
    """Reference minus method."""
    found = look(report, "protocols", protocol, "differences", group) or {}
    cells = {
        method: cell(percent(look(metrics, "auroc"), interval=True, signed=True)) for method, metrics in found.items()
    }
    return Column(Heading("ahead", group_label(group)), cells)


def seed_cells(found: Report, metric: str, better: Better) -> dict[str, Cell]:
    """97.2 ± 0.3."""
    return {
        method: cell(Number(100 * metrics[metric][0], spread=100 * metrics[metric][1], better=better))
        for method, metrics in found.items()
        if metric in metrics
    }
