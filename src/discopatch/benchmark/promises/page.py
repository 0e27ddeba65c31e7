"""docs/promises.md, written from the stored figures alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from discopatch.benchmark.promises import words
from discopatch.benchmark.promises.cells import FIT_SIZE_RATE
from discopatch.weights import RELEASED, card

Report = Mapping[str, Any]

HEADS = ("combined", "statistics", "logit")
SUITES = {"solar": "solar cells", "natural": "photos"}
STORED = ("as they come", "trained on", "other images, as they come")


def render(report: Report) -> str:
    """The whole page; sections that were not measured are left out."""
    sections: dict[str, Callable[[Report, Report], list[str]]] = {
        "false alarms": false_alarms,
        "fit size": fit_size,
        "storage": storage,
    }
    parts = [words.INTRO]
    for name, section in sections.items():
        if name in report:
            parts += section(report[name], report)
    parts += ["## What the figures do not say", words.LIMITS, *made(report)]
    return "\n\n".join(parts) + "\n"


def false_alarms(found: Report, report: Report) -> list[str]:
    """Promised and found, a row for each suite, head and rate."""
    rows = [
        [SUITES[suite], head, *alarms(promise)]
        for suite, heads in found.items()
        for head in HEADS
        for promise in heads[head].values()
    ]
    headings = ["images", "score", "promised", "found", "99 % range", "binomial alone", "each split", "within"]
    return ["## False alarms", words.FALSE_ALARMS.format(splits=report["plan"]["splits"]), table(headings, rows)]


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


def fit_size(found: Report, report: Report) -> list[str]:
    """Mean AUROC by the number of images given."""
    rows = [
        [size, str(each["fitted"]), *(figure(each[head]) for head in HEADS)] for size, each in found["sizes"].items()
    ]
    text = words.FIT_SIZE.format(rate=f"{100 * FIT_SIZE_RATE:.0f} %", **found)
    return ["## How many images it takes", text, table(["images", "of these fitted", *HEADS], rows)]


def storage(found: Report, report: Report) -> list[str]:
    """What the storage of the photos to fit on does alone."""
    text = words.STORAGE.format(stored=f"JPEG of quality {found['stored']}", size=report["made"]["transform"]["size"])
    rows = [[head, *(figure(found[view][head]) for view in STORED)] for head in HEADS]
    return ["## What storage alone does", text, table(["score", *STORED], rows)]


def made(report: Report) -> list[str]:
    """On what, from what, with what."""
    corrupted = [name for name, each in report["data"].items() if any("corrupt" in step for step in each["way"])]
    rows = [
        [name, f"{each['images']:,}", f"`{each['digest']}`"]
        for name, each in report["data"].items()
        if name not in corrupted
    ]
    by = report["made"]
    text = words.MADE.format(
        **{**by, "weights": name_of(by["weights digest"]), "seed": by["seeds"][0], "corruptions": len(corrupted)}
    )
    return ["## How it was made", text, table(["set", "images", "digest"], rows)]


def name_of(digest: str) -> str:
    """Of released weights."""
    released = {card(name)["weights_digest"]: name for name in RELEASED}
    return released.get(digest, "not released")


def table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    first = list(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in [first, ["---"] * len(first), *rows])


def figure(found: Sequence[float]) -> str:
    """0.962 [0.955, 0.969]."""
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def span(shares: Sequence[float]) -> str:
    """0.6 to 1.5 %."""
    return f"{100 * shares[0]:.1f} to {100 * shares[1]:.1f} %"
