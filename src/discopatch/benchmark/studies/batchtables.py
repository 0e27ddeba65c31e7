"""The tables of batch statistics: learned, of pure batches, of mixed ones, and of one set alone."""

from collections.abc import Iterable, Iterator, Sequence

from discopatch.benchmark.studies.names import GROUPS
from discopatch.benchmark.tables.find import Report, look
from discopatch.benchmark.tables.labels import group_label
from discopatch.benchmark.tables.table import Cell, Heading, Number, Row, Table, cell, percent

Found = tuple[str, Report]  # what the row is called, and its figures by group

LEARNED = "learned"
MEANS = "Mean AUROC over sets and rounds of random batches, with its 95 % interval; rounds: the lowest to the highest"


def batch_tables(report: Report) -> Iterator[Table]:
    """Nothing is marked: a batch that tells its images' kind is no better, only biased."""
    for number, (name, found) in enumerate((report.get("batch normalisation") or {}).items(), start=1):
        rows = [(LEARNED, found.get(LEARNED) or {}), *sized(found, "batch", "batch of {}")]
        caption = f"BatchNorm by learned statistics, or by those of a batch of one kind of images. {MEANS}."
        yield table(f"study-batches-{number}", f"Batch statistics: {name}", caption, "Statistics", rows)
        rows = [*sized(found, "half", "half, batch of {}"), *sized(found, "one", "one, batch of {}")]
        caption = f"Half of a batch is strange, or one image of it. {MEANS}."
        yield table(f"study-mixed-{number}", f"Mixed batches: {name}", caption, "Strange images", rows)
        rows = sized(found, "own sets", "{}")
        caption = f"Batches of one set alone, as far as sets are large enough. {MEANS}; sets: how many there are."
        title = f"Batches of one set: {name}"
        yield table(f"study-own-sets-{number}", title, caption, "Batch of", rows, groups=GROUPS[:2], sets=True)


def sized(found: Report, way: str, label: str) -> list[Found]:
    """By batch size; those for which there were too few images are left out."""
    return [(label.format(size), each) for size, each in (found.get(way) or {}).items() if each]


def table(
    name: str,
    title: str,
    caption: str,
    first: str,
    found: Sequence[Found],
    *,
    groups: Iterable[str] = GROUPS,
    sets: bool = False,
) -> Table:
    """Columns in which nothing stands are left out."""
    columns: list[tuple[Heading, list[Cell]]] = []
    for group in groups:
        each = [look(by_group, group) for _, by_group in found]
        above = group_label(group)
        columns.append((Heading("AUROC", above), [cell(percent(look(one, "auroc"), interval=True)) for one in each]))
        columns.append((Heading("rounds", above), [rounds(look(one, "rounds")) for one in each]))
        if sets:
            columns.append((Heading("sets", above), [count(look(one, "sets")) for one in each]))
    filled = [(heading, cells) for heading, cells in columns if any(cells)]
    labels: list[Cell] = [label for label, _ in found]
    rows: tuple[Row, ...] = tuple(zip(labels, *(cells for _, cells in filled), strict=True))
    return Table(name, title, caption, (Heading(first), *(heading for heading, _ in filled)), rows)


def rounds(values: Sequence[float] | None) -> str:
    """95.8 to 96.6; a single round has no range."""
    return f"{100 * min(values):.1f} to {100 * max(values):.1f}" if values and len(values) > 1 else ""


def count(names: Sequence[str] | None) -> Cell:
    """Over how many sets the mean is."""
    return "" if names is None else (Number(len(names), digits=0),)
