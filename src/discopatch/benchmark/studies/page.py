"""docs/studies.md, written from the stored figures alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from discopatch.benchmark.studies import words
from discopatch.benchmark.studies.gallery import FAR, NEAR, TEST
from discopatch.benchmark.studies.seeds import Spread, by_seed, paired

Report = Mapping[str, Any]

GROUPS = ("near", "far", "covariate")
ALL = (*GROUPS, "control")
SCORES = ("patches", "logit", "statistics", "combined")
LAYERS = {"group-0": "GroupNorm", "instance-0": "InstanceNorm", "paper-0": "BatchNorm over patches"}
BANDS = ("low", "middle", "high")


def render(report: Report) -> str:
    """The whole page; studies that were not made are left out."""
    sections: Iterable[tuple[str, str, Callable[[Report], list[str]]]] = (
        ("evaluation", "Normalisation layers", normalisation),
        ("batch normalisation", "Batch statistics", batch_statistics),
        ("patch counts", "Patch counts", patch_counts),
        ("evaluation", "Seeds and recipes", seeds),
        ("spectra", "Spectra", spectra),
        ("runs", "The trainings", runs),
    )
    parts = [intro(report)]
    for needed, title, section in sections:
        if report.get(needed):
            parts += [f"## {title}", *section(report)]
    return "\n\n".join([*parts, *made(report)]) + "\n"


def intro(report: Report) -> str:
    """What is measured, and how."""
    plan = report["plan"]
    patches = plan["images"] * plan["patches"]
    steps = -(-plan["patches_in_all"] // patches)
    return words.INTRO.format(
        **{key: plan[key] for key in ("images", "learning_rate")},
        patches=steps * patches,
        steps=steps,
        near=", ".join(NEAR),
        far=", ".join(FAR),
        corruptions=len(plan["corruptions"]),
    )


def normalisation(report: Report) -> list[str]:
    """A row for each layer, a table for each score."""
    found = {title: report["evaluation"][name] for name, title in LAYERS.items() if name in report["evaluation"]}
    parts = [words.NORMALISATION.format(severities=listed(report["plan"]["severities"]))]
    for score in SCORES:
        rows = [[title, *(figure(each["groups"][group][score]) for group in ALL)] for title, each in found.items()]
        parts += [f"{score_name(score, report)}:", table(["normalisation", *ALL], rows)]
    return parts


def batch_statistics(report: Report) -> list[str]:
    """Learned, by batch size, mixed, and by sets alone."""
    (found,) = report["batch normalisation"].values()
    images = listed(f"{name}: {found['images'][name]:,}" for name in ("near", "far"))
    text = words.BIAS.format(
        images=images, severity=found["severity"], rounds=found["rounds"], test=report["data"][TEST]["images"]
    )
    rows = [["learned", *(bias_figure(found["learned"].get(group)) for group in GROUPS)]]
    rows += [
        [f"batch of {size}", *(bias_figure(each.get(group)) for group in GROUPS)]
        for size, each in sized(found, "batch")
    ]
    parts = [text, table(["statistics", *GROUPS], rows), words.MIXED.format(lone=found["alone among normal"])]
    rows = [
        [f"{title}, batch of {size}", *(bias_figure(each.get(group)) for group in GROUPS)]
        for what, title in (("half", "half"), ("one", "one"))
        for size, each in sized(found, what)
    ]
    parts += [table(["strange images", *GROUPS], rows), words.OWN_SETS]
    rows = [
        [size, *(bias_figure(each.get(group), sets=True) for group in ("near", "far"))]
        for size, each in sized(found, "own sets")
    ]
    return [*parts, table(["batch of", "near", "far"], rows)]


def sized(found: Report, what: str) -> list[tuple[str, Report]]:
    """By batch size; those for which there were too few images are left out."""
    return [(size, each) for size, each in found[what].items() if each]


def bias_figure(found: Report | None, *, sets: bool = False) -> str:
    """0.962 [0.955, 0.969], 0.958 to 0.966."""
    if found is None:
        return ""
    said = figure(found["auroc"])
    if len(found["rounds"]) > 1:
        said += f", {min(found['rounds']):.3f} to {max(found['rounds']):.3f}"
    return f"{said} ({len(found['sets'])})" if sets else said


def patch_counts(report: Report) -> list[str]:
    """A table for each of the weights."""
    plan = report["plan"]
    parts = [words.COUNTS.format(most=plan["count_pictures"], severity=plan["one_severity"])]
    for name, found in report["patch counts"].items():
        rows = [
            [score, count, *(figure(groups[group][score]) for group in GROUPS)]
            for score in ("logit", "statistics", "combined")
            for count, groups in found["counts"].items()
        ]
        parts += [f"{name}:", table(["score", "patches", *GROUPS], rows)]
    return parts


def seeds(report: Report) -> list[str]:
    """Every recipe by every score, then the difference between the two."""
    evaluation = report["evaluation"]

    def row(kind: str, score: str) -> list[str]:
        values = [list(by_seed(evaluation, kind, group, score).values()) for group in ALL]
        return [kind, score_name(score, report), *(spread(each) for each in values)]

    kinds = [kind for kind in ("paper", "natural") if by_seed(evaluation, kind, "near", "logit")]
    text = words.SEEDS.format(patches=report["plan"]["scored_patches"], fit=report["plan"]["fit"])
    parts = [text, table(["recipe", "score", *ALL], [row(kind, score) for score in SCORES for kind in kinds])]
    if "released" in evaluation:
        groups = evaluation["released"]["groups"]
        rows = [[score_name(score, report), *(figure(groups[group][score]) for group in ALL)] for score in SCORES]
        parts += ["The released weights, trained for longer, beside them:", table(["score", *ALL], rows)]
    rows = [[score_name(score, report), *(difference(evaluation, group, score) for group in ALL)] for score in SCORES]
    return [*parts, words.PAIRED, table(["score", *ALL], rows)] if len(kinds) == 2 else parts


def spread(values: Sequence[float]) -> str:
    """0.812 ± 0.006 (5)."""
    found = Spread.of(values)
    return f"{found.mean:.3f} ± {found.deviation:.3f} ({found.seeds})"


def difference(evaluation: Report, group: str, score: str) -> str:
    """+0.021 [+0.010, +0.032]."""
    first, second = (by_seed(evaluation, kind, group, score) for kind in ("natural", "paper"))
    values = paired(first, second)
    if not values:
        return ""
    found = Spread.of(values)
    low, high = found.interval
    return f"{found.mean:+.3f}" + (f" [{low:+.3f}, {high:+.3f}]" if found.seeds > 1 else "")


def spectra(report: Report) -> list[str]:
    """Power over that of real patches, by thirds of the frequencies."""
    rows = [
        [name, kind, *(f"{ratio:.2f}" for ratio in bands(found["curves"], kind))]
        for name, found in report["spectra"].items()
        for kind in ("reconstructed", "generated")
    ]
    return [words.SPECTRA, table(["run", "patches", *BANDS], rows)]


def bands(found: Report, kind: str) -> list[float]:
    """The geometric mean of the ratio in each band."""
    ratio = np.log(np.array(found[kind]) + 1e-12) - np.log(np.array(found["real"]) + 1e-12)
    return [float(np.exp(part.mean())) for part in np.array_split(ratio, len(BANDS))]


def runs(report: Report) -> list[str]:
    """One row each."""
    rows = [
        [
            name,
            f"{each['steps']:,}",
            f"{each['patches']:,} of {each['patch size']} px",
            f"{each['seconds']:,.0f}",
            each["passes"],
            f"`{each['weights digest']}`",
        ]
        for name, each in report["runs"].items()
    ]
    return [words.RUNS, table(["run", "steps", "patches", "seconds", "passes", "weights"], rows)]


def made(report: Report) -> list[str]:
    """On what, from what, with what."""
    plan = report["plan"]
    text = words.MADE.format(**report["made"], precision=plan["precision"], seed=plan["seed"])
    corrupted = {f"{name} {severity}" for name in plan["corruptions"] for severity in range(6)}
    rows = [
        [name, f"{each['images']:,}", f"`{each['digest']}`"]
        for name, each in report.get("data", {}).items()
        if name not in corrupted
    ]
    return ["## How it was made", text, table(["set", "images", "digest"], rows)]


def score_name(score: str, report: Report) -> str:
    """As tables call it."""
    names = {"patches": f"mean logit of {report['plan']['scored_patches']} patches", "logit": "mean logit, dense"}
    return names.get(score, score)


def table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    first = list(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in [first, ["---"] * len(first), *rows])


def figure(found: Sequence[float]) -> str:
    """0.962 [0.955, 0.969]."""
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def listed(values: Iterable[object]) -> str:
    """1, 3, 5."""
    return ", ".join(map(str, values))
