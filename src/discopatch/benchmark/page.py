"""docs/results.md, written from the stored figures alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from discopatch.benchmark import words
from discopatch.weights import RELEASED, card

Report = Mapping[str, Any]

HEADS = {
    "combined": "combined",
    "statistics": "statistics",
    "logit": "logit",
    "paper": "logit of 64 random patches",
}
SUITES = {"solar": "Solar cells", "natural": "Photos"}


def render(report: Report) -> str:
    """The whole page; sections that were not measured are left out."""
    parts = [words.INTRO, *glance(report)]
    for suite, title in SUITES.items():
        if suite in report:
            parts += corruptions(title, report[suite], report["plan"])
    sections: dict[str, Callable[[Report], list[str]]] = {
        "out of distribution": other_images,
        "storage": lambda found: storage(found, report),
        "false alarms": lambda found: false_alarms(found, report["plan"]),
        "fit size": lambda found: fit_size(found["solar"]),
    }
    for name, section in sections.items():
        if name in report:
            parts += section(report[name])
    parts += ["## What the figures do not say", words.LIMITS, *made(report)]
    return "\n\n".join(parts) + "\n"


def glance(report: Report) -> list[str]:
    """The means, a row for each head."""
    columns: dict[str, Report] = {}
    for suite, title in SUITES.items():
        if suite in report:
            for what, means in (("all severities", "means"), ("as far as the last has them", "common means")):
                found = report[suite][means]
                columns[f"{title}, {what}"] = {head: groups.get("all 19") for head, groups in found.items()}
    if "out of distribution" in report:
        means = report["out of distribution"]["means"]
        columns |= {"Other images than photos": means["auroc"], "the same, route-matched": means["matched"]}
    rows = [[name, *(figure(found.get(head)) for found in columns.values())] for head, name in HEADS.items()]
    return ["## At a glance", table(["score", *columns], rows), words.GLANCE]


def corruptions(title: str, found: Report, plan: Report) -> list[str]:
    """Means of groups by head, then every cell of the combined head."""
    severities = list(found["severity means"]["combined"])
    common = ", ".join(map(str, found["common severities"]))
    count = len(found["cells"]["combined"])
    return [
        f"## {title}, corrupted",
        words.CORRUPTED.format(**found["images"], corruptions=count, halvings=plan["halvings"]),
        f"Mean over the severities {', '.join(severities)}:",
        groups(found["means"], found["severity 0"]),
        f"Mean over the severities {common}, with the paper's own way:",
        groups(found["common means"], found["severity 0"]),
        "Each corruption by its severity, combined score:",
        cells(found, severities),
    ]


def groups(means: Mapping[str, Report], control: Report) -> str:
    """A row for each group, a column for each head; the control comes last."""
    heads = [head for head in HEADS if head in means]
    rows = [[name, *(figure(means[head][name]) for head in heads)] for name in means[heads[0]]]
    rows.append(["*severity 0, the control*", *(figure(control.get(head)) for head in heads)])
    return table(["mean over", *(HEADS[head] for head in heads)], rows)


def cells(found: Report, severities: Sequence[str]) -> str:
    """A row for each corruption, a column for each severity."""
    rows = [
        [name.replace("_", " "), *(figure(levels.get(severity)) for severity in severities)]
        for name, levels in found["cells"]["combined"].items()
    ]
    rows.append(["**mean**", *(figure(found["severity means"]["combined"][severity]) for severity in severities)])
    return table(["corruption", *severities], rows)


def other_images(found: Report) -> list[str]:
    """The combined head in detail, then all heads."""
    columns = {"auroc": "AUROC", "control": "control", "matched": "route-matched"}
    rows = [
        [name, str(each["images"]), route(each["route"]), *(figure(each[view]["combined"]) for view in columns)]
        for name, each in found["sets"].items()
    ]
    rows.append(["**mean**", "", "", *(figure(found["means"][view]["combined"]) for view in columns)])
    parts = ["## Other images than photos", words.OTHER_IMAGES, "Combined score:"]
    parts.append(table(["set", "images", "route", *columns.values()], rows))
    for view, title in columns.items():
        parts += [f"All scores, {title}:", by_head(found, view)]
    return parts


def by_head(found: Report, view: str) -> str:
    """A row for each set, a column for each head."""
    rows = [[name, *(figure(each[view].get(head)) for head in HEADS)] for name, each in found["sets"].items()]
    rows.append(["**mean**", *(figure(found["means"][view].get(head)) for head in HEADS)])
    return table(["set", *HEADS.values()], rows)


def route(found: Report) -> str:
    """Such as 200, 416 px, JPEG 75."""
    said = [", ".join(map(str, found["sizes"])) + " px" if found["sizes"] else "own size"]
    if qualities := found["jpeg qualities"]:
        said.append(f"JPEG {qualities[0]}" + (f" to {qualities[-1]}" if len(qualities) > 1 else ""))
    if found["without loss"]:
        said.append("PNG")
    return ", ".join(said)


def storage(found: Report, report: Report) -> list[str]:
    """What the storage of the photos to fit on does alone."""
    quality = report["plan"]["natural_storage"]["quality"]
    stored = "here: as they come, nothing is stored once more" if quality is None else f"JPEG of quality {quality}"
    bare = report.get("out of distribution", {}).get("means", {}).get("as they come", {})
    rows = [
        [name, figure(found["as they come"].get(head)), figure(found["calibration"].get(head)), figure(bare.get(head))]
        for head, name in HEADS.items()
    ]
    headings = ["score", "as they come", "trained on", "other images, as they come"]
    return ["## What storage alone does", words.STORAGE.format(stored=stored), table(headings, rows)]


def false_alarms(found: Report, plan: Report) -> list[str]:
    """Promised and found, a row for each suite, head and rate."""
    rows = [
        [SUITES[suite], HEADS[head], *alarms(promise)]
        for suite, heads in found.items()
        for head in HEADS
        for promise in heads.get(head, {}).values()
    ]
    headings = ["images", "score", "promised", "found", "99 % range", "binomial alone", "each split", "within"]
    return ["## False alarms", words.FALSE_ALARMS.format(splits=plan["splits"]), table(headings, rows)]


def alarms(found: Report) -> list[str]:
    """One promise."""
    return [
        f"{100 * found['promised']:.0f} %",
        f"**{100 * found['pooled']:.2f} %**",
        span(found["pooled_conformal"]),
        span(found["pooled_binomial"]),
        " ".join(f"{100 * rate:.1f}" for rate in found["rates"]),
        f"{found['splits_within']} of {len(found['rates'])} in {span(found['conformal'])}",
    ]


def fit_size(found: Report) -> list[str]:
    """Mean AUROC by the number of images given."""
    sizes = found["sizes"]
    heads = [head for head in HEADS if sizes and all(head in each for each in sizes.values())]
    rows = [[size, str(each["fitted"]), *(figure(each[head]) for head in heads)] for size, each in sizes.items()]
    text = words.FIT_SIZE.format(severity=found["severity"], test=found["test"])
    headings = ["images", "of these fitted", *(HEADS[head] for head in heads)]
    return ["## How many images it takes", text, table(headings, rows)]


def made(report: Report) -> list[str]:
    """On what, from what, with what."""
    rows = [[name, f"{each['images']:,}", f"`{each['digest']}`"] for name, each in report["data"].items()]
    text = words.MADE.format(**{**report["made"], "weights": name_of_weights(report["made"])})
    return ["## How it was made", text, table(["set", "images", "digest"], rows)]


def name_of_weights(made: Report) -> str:
    """The released name, where the digest is that of released weights, from whatever file they were read."""
    released = {card(name)["weights_digest"]: name for name in RELEASED}
    return released.get(made["weights digest"], str(made["weights"]))


def table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    first = list(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in [first, ["---"] * len(first), *rows])


def figure(found: Sequence[float] | None) -> str:
    """0.962 [0.955, 0.969]."""
    return "" if found is None else f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def span(shares: Sequence[float]) -> str:
    """0.6 to 1.5 %."""
    return f"{100 * shares[0]:.1f} to {100 * shares[1]:.1f} %"
