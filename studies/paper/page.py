"""docs/studies.md: the template page.md, filled with the stored results."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from common import render_page, write_text
from discopatch.bench.tables.writers import latex_page, to_markdown
from paper.dataset import FAR, NEAR, TEST
from paper.plan import KINDS, SEEDED
from paper.results import Results, get_part, get_section
from paper.tables import tables_by_section

# The figures of each section: their names begin so.
FIGURES = {
    "Normalisation layers": "normalisation",
    "Batch statistics": "batchnorm",
    "Patch counts": "patchcounts",
    "Spectra": "spectra",
    "The trainings": "losses",
}


def studies_page(results: Results, figures: Mapping[str, str] | None = None) -> str:
    """The whole page; studies that were not run are left out. `figures`: the paths of the figures by their names."""
    plan, tables = results["plan"], tables_by_section(results)
    patches = plan["images"] * plan["patches"]
    steps = -(-plan["patches_in_all"] // patches)
    sections = {
        title: "\n\n".join([*figure_links(title, figures or {}), *(to_markdown(table, level=3) for table in own)])
        for title, own in tables.items()
    }
    return render_page(
        Path(__file__).with_name("page.md"),
        plan=plan,
        made=results["made"],
        steps=steps,
        patches_seen=steps * patches,
        near=", ".join(NEAR),
        far=", ".join(FAR),
        missing=[*missing_runs(results), *(title for title in [*tables][:5] if not tables[title])],
        batches=next(iter(get_section(results, "batch normalisation").values()), None),
        test_photos=get_part(results, "data", TEST, "images") or "few",
        sections=sections,
    )


def write_latex(results: Results, path: Path) -> None:
    """The tables of the page for print."""
    write_text(path, latex_page("Studies", chain.from_iterable(tables_by_section(results).values())))


def missing_runs(results: Results) -> list[str]:
    """The trainings that the plan asks for and the results do not hold."""
    seeds = range(results["plan"]["seeds"])
    wanted = [f"{kind}-{seed}" for kind in KINDS for seed in (seeds if kind in SEEDED else (0,))]
    return [name for name in wanted if name not in get_section(results, "runs")]


def figure_links(title: str, figures: Mapping[str, str]) -> list[str]:
    """The figures of a section, each with the run that it shows: spectra-paper-0 -> Spectra, paper-0."""
    links = []
    for name, path in figures.items():
        kind, _, run = name.partition("-")
        if kind == FIGURES.get(title):
            links.append(f"![{', '.join(filter(None, (title, run)))}]({path})")
    return links
