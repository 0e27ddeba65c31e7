"""What a method costs: time, size, patches."""

from collections.abc import Iterator

from discopatch.benchmark.tables.column import Column, by_method
from discopatch.benchmark.tables.find import Report, groups, look, measured, methods, protocols
from discopatch.benchmark.tables.labels import group_label, is_ours, patch_count
from discopatch.benchmark.tables.table import Cell, Heading, Number, Table, cell, percent


def cost_table(report: Report) -> Table:
    """Size and time of every method."""
    caption = f"Milliseconds an image, {look(report, 'made', 'device') or 'one by one'}."
    return by_method("cost", "Latency and size", caption, cost_columns(report), methods(report))


def cost_columns(report: Report) -> list[Column]:
    """Parameters and milliseconds."""
    return [
        Column(Heading("Parameters"), {name: _number(report, name, "parameters", 0) for name in methods(report)}),
        Column(Heading("Latency (ms)"), {name: _number(report, name, "milliseconds", 1) for name in methods(report)}),
    ]


def patch_tables(report: Report) -> Iterator[Table]:
    """What more patches bring: the discriminator alone, the dense pass last."""
    ours = sorted(
        filter(is_ours, methods(report)), key=lambda name: (patch_count(name) is None, patch_count(name) or 0)
    )
    if not any(map(patch_count, ours)):
        return
    columns = [
        Column(
            Heading(protocol, group_label(group)),
            {
                method: cell(percent(found.get("auroc"), better=1), percent(found.get("fpr95"), better=-1))
                for method in ours
                for found in [measured(report, protocol, group, method)]
            },
        )
        for group in groups(report)
        for protocol in protocols(report)
    ]
    columns.append(cost_columns(report)[1])
    yield by_method("patches", "Number of patches", "Group means, AUROC/FPR95.", columns, ours)


def _number(report: Report, method: str, what: str, digits: int) -> Cell:
    found = report["methods"][method].get(what)
    return "" if found is None else (Number(found, digits=digits, better=-1),)
