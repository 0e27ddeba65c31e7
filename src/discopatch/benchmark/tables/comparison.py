"""The paper's table: every method on every set, under each protocol, with what the way of the images explains."""

from collections.abc import Iterator, Sequence
from math import ceil

from discopatch.benchmark.tables.column import Column, by_method
from discopatch.benchmark.tables.find import Report, groups, look, measured, methods, protocols, sets
from discopatch.benchmark.tables.labels import group_label, set_label
from discopatch.benchmark.tables.table import Better, Heading, Table, Triple, cell, percent

SIDE_BY_SIDE = 4  # sets in one table: more would be too small in print
CORRUPTED = "corrupted"

Named = tuple[str, str]  # set and group


def main_tables(report: Report) -> Iterator[Table]:
    """As few as fit on a page; sets that hold nothing strange have one of their own."""
    compared = [*sets(report, "near", "far").items()]
    if "covariate" in groups(report):
        compared.append((CORRUPTED, "covariate"))
    for number, part in enumerate(shares(compared), start=1):
        kinds = ", ".join(dict.fromkeys(group_label(group) for _, group in part))
        yield table(report, f"main-{number}", f"OOD detection: {kinds}", "AUROC/FPR95", part)
    if controls := [*sets(report, "control").items()]:
        caption = "AUROC/FPR95, 50/95 where a detector sees nothing but the images"
        yield table(report, "control-sets", "Sets that hold nothing strange", caption, controls)


def shares(compared: Sequence[Named]) -> list[Sequence[Named]]:
    """As equal as they can be."""
    size = ceil(len(compared) / max(1, ceil(len(compared) / SIDE_BY_SIDE)))
    return [compared[first : first + size] for first in range(0, len(compared), max(1, size))]


def table(report: Report, name: str, title: str, caption: str, part: Sequence[Named]) -> Table:
    """Three columns for each set."""
    order = "/".join(protocols(report))
    caption = f"{caption}; control: AUROC of normal images along the way of the set ({order})."
    columns = [column for named in part for column in set_columns(report, *named)]
    return by_method(name, title, caption, columns, methods(report))


def set_columns(report: Report, name: str, group: str) -> Iterator[Column]:
    """AUROC/FPR95 under each protocol, then the controls of all of them side by side."""
    of, above = (None, "Corrupted images") if name == CORRUPTED else (name, f"{set_label(name)} ({group})")
    higher: Better = 0 if group == "control" else 1
    lower: Better = 0 if group == "control" else -1
    for protocol in protocols(report):
        found = {method: measured(report, protocol, group, method, of=of) for method in methods(report)}
        cells = {
            method: cell(percent(metrics.get("auroc"), better=higher), percent(metrics.get("fpr95"), better=lower))
            for method, metrics in found.items()
        }
        yield Column(Heading(protocol, above), cells)
    controls = {
        method: cell(*(percent(control(report, protocol, group, method, of)) for protocol in protocols(report)))
        for method in methods(report)
    }
    yield Column(Heading("control", above), controls)


def control(report: Report, protocol: str, group: str, method: str, of: str | None) -> Triple | None:
    """Of a set, or of the storage of corrupted images."""
    if of is None:
        found: Triple | None = look(report, "protocols", protocol, "control", method)
        return found
    return measured(report, protocol, group, method, of=of).get("control")
