"""The tables of the studies: for their own page, and beside those of a benchmark run."""

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from discopatch.benchmark.studies.batchtables import batch_tables
from discopatch.benchmark.studies.cells import auroc_cells
from discopatch.benchmark.studies.gallery import cell_name
from discopatch.benchmark.studies.names import ALL, GROUPS, HEADS, LAYERS, SCORES, head_name, score_name
from discopatch.benchmark.studies.seedtables import seed_tables
from discopatch.benchmark.tables.find import Report, look
from discopatch.benchmark.tables.labels import group_label, set_label
from discopatch.benchmark.tables.table import Heading, Number, Row, Table, ranked

BANDS = ("low", "middle", "high")
MADE = ("reconstructed", "generated")


def tables_by_section(report: Report) -> dict[str, list[Table]]:
    """In the order of the page; a study that was not made has none."""
    makers: dict[str, Callable[[Report], Iterator[Table]]] = {
        "Normalisation layers": normalisation_tables,
        "Batch statistics": batch_tables,
        "Patch counts": count_tables,
        "Seeds and recipes": seed_tables,
        "Spectra": spectra_tables,
        "The trainings": run_tables,
        "How it was made": data_tables,
    }
    return {title: [*make(report)] for title, make in makers.items()}


def studies_tables(report: Report) -> list[Table]:
    """All of them."""
    return [*chain.from_iterable(tables_by_section(report).values())]


def normalisation_tables(report: Report) -> Iterator[Table]:
    """A row for each layer, a table for each score."""
    found = {title: each for name, title in LAYERS.items() if (each := look(report, "evaluation", name))}
    headings = (Heading("Normalisation"), *(Heading(group_label(group)) for group in ALL))
    for score in SCORES if found else ():
        rows = [(title, *auroc_cells(each["groups"], score, ALL)) for title, each in found.items()]
        name = score_name(score, report)
        caption = (
            "The paper's recipe with other normalisation layers, seed 0: AUROC with its 95 % interval; corruptions at "
            f"severity {', '.join(map(str, report['plan']['severities']))}."
        )
        yield Table(f"study-layers-{score}", f"Normalisation layers: {name}", caption, headings, ranked(rows))


def count_tables(report: Report) -> Iterator[Table]:
    """A table for each of the weights; numbers of patches are compared by the same score."""
    plan = report["plan"]
    headings = (Heading("Score"), Heading("Patches"), *(Heading(group_label(group)) for group in GROUPS))
    for number, (name, found) in enumerate((report.get("patch counts") or {}).items(), start=1):
        blocks = [
            [
                (head_name(head), (Number(int(count), digits=0),), *auroc_cells(groups, head, GROUPS))
                for count, groups in found["counts"].items()
            ]
            for head in HEADS
        ]
        rows = tuple(chain.from_iterable(map(ranked, blocks)))
        caption = (
            f"AUROC with its 95 % interval; at most {plan['count_pictures']} images of each set, corruptions at "
            f"severity {plan['one_severity']}. The best of each score is marked."
        )
        yield Table(f"study-counts-{number}", f"Patch counts: {name}", caption, headings, rows)


def spectra_tables(report: Report) -> Iterator[Table]:
    """Power over that of real patches, by thirds of the frequencies."""
    rows: list[Row] = [
        (f"{name}, {kind}", *((Number(ratio, digits=2),) for ratio in bands(found["curves"], kind)))
        for name, found in (report.get("spectra") or {}).items()
        for kind in MADE
        if kind in found["curves"]
    ]
    headings = (Heading("Patches"), *(Heading(band, "Third of the frequencies") for band in BANDS))
    caption = "Power over that of real patches: 1 where they agree."
    if rows:
        yield Table("study-spectra", "Spectra by band", caption, headings, tuple(rows))


def bands(found: Report, kind: str) -> list[float]:
    """The geometric mean of the ratio in each band."""
    ratio = np.log(np.array(found[kind]) + 1e-12) - np.log(np.array(found["real"]) + 1e-12)
    return [float(np.exp(part.mean())) for part in np.array_split(ratio, len(BANDS))]


def run_tables(report: Report) -> Iterator[Table]:
    """One row each."""
    rows: list[Row] = [
        (
            name,
            *((Number(each[key], digits=0),) for key in ("steps", "patches", "patch size", "seconds")),
            each["passes"],
            each["weights digest"],
        )
        for name, each in (report.get("runs") or {}).items()
    ]
    words = ("Run", "Steps", "Patches", "Side (px)", "Seconds", "Passes", "Weights")
    caption = "What every training of the studies saw, how long it took, and the digest of its weights."
    if rows:
        yield Table("study-runs", "Trainings of the studies", caption, tuple(map(Heading, words)), tuple(rows))


def data_tables(report: Report) -> Iterator[Table]:
    """Which images the figures rest on; corrupted photos are the test photos once more."""
    corrupted = {cell_name(name, severity) for name in report["plan"]["corruptions"] for severity in range(6)}
    rows: list[Row] = [
        (set_label(name), (Number(each["images"], digits=0),), each["digest"])
        for name, each in (report.get("data") or {}).items()
        if name not in corrupted
    ]
    headings = (Heading("Set"), Heading("Images"), Heading("Digest"))
    caption = "A digest stands for all pixels as the networks see them."
    if rows:
        yield Table("study-images", "Images of the studies", caption, headings, tuple(rows))
