"""The tables of the studies, section by section of the page."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np

from discopatch.bench.labels import group_label, set_label
from discopatch.bench.tables.table import Better, Cell, Heading, Number, Row, Table, is_empty, mark_best, percentage
from paper.dataset import corrupted_name
from paper.plan import RELEASED
from paper.results import Results, SeedSummary, get_part, get_section, over_seeds, paired_difference

GROUPS = ("near", "far", "covariate")
ALL_GROUPS = (*GROUPS, "control")
SCORES = ("patches", "logit", "statistics", "combined")
HEADS = ("logit", "statistics", "combined")
LAYERS = {"group-0": "GroupNorm", "instance-0": "InstanceNorm", "paper-0": "BatchNorm over patches"}
RECIPES = ("paper", "natural")
BANDS = ("low", "middle", "high")
ROUNDS = "Mean AUROC over sets and rounds of random batches, with its 95 % interval; rounds: the lowest to the highest"


def tables_by_section(results: Results) -> dict[str, list[Table]]:
    """In the order of the page; a study that was not run has none."""
    sections: dict[str, Callable[[Results], Iterator[Table]]] = {
        "Normalisation layers": normalisation_tables,
        "Batch statistics": batch_tables,
        "Patch counts": count_tables,
        "Seeds and recipes": seed_tables,
        "Spectra": spectra_tables,
        "The trainings": run_tables,
        "Provenance": data_tables,
    }
    return {title: [*tables(results)] for title, tables in sections.items()}


def score_label(score: str, results: Results) -> str:
    patches = results["plan"]["scored_patches"]
    return {"patches": f"mean logit of {patches} patches", "logit": "mean logit, dense"}.get(score, score)


def head_label(head: str) -> str:
    return {"logit": "mean logit"}.get(head, head)


def group_headings(groups: Sequence[str]) -> tuple[Heading, ...]:
    return tuple(Heading(group_label(group)) for group in groups)


def auroc_cells(figures: Results, score: str, groups: Sequence[str]) -> list[Cell]:
    """AUROC with its interval, group by group; what was not measured leaves a gap."""
    return [(percentage(get_part(figures, group, score), better=better_in(group), interval=True),) for group in groups]


def better_in(group: str) -> Better:
    """In the control there is nothing to detect, so nothing is better."""
    return 0 if group == "control" else 1


def normalisation_tables(results: Results) -> Iterator[Table]:
    """A row for each layer, a table for each score."""
    runs = {title: run for name, title in LAYERS.items() if (run := get_part(results, "evaluation", name))}
    severities = ", ".join(map(str, results["plan"]["severities"]))
    for score in SCORES if runs else ():
        rows = [(title, *auroc_cells(run["groups"], score, ALL_GROUPS)) for title, run in runs.items()]
        yield Table(
            f"study-layers-{score}",
            f"Normalisation layers: {score_label(score, results)}",
            "The paper's recipe with other normalisation layers, seed 0: AUROC with its 95 % interval; corruptions at "
            f"severity {severities}.",
            (Heading("Normalisation"), *group_headings(ALL_GROUPS)),
            mark_best(rows),
        )


def batch_tables(results: Results) -> Iterator[Table]:
    """Nothing is marked: a batch that gives away the kind of its images is no better, only biased."""
    for number, (name, run) in enumerate(get_section(results, "batch normalisation").items(), start=1):
        yield batch_table(
            f"study-batches-{number}",
            f"Batch statistics: {name}",
            f"BatchNorm by learned statistics, or by those of a batch of one kind of images. {ROUNDS}.",
            "Statistics",
            {"learned": run.get("learned") or {}} | by_size(run, "batch", "batch of {}"),
        )
        yield batch_table(
            f"study-mixed-{number}",
            f"Mixed batches: {name}",
            f"Half of a batch is shifted, or one image of it. {ROUNDS}.",
            "Shifted images",
            by_size(run, "half", "half, batch of {}") | by_size(run, "one", "one, batch of {}"),
        )
        yield batch_table(
            f"study-own-sets-{number}",
            f"Batches of one set: {name}",
            f"Batches of one set alone, as far as sets are large enough. {ROUNDS}; sets: how many there are.",
            "Batch of",
            by_size(run, "own sets", "{}"),
            groups=GROUPS[:2],
            count_sets=True,
        )


def by_size(run: Results, kind: str, label: str) -> dict[str, Results]:
    """The figures by batch size; sizes for which there were too few images are left out."""
    return {label.format(size): figures for size, figures in (run.get(kind) or {}).items() if figures}


def batch_table(
    name: str,
    title: str,
    caption: str,
    first: str,
    rows: dict[str, Results],
    *,
    groups: Sequence[str] = GROUPS,
    count_sets: bool = False,
) -> Table:
    """Columns in which nothing stands are left out."""
    columns: list[tuple[Heading, list[Cell]]] = []
    for group in groups:
        above, figures = group_label(group), [row.get(group) or {} for row in rows.values()]
        aurocs: list[Cell] = [(percentage(each.get("auroc"), interval=True),) for each in figures]
        columns.append((Heading("AUROC", above), aurocs))
        columns.append((Heading("rounds", above), [range_text(each.get("rounds") or ()) for each in figures]))
        if count_sets:
            sizes: list[Cell] = [(Number(len(each["sets"]), digits=0) if each else None,) for each in figures]
            columns.append((Heading("sets", above), sizes))
    filled = [(heading, cells) for heading, cells in columns if not all(map(is_empty, cells))]
    lines: list[Row] = [*zip(rows, *(cells for _, cells in filled), strict=True)]
    return Table(name, title, caption, (Heading(first), *(heading for heading, _ in filled)), tuple(lines))


def range_text(values: Sequence[float]) -> str:
    """Such as 95.8 to 96.6; a single round has no range."""
    return f"{100 * min(values):.1f} to {100 * max(values):.1f}" if len(values) > 1 else ""


def count_tables(results: Results) -> Iterator[Table]:
    """A table for each of the weights; numbers of patches are compared by the same score."""
    plan = results["plan"]
    for number, (name, run) in enumerate(get_section(results, "patch counts").items(), start=1):
        blocks: list[list[Row]] = [
            [
                (head_label(head), (Number(int(count), digits=0),), *auroc_cells(figures, head, GROUPS))
                for count, figures in run["counts"].items()
            ]
            for head in HEADS
        ]
        yield Table(
            f"study-counts-{number}",
            f"Patch counts: {name}",
            f"AUROC with its 95 % interval; at most {plan['count_images']} images of each set, corruptions at "
            f"severity {plan['one_severity']}. The best of each score is marked.",
            (Heading("Score"), Heading("Patches"), *group_headings(GROUPS)),
            tuple(chain.from_iterable(map(mark_best, blocks))),
        )


def seed_tables(results: Results) -> Iterator[Table]:
    """Every recipe by every score over seeds, the released weights, and the difference between the recipes."""
    rows: list[Row] = []
    for score in SCORES:
        for kind in RECIPES:
            found = [over_seeds(results, kind, group, score) for group in ALL_GROUPS]
            if any(found):
                cells = [spread_cell(each, better_in(group)) for group, each in zip(ALL_GROUPS, found, strict=True)]
                rows.append((f"{kind}, {score_label(score, results)}", seeds_cell(found), *cells))
    headings = (Heading("Seeds"), *group_headings(ALL_GROUPS))
    if rows:
        caption = "AUROC: mean and standard deviation over seeds, on the same test images."
        yield Table(
            "study-seeds", "Recipes over seeds", caption, (Heading("Recipe and score"), *headings), mark_best(rows)
        )
    if groups := get_part(results, "evaluation", RELEASED, "groups"):
        rows = [(score_label(score, results), *auroc_cells(groups, score, ALL_GROUPS)) for score in SCORES]
        caption = "Trained for longer than the others: AUROC with its 95 % interval."
        yield Table("study-released", "Released weights", caption, (Heading("Score"), *headings[1:]), mark_best(rows))
    rows = []
    for score in SCORES:
        found = [paired_difference(results, RECIPES[1], RECIPES[0], group, score) for group in ALL_GROUPS]
        if any(found):
            rows.append((score_label(score, results), seeds_cell(found), *map(difference_cell, found)))
    if rows:
        caption = "AUROC, seed by seed: mean difference and Student's 95 % interval of it."
        title = f"Recipes paired: {RECIPES[1]} minus {RECIPES[0]}"
        yield Table("study-paired", title, caption, (Heading("Score"), *headings), tuple(rows))


def seeds_cell(found: Sequence[SeedSummary | None]) -> Cell:
    """How many seeds a row rests on."""
    return (Number(max(each.seeds for each in found if each), digits=0),)


def spread_cell(found: SeedSummary | None, better: Better) -> Cell:
    """Such as 81.2 ± 0.6; one seed has no spread."""
    if found is None:
        return ""
    return (Number(100 * found.mean, spread=100 * found.std if found.seeds > 1 else None, better=better),)


def difference_cell(found: SeedSummary | None) -> Cell:
    """Such as +2.1 [+1.0, +3.2]; one seed has no interval."""
    if found is None:
        return ""
    ends = found.interval
    return (Number(100 * found.mean, (100 * ends[0], 100 * ends[1]) if ends else None, signed=True),)


def spectra_tables(results: Results) -> Iterator[Table]:
    """Power over that of real patches, by thirds of the frequencies."""
    rows: list[Row] = [
        (f"{name}, {kind}", *((Number(ratio, digits=2),) for ratio in band_ratios(run["curves"], kind)))
        for name, run in get_section(results, "spectra").items()
        for kind in ("reconstructed", "generated")
        if kind in run["curves"]
    ]
    if rows:
        headings = (Heading("Patches"), *(Heading(band, "Third of the frequencies") for band in BANDS))
        caption = "Power over that of real patches: 1 where they agree."
        yield Table("study-spectra", "Spectra by band", caption, headings, tuple(rows))


def band_ratios(curves: Results, kind: str) -> list[float]:
    """The geometric mean, over each band, of the power of that kind over that of real patches."""
    ratio = np.log(np.array(curves[kind]) + 1e-12) - np.log(np.array(curves["real"]) + 1e-12)
    return [float(np.exp(part.mean())) for part in np.array_split(ratio, len(BANDS))]


def run_tables(results: Results) -> Iterator[Table]:
    rows: list[Row] = [
        (
            name,
            *((Number(run[key], digits=0),) for key in ("steps", "patches", "patch size", "seconds")),
            run["passes"].replace("pictures", "images"),  # as earlier versions wrote it
            run["weights digest"],
        )
        for name, run in get_section(results, "runs").items()
    ]
    if rows:
        headings = ("Run", "Steps", "Patches", "Side (px)", "Seconds", "Passes", "Weights")
        caption = "How much every training of the studies saw, how long it took, and the digest of its weights."
        yield Table("study-runs", "Trainings of the studies", caption, tuple(map(Heading, headings)), tuple(rows))


def data_tables(results: Results) -> Iterator[Table]:
    """The images that the figures rest on; corrupted photos are the test photos once more."""
    corrupted = {corrupted_name(name, severity) for name in results["plan"]["corruptions"] for severity in range(6)}
    rows: list[Row] = [
        (set_label(name), (Number(data["images"], digits=0),), data["digest"])
        for name, data in get_section(results, "data").items()
        if name not in corrupted
    ]
    if rows:
        headings = (Heading("Set"), Heading("Images"), Heading("Digest"))
        caption = "A digest stands for all pixels that the networks get."
        yield Table("study-images", "Images of the studies", caption, headings, tuple(rows))
