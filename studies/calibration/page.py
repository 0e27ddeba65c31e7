"""docs/calibration.md: the template page.md, filled with the stored results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import interval_text, render_page
from discopatch.bench.tables.writers import markdown_table
from discopatch.pretrained import PRETRAINED, model_card

Results = Mapping[str, Any]

HEADS = ("components", "combined", "statistics", "logit")
SUITES = {"solar": "solar cells", "natural": "photos", "chest-xray": "chest x-rays", "brain-mri": "brain MRI"}
STORAGES = ("as they come", "trained on", "other images, as they come")


def calibration_page(results: Results) -> str:
    """The whole page; sections that were not measured are left out."""
    made, data = results["made"], results["data"]
    names = {model_card(name)["weights_digest"]: name for name in PRETRAINED}
    corrupted = [name for name, each in data.items() if any("corrupt" in step for step in each["way"])]
    sets = [
        [name, f"{each['images']:,}", f"`{each['digest']}`"] for name, each in data.items() if name not in corrupted
    ]
    return render_page(
        Path(__file__).with_name("page.md"),
        plan=results["plan"],
        made=made,
        weights=names.get(made["weights digest"], "not released"),
        corrupted=corrupted,
        data=markdown_table(["set", "images", "digest"], sets),
        false_alarms=false_alarms_table(results.get("false alarms", {})),
        fit_size=results.get("fit size"),
        fit_sizes=fit_size_table(results.get("fit size", {}).get("sizes", {})),
        storage=results.get("storage"),
        storages=storage_table(results.get("storage", {})),
    )


def false_alarms_table(suites: Results) -> str:
    """A row for each suite, head and rate; empty where nothing was measured, like the other tables."""
    rows = [
        [
            SUITES[suite],
            head,
            f"{100 * alarms['promised']:.0f} %",
            f"**{100 * alarms['pooled']:.2f} %**",
            range_text(alarms["pooled_conformal"]),
            range_text(alarms["pooled_binomial"]),
            " ".join(f"{100 * rate:.1f}" for rate in alarms["rates"]),
            f"{alarms['splits_within']} of {len(alarms['rates'])} in {range_text(alarms['conformal'])}",
        ]
        for suite, heads in suites.items()
        for head in HEADS
        for alarms in heads[head].values()
    ]
    headings = ["images", "score", "asked for", "found", "99 % range", "binomial alone", "each split", "within"]
    return markdown_table(headings, rows) if rows else ""


def fit_size_table(sizes: Results) -> str:
    """Mean AUROC by the number of images given."""
    rows = [[size, str(each["fitted"]), *(interval_text(each[head]) for head in HEADS)] for size, each in sizes.items()]
    return markdown_table(["images", "of these fitted", *HEADS], rows) if rows else ""


def storage_table(storages: Results) -> str:
    """The effect of the storage that the photos to fit on have."""
    rows = [[head, *(interval_text(storages[each][head]) for each in STORAGES)] for head in HEADS if storages]
    return markdown_table(["score", *STORAGES], rows) if rows else ""


def range_text(shares: Sequence[float]) -> str:
    """Such as 0.6 to 1.5 %."""
    return f"{100 * shares[0]:.1f} to {100 * shares[1]:.1f} %"
