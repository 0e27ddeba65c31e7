"""The figures on the card of released weights, from the reports of the benchmark and of the promises."""

from collections.abc import Mapping
from itertools import chain
from statistics import mean
from typing import Any

from discopatch.benchmark.methods import OURS, REFERENCE
from discopatch.defects import RESEMBLED

Report = Mapping[str, Any]

PROTOCOL = "matched"
HEADS = ("combined", "statistics", "logit")
LIKE_A_DEFECT = frozenset(chain.from_iterable(RESEMBLED.values()))  # of the training


def check_digests(digest: str, reports: Mapping[str, Report]) -> None:
    """Refuses figures that belong to other weights."""
    for name, report in reports.items():
        if (other := report["made"]["weights digest"]) != digest:
            raise ValueError(f"{name} was made with other weights ({other}, not {digest}): measure again")


def card_figures(solar: Report, natural: Report, promises: Report) -> dict[str, Any]:
    """AUROC as [mean, low end, high end] of the 95 % interval; false alarms as shares."""
    sets = {
        name: each["methods"][REFERENCE]
        for name, each in natural["protocols"][PROTOCOL]["sets"].items()
        if REFERENCE in each["methods"]
    }
    return {
        "made_by": "discopatch bench --suite natural, --suite solar; python benchmarks/promises.py measure",
        "solar, 19 corruptions x 5 severities": corrupted(solar),
        "natural, 19 corruptions x 5 severities": corrupted(natural),
        "natural, corruptions unlike any training defect, mean alone": unlike_a_defect(natural),
        "other sets, combined": {name: each["auroc"] for name, each in sets.items()},
        "other sets, route control, combined": {name: each["control"] for name, each in sets.items()},
        "false alarms, combined": {
            suite: {rate: each["pooled"] for rate, each in heads["combined"].items()}
            for suite, heads in promises["false alarms"].items()
        },
    }


def small_figures(solar: Report, natural: Report) -> dict[str, Any]:
    """The same of weights that were measured on fewer images and at one severity."""
    reports = {"solar": solar, "natural": natural}
    return {
        "made_by": "discopatch bench, see benchmarks/work_curve.py",
        **{f"{suite}, 19 corruptions at severity 3": corrupted(report) for suite, report in reports.items()},
        **{f"{suite}, near sets": by_head(report, "near") for suite, report in reports.items()},
    }


def corrupted(report: Report) -> dict[str, list[float]]:
    """The mean over all corruptions, by head."""
    return by_head(report, "covariate")


def by_head(report: Report, group: str) -> dict[str, list[float]]:
    """The mean over all sets of the group."""
    means = report["protocols"][PROTOCOL]["means"][group]
    return {head: means[f"{OURS}/{head}"]["auroc"] for head in HEADS}


def unlike_a_defect(report: Report) -> dict[str, float]:
    """The mean over those corruptions that the discriminator was not trained against, by head."""
    cells = [
        cell
        for name, levels in report["protocols"][PROTOCOL]["corruptions"].items()
        if name not in LIKE_A_DEFECT
        for cell in levels.values()
    ]
    return {head: round(mean(cell[f"{OURS}/{head}"]["auroc"][0] for cell in cells), 5) for head in HEADS}
