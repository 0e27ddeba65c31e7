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
from discopatch.files import write_atomically

READING = """The best of each column is in bold, the second in italics. AUROC is the chance that a strange image scores
higher than a normal one; 50 is a guess. FPR95 is the share of normal images flagged when 95 % of the strange ones are.
Both are times 100. *Matched*: every image takes the same way to the network. *Paper*: the ways behind the published
figures, which differ between normal and other images. *Control*: normal images along the way of a set, against normal
images; far from 50, the row measures the way and not the images. Intervals are 95 %, over test images."""


def all_tables(report: Report) -> list[Table]:
    """Those that can be made from it, the most important first."""
    return [
        *main_tables(report),
        *means_tables(report),
        *route_tables(report),
        *seeds_tables(report),
        *metrics_tables(report),
        *patch_tables(report),
        cost_table(report),
        sources_table(report),
        *corruption_tables(report),
    ]


def write_tables(folder: Path, report: Report) -> list[Path]:
    """results.csv, tables.md and tables.tex."""
    tables = all_tables(report)
    title = f"Benchmark on {report['suite']} images"
    texts = {
        "results.csv": csv.render(report),
        "tables.md": markdown.document(title, f"{made(report)}\n\n{READING}", tables),
        "tables.tex": latex.document(title, tables),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


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
