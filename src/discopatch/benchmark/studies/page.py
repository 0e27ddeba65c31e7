"""docs/studies.md, written from the stored figures alone."""

from collections.abc import Callable, Iterable, Mapping

from discopatch.benchmark.studies import words
from discopatch.benchmark.studies.gallery import FAR, NEAR, TEST
from discopatch.benchmark.studies.jobs import LAYERS, SEEDED
from discopatch.benchmark.studies.tables import tables_by_section
from discopatch.benchmark.tables import markdown
from discopatch.benchmark.tables.find import Report, look

SECTIONS = ("Normalisation layers", "Batch statistics", "Patch counts", "Seeds and recipes", "Spectra")
PICTURES = {
    "Normalisation layers": "normalisation",
    "Batch statistics": "batchnorm",
    "Patch counts": "patchcounts",
    "Spectra": "spectra",
    "The trainings": "losses",
}


def render(report: Report, pictures: Mapping[str, str] | None = None) -> str:
    """The whole page; studies that were not made are left out. `pictures`: where those lie, by the figure's name."""
    said: dict[str, Callable[[Report], str]] = {
        "Normalisation layers": normalisation,
        "Batch statistics": batch_statistics,
        "Patch counts": patch_counts,
        "Seeds and recipes": seeds,
        "Spectra": lambda _: words.SPECTRA,
        "The trainings": lambda _: words.RUNS,
        "How it was made": made,
    }
    parts = [words.INTRO.format(**sizes(report)), *unfinished(report)]
    for title, tables in tables_by_section(report).items():
        if tables or title == "How it was made":
            parts += [f"## {title}", said[title](report), *shown(title, pictures or {})]
            parts += [f"#{markdown.render(table)}" for table in tables]
    return "\n\n".join(parts) + "\n"


def unfinished(report: Report) -> list[str]:
    """What the plan asks for and the file does not hold."""
    seeds = range(report["plan"]["seeds"])
    wanted = [f"{kind}-{seed}" for kind in LAYERS for seed in (seeds if kind in SEEDED else (0,))]
    trained = report.get("runs", {})
    missing = [name for name in wanted if name not in trained]
    missing += [title for title, tables in tables_by_section(report).items() if not tables and title in SECTIONS]
    return [words.UNFINISHED.format(missing=listed(missing))] if missing else []


def shown(title: str, pictures: Mapping[str, str]) -> list[str]:
    """The pictures of a section, each with what it is of: spectra-paper-0 -> Spectra, paper-0."""
    start = PICTURES.get(title)
    found = []
    for name, place in pictures.items():
        kind, _, of = name.partition("-")
        if kind == start:
            found.append(f"![{', '.join(filter(None, (title, of)))}]({place})")
    return found


def beside(report: Report) -> str:
    """What the reader of a benchmark's tables must know of those of the studies."""
    return words.BESIDE.format(**sizes(report), made=made(report))


def sizes(report: Report) -> dict[str, object]:
    """How much is trained and tested."""
    plan = report["plan"]
    patches = plan["images"] * plan["patches"]
    steps = -(-plan["patches_in_all"] // patches)
    return {
        **{key: plan[key] for key in ("images", "learning_rate")},
        "patches": steps * patches,
        "steps": steps,
        "near": ", ".join(NEAR),
        "far": ", ".join(FAR),
        "corruptions": len(plan["corruptions"]),
    }


def normalisation(report: Report) -> str:
    """Of the layers."""
    return words.NORMALISATION.format(severities=listed(report["plan"]["severities"]))


def batch_statistics(report: Report) -> str:
    """Of all ways to put images into batches."""
    found = next(iter(report["batch normalisation"].values()))
    images = listed(f"{name}: {found['images'][name]:,}" for name in ("near", "far") if name in found["images"])
    return words.BIAS.format(
        images=images,
        severity=found["severity"],
        rounds=found["rounds"],
        test=look(report, "data", TEST, "images") or "few",
        lone=found["alone among normal"],
    )


def patch_counts(report: Report) -> str:
    """Of how many patches are looked at."""
    return words.COUNTS.format(most=report["plan"]["count_pictures"], severity=report["plan"]["one_severity"])


def seeds(report: Report) -> str:
    """Of recipes and chance."""
    return words.SEEDS.format(patches=report["plan"]["scored_patches"], fit=report["plan"]["fit"])


def made(report: Report) -> str:
    """On what, with what."""
    plan = report["plan"]
    return words.MADE.format(**report["made"], precision=plan["precision"], seed=plan["seed"])


def listed(values: Iterable[object]) -> str:
    """1, 3, 5."""
    return ", ".join(map(str, values))
