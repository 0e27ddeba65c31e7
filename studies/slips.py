"""What each slip of the authors' evaluation is worth: a table of docs/results.md, and docs/results/slips.json.

python studies/slips.py run --data ROOT --out FOLDER     # a minute on a GPU; continues where it was stopped
python studies/slips.py table docs/results/slips.json    # the table again
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from common import interval_text
from discopatch.bench.methods import choose_methods
from discopatch.bench.plan import SLIPS_ALONE, SLIPS_ALONE_PATCHES, BenchPlan, PlannedSet
from discopatch.bench.pool import CorruptionPool
from discopatch.bench.preprocessing import SLIPS, Protocol, slipped_name
from discopatch.bench.runner import run_bench
from discopatch.bench.suites import Suite, get_suite
from discopatch.bench.tables.writers import markdown_table
from discopatch.corruptions import FAMILIES
from discopatch.fitting import MIN_FIT_IMAGES
from discopatch.images import Transform
from discopatch.pretrained import FIRST_WEIGHTS, load_pretrained
from discopatch.utils import write_json

HEADS = ("sigmoid", "logit")  # the paper's score, and the same without saturation
OTHERS = ("textures", "cartoons", "sketches", "receipts", "chest-xray")  # two near ones, three far ones
CORRUPTIONS = tuple(family[0] for family in FAMILIES.values())
UNCORRUPTED = "control corrupted"
PROTOCOLS = ("paper", *(slipped_name([slip]) for slip in SLIPS), slipped_name([*SLIPS]))

app = typer.Typer(no_args_is_help=True)


class FewSets(BenchPlan):
    """Without the controls of other sets, which docs/results.md has: they are half of the work."""

    def sets(self, protocol: Protocol) -> list[PlannedSet]:
        return [each for each in super().sets(protocol) if each.group != "preprocessing" or each.name == UNCORRUPTED]


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="The root of the suite natural.")],
    out: Annotated[Path, typer.Option(help="The folder of the run; its results go to docs/results by hand.")],
    weights: Annotated[list[str] | None, typer.Option(help=f"Pretrained weights. Default: {FIRST_WEIGHTS}.")] = None,
    test: Annotated[int | None, typer.Option(help="Normal images to test with. Default: all.")] = None,
    other: Annotated[int | None, typer.Option(help="Images of each other set. Default: all.")] = None,
    patches: Annotated[int, typer.Option(help="Patches of each image; the paper has 64.")] = 64,
    slip: Annotated[list[str] | None, typer.Option(help="A slip; default: each by itself, and all together.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the patches' corners.")] = 0,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    keep_images: Annotated[Path | None, typer.Option(help="A folder to keep prepared images in.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that prepare images.")] = os.cpu_count() or 1,
) -> None:
    """Measures the paper's protocol without slips, with each, and with all of them."""
    names = weights or [FIRST_WEIGHTS]
    loaded = load_pretrained(names[0])
    plan = make_plan(get_suite("natural", data=data), loaded.transform, test=test, other=other)
    chosen = tuple(slipped_name([each]) for each in slip or ())
    plan = replace(plan, seeds=(seed,), protocols=("paper", *chosen) if chosen else plan.protocols)
    methods = choose_methods([f"{name}-{patches}/{head}" for name in names for head in HEADS])

    def tell(activity: str, done: int, total: int) -> None:
        print(f"{activity} ({done:,} of {total:,})", flush=True)

    with CorruptionPool(workers, frost="frost" in plan.corruptions) as pool:
        results = run_bench(plan, methods, out, loaded, pool, keep_images=keep_images, device=device, progress=tell)
    write_json(out / "slips.json", results)
    print(slips_table(results))


@app.command()
def table(path: Annotated[Path, typer.Argument(help="slips.json of a run.")]) -> None:
    """Prints the table of a run."""
    print(slips_table(json.loads(path.read_text(encoding="utf-8"))))


def make_plan(suite: Suite, transform: Transform, *, test: int | None, other: int | None) -> BenchPlan:
    """Few sets: the methods learn nothing from normal images, so that the fewest are fitted on."""
    chosen = tuple(each for each in suite.others if each.name in OTHERS)
    return FewSets(
        replace(suite, others=chosen),
        transform,
        protocols=PROTOCOLS,
        fit=MIN_FIT_IMAGES,
        test=test,
        other=other,
        corruptions=CORRUPTIONS,
        severities=(3,),
    )


def slips_table(results: Mapping[str, Any]) -> str:
    """A row for each protocol and method: AUROC of the slips by themselves, and of each group with its control."""
    rows = [
        [protocol.replace("+", " + ").removeprefix("paper + "), method, *figures(found, method)]
        for method in results["methods"]
        for protocol, found in results["protocols"].items()
    ]
    headings = ["slips", "score", "alone", "alone, patches", "near", "far", "corrupted", "uncorrupted"]
    return markdown_table(headings, rows)


def figures(found: Mapping[str, Any], method: str) -> list[str]:
    alone = (found["sets"].get(name, {}).get("methods", {}).get(method) for name in (SLIPS_ALONE, SLIPS_ALONE_PATCHES))
    groups = (found["means"][group][method] for group in ("near", "far", "covariate"))
    shown: Sequence[Sequence[float] | None] = [each and each["auroc"] for each in (*alone, *groups)]
    return [interval_text(each, scale=100, digits=1) if each else "" for each in (*shown, found["control"][method])]


if __name__ == "__main__":
    app()
