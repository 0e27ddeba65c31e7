"""The tables of the recipes: over seeds, paired seed by seed, and the released weights beside them."""

from collections.abc import Iterator

from discopatch.benchmark.studies.cells import auroc_cells, better_in
from discopatch.benchmark.studies.names import ALL, RECIPES, SCORES, score_name
from discopatch.benchmark.studies.plan import RELEASED
from discopatch.benchmark.studies.seeds import Spread, by_seed, paired
from discopatch.benchmark.tables.find import Report, look
from discopatch.benchmark.tables.labels import group_label
from discopatch.benchmark.tables.table import Better, Cell, Heading, Number, Row, Table, ranked

GROUP_HEADINGS = tuple(Heading(group_label(group)) for group in ALL)
NAMES = f"{RECIPES[1]} less {RECIPES[0]}"


def seed_tables(report: Report) -> Iterator[Table]:
    """Every recipe by every score, the released weights, and the difference between the recipes."""
    if rows := recipe_rows(report):
        headings = (Heading("Recipe and score"), Heading("Seeds"), *GROUP_HEADINGS)
        caption = "AUROC: mean and standard deviation over seeds, on the same test images."
        yield Table("study-seeds", "Recipes over seeds", caption, headings, ranked(rows))
    if groups := look(report, "evaluation", RELEASED, "groups"):
        rows = [(score_name(score, report), *auroc_cells(groups, score, ALL)) for score in SCORES]
        caption = "Trained for longer than the others: AUROC with its 95 % interval."
        yield Table("study-released", "Released weights", caption, (Heading("Score"), *GROUP_HEADINGS), ranked(rows))
    if rows := paired_rows(report):
        headings = (Heading("Score"), Heading("Seeds"), *GROUP_HEADINGS)
        caption = "AUROC, seed by seed: mean difference and Student's 95 % interval of it."
        yield Table("study-paired", f"Recipes paired: {NAMES}", caption, headings, tuple(rows))


def seed_values(report: Report, kind: str, group: str, score: str) -> dict[int, float]:
    """By seed; runs that lack the figure are left out."""
    evaluation = {
        name: each
        for name, each in (report.get("evaluation") or {}).items()
        if look(each, "groups", group, score) is not None
    }
    return by_seed(evaluation, kind, group, score)


def seed_spread(report: Report, kind: str, group: str, score: str) -> Spread | None:
    """None where nothing was measured."""
    values = seed_values(report, kind, group, score)
    return Spread.of([*values.values()]) if values else None


def difference(report: Report, group: str, score: str) -> Spread | None:
    """The second recipe less the first, over the seeds that both have."""
    first, second = (seed_values(report, kind, group, score) for kind in reversed(RECIPES))
    values = paired(first, second)
    return Spread.of(values) if values else None


def recipe_rows(report: Report) -> list[Row]:
    """Recipes by the same score below each other."""
    rows: list[Row] = []
    for score in SCORES:
        for kind in RECIPES:
            found = [seed_spread(report, kind, group, score) for group in ALL]
            if any(found):
                cells = [spread_cell(each, better_in(group)) for group, each in zip(ALL, found, strict=True)]
                rows.append((f"{kind}, {score_name(score, report)}", seeds_cell(found), *cells))
    return rows


def paired_rows(report: Report) -> list[Row]:
    """A row for each score."""
    rows: list[Row] = []
    for score in SCORES:
        found = [difference(report, group, score) for group in ALL]
        if any(found):
            rows.append((score_name(score, report), seeds_cell(found), *map(difference_cell, found)))
    return rows


def seeds_cell(found: list[Spread | None]) -> Cell:
    """How many seeds a row rests on."""
    return (Number(max(each.seeds for each in found if each), digits=0),)


def spread_cell(found: Spread | None, better: Better) -> Cell:
    """81.2 ± 0.6; one seed has no spread."""
    if found is None:
        return ""
    return (Number(100 * found.mean, spread=100 * found.deviation if found.seeds > 1 else None, better=better),)


def difference_cell(found: Spread | None) -> Cell:
    """+2.1 [+1.0, +3.2]; one seed has no interval."""
    if found is None:
        return ""
    low, high = found.interval
    return (Number(100 * found.mean, (100 * low, 100 * high) if found.seeds > 1 else None, signed=True),)
