"""All tables of a report, and the files that hold them."""

from pathlib import Path

from discopatch.benchmark.tables import csv, latex, markdown
from discopatch.benchmark.tables.comparison import main_tables
from discopatch.benchmark.tables.corrupted import corruption_tables
from discopatch.benchmark.tables.cost import cost_table, patch_tables
from discopatch.benchmark.tables.find import Report, protocols
from discopatch.benchmark.tables.means import means_tables, metrics_tables, route_tables, seeds_tables
from discopatch.benchmark.tables.sources import sources_table
from discopatch.benchmark.tables.table import Table
from discopatch.files import write_atomically, write_json

READING = """The best of each column is in bold, the second in italics. AUROC is the chance that a strange image scores
higher than a normal one; 50 is a guess. FPR95 is the share of normal images flagged when 95 % of the strange ones are.
Both are times 100. *Matched*: every image takes the same way to the network. *Paper*: the ways behind the published
figures, which differ between normal and other images. *Control*: normal images along the way of a set, against normal
images; far from 50, the row measures the way and not the images. Intervals are 95 %, over test images."""
STUDIES = "studies.json"


def all_tables(report: Report, studies: Report | None = None) -> list[Table]:
    """Those that can be made from it, the most important first; those of the studies where they are given."""
    return [
        *main_tables(report),
        *means_tables(report),
        *route_tables(report),
        *seeds_tables(report),
        *metrics_tables(report),
        *patch_tables(report),
        cost_table(report),
        *(study_tables(studies) if studies else ()),
        sources_table(report),
        *corruption_tables(report),
    ]


def write_tables(folder: Path, report: Report, studies: Report | None = None) -> list[Path]:
    """results.csv, tables.md and tables.tex; with studies also studies.json, so that all figures lie together."""
    tables = all_tables(report, studies)
    title = f"Benchmark on {report['suite']} images"
    intro, more = [made(report), READING], list[csv.Line]()
    if studies:
        from discopatch.benchmark.studies.lines import study_lines
        from discopatch.benchmark.studies.page import beside

        intro.append(beside(studies))
        more += study_lines(studies)
        write_json(folder / STUDIES, studies)
    texts = {
        "results.csv": csv.render(report, more),
        "tables.md": markdown.document(title, "\n\n".join(intro), tables),
        "tables.tex": latex.document(title, tables),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in (*texts, *([STUDIES] if studies else []))]


def study_tables(studies: Report) -> list[Table]:
    """Imported here, as they are made of the parts beside this file."""
    from discopatch.benchmark.studies.tables import studies_tables

    return studies_tables(studies)


def write_text(path: Path, text: str) -> None:
    """In UTF-8, atomically."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def made(report: Report) -> str:
    """Where the figures come from."""
    made, sizes = report["made"], report["sizes"]
    seeds = ", ".join(map(str, made["seeds"]))
    said = [f"discopatch {made['discopatch']}, weights `{made['weights digest']}`, {made['device']}"]
    said.append(f"fitted on {sizes['fit']:,} images, tested on {sizes['test']:,}")
    said.append(f"protocols {', '.join(protocols(report))}")
    said.append(f"seeds {seeds}")
    return "; ".join(said) + "."
