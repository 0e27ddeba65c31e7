"""All benchmark runs behind docs/results.md by one command, and its tables and figures from the stored results.

python studies/tables.py run --data ROOT --solar FOLDER --out RUNS     # everything; half an hour on a GPU
python studies/tables.py run ... --only natural --only solar           # some of the runs
python studies/tables.py publish RUNS     # docs/results/*.json, docs/images/bench/*.png
python studies/tables.py table natural    # a table of docs/results.md from docs/results/natural.json

ROOT holds natural/train-*.tar, natural/test.tar and ood/NAME.tar, FOLDER the solar cells' labels.csv. The same command
continues a stopped run.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discopatch.bench.dataset import QUICK
from discopatch.bench.tables import markdown_table, method_label
from discopatch.errors import DiscopatchError

if TYPE_CHECKING:
    from discopatch.bench.dataset import BenchPlan
    from discopatch.model import Weights

JOINED = ("combined", "components")  # the heads that join several scores
OURS = ("discopatch/*",)
RULE = ("natural-v3-64/sigmoid", "natural-v3-64/logit")
SMALL = ("natural-small-v2/combined",)
PAPER = ("paper-v1-64/sigmoid", "paper-v1-64/logit", "paper-v1/statistics", "paper-v1/combined")
ALL = ("resnet50/*", "efficientnet-lite0/*")
SOME = tuple(
    f"resnet50/{name}" for name in ("energy", "scale", "nnguide", "vim", "mahalanobis", "knn", "statistics", *JOINED)
) + tuple(f"efficientnet-lite0/{name}" for name in ("mahalanobis", "knn", "statistics", *JOINED))

HEADS_OF_ALL = (
    *PAPER,
    *(
        f"{encoder}/{head}"
        for encoder in ("discopatch", "natural-small-v2", "paper-v1", "resnet50", "efficientnet-lite0")
        for head in (*JOINED, "statistics", "knn", "local")
    ),
)


@dataclass(frozen=True)
class Run:
    """One benchmark run: which images, how many, and which methods."""

    suite: str
    methods: tuple[str, ...]  # patterns
    sizes: Mapping[str, Any] = field(default_factory=dict)  # fields of BenchPlan
    protocols: tuple[str, ...] = ("matched",)
    normal: str | None = None  # the shard of suite folder
    others: tuple[str, ...] = ()  # further shards
    weights: str = "natural-v3"
    local: bool = True  # whether places are compared: their features are larger than the images

    def choose(self, more: Sequence[str] = ()) -> list[str]:
        from discopatch.bench.methods import WITHOUT_PLACES, choose_methods

        found = choose_methods([*self.methods, *more])
        if self.local:
            return found
        named = [re.sub("/components$", f"/{WITHOUT_PLACES}", name) for name in found]
        return list(dict.fromkeys(name for name in named if not name.endswith("/local")))

    def plan(self, data: Path, solar: Path, weights: "Weights") -> "BenchPlan":
        from discopatch.bench.dataset import BenchPlan
        from discopatch.bench.suites import get_suite

        shards = {name: data / "ood" / f"{name}.tar" for name in (*self.others, *filter(None, [self.normal]))}
        suite = get_suite(
            self.suite,
            data={"natural": data, "solar": solar}.get(self.suite),
            normal=shards[self.normal] if self.normal else None,
            others={name: shards[name] for name in self.others},
            test=self.sizes.get("test"),
        )
        return BenchPlan(suite, weights.transform, self.protocols, **self.sizes)


CELLS = {"fit": 600, "test": 300}
PHOTOS = {"fit": 600, "severities": (3,)}
FEW = {"fit": 300, "test": 80, "other": 40, "severities": (1, 3), "corruptions": QUICK["corruptions"]}
RUNS = {
    "natural": Run("natural", (*OURS, *SMALL, *RULE, *PAPER, *ALL), {"fit": 2000}, local=False),
    "natural-heads": Run("natural", HEADS_OF_ALL, FEW),
    "solar": Run(
        "solar",
        (*OURS, *SMALL, *RULE, *PAPER, *ALL),
        CELLS,
        others=("textures", "receipts", "chest-xray", "steel"),
    ),
    "chest-xray": Run(
        "folder",
        (*OURS, *PAPER, *ALL),
        {"fit": 60, "test": 40},
        normal="chest-xray",
        others=("brain-mri", "receipts", "textures"),
    ),
    "brain-mri": Run(
        "folder",
        (*OURS, *PAPER, *ALL),
        {"fit": 90, "test": 50},
        normal="brain-mri",
        others=("chest-xray", "receipts", "textures"),
    ),
    "natural-protocols": Run(
        "natural", (*OURS, *RULE, *PAPER, *SOME), PHOTOS, protocols=("matched", "paper"), local=False
    ),
    "solar-protocols": Run(
        "solar", (*OURS, *RULE, *PAPER, *SOME), {**CELLS, "severities": (3,)}, protocols=("matched", "paper")
    ),
    "solar-seeds": Run("solar", (*OURS, *PAPER, *SOME), {**CELLS, "severities": (3,), "seeds": tuple(range(5))}),
}
FIGURES = {
    "natural": ("corruptions-matched",),
    "natural-protocols": ("protocols",),
}

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="Folder with natural/ and ood/.")],
    solar: Annotated[Path, typer.Option(help="Folder of the solar cells' labels.csv.")],
    out: Annotated[Path, typer.Option(help="A folder for each run, features and prepared images: some 40 GB.")],
    only: Annotated[list[str] | None, typer.Option(help="Runs by name; several times for more.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Further methods for all of these runs.")] = None,
    backbones: Annotated[Path | None, typer.Option(help="The folder of fetched backbones.")] = None,
    device: Annotated[str, typer.Option(help="auto takes a GPU where there is one.")] = "auto",
    workers: Annotated[int, typer.Option(help="Processes that prepare images.")] = os.cpu_count() or 1,
) -> None:
    """Measures what is missing; a run that fails is named at the end, after the others."""
    from discopatch.bench.dataset import CorruptionPool
    from discopatch.bench.runner import BenchRun
    from discopatch.pretrained import load_pretrained

    if unknown := set(only or ()) - set(RUNS):
        raise typer.BadParameter(f"no run is called {', '.join(sorted(unknown))}: choose from {', '.join(RUNS)}")
    failed = []
    with CorruptionPool(workers) as pool:
        for name in only or RUNS:
            each = RUNS[name]
            weights = load_pretrained(each.weights)
            chosen = each.choose(method or [])
            try:
                BenchRun(
                    each.plan(data, solar, weights),
                    chosen,
                    out / name,
                    weights,
                    pool,
                    cache=out / "features",
                    device=device,
                    backbones=backbones,
                    optional=chosen,
                    notice=print,
                ).run()
                print(f"{name}: measured", flush=True)
            except DiscopatchError as error:
                print(f"{name} failed: {error}")
                failed.append(name)
    if failed:
        raise typer.Exit(1)


@app.command()
def publish(
    runs: Annotated[Path, typer.Argument(help="The folder that `run` wrote to.")],
    docs: Annotated[Path, typer.Option(help="The project's documentation.")] = Path("docs"),
) -> None:
    """Copies results and figures of all runs in the folder into the documentation."""
    from discopatch.bench.plots import write_plots

    for name in RUNS:
        folder = runs / name
        if not (folder / "results.json").exists():
            print(f"{name}: not measured")
            continue
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        (docs / "results" / f"{name}.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
        if name in FIGURES:
            with tempfile.TemporaryDirectory() as place:
                write_plots(Path(place), results)
                for figure in FIGURES[name]:
                    drawn = figure.removesuffix("-matched")
                    path = docs / "images/bench" / f"{drawn if drawn in name else f'{name}-{drawn}'}.png"
                    path.write_bytes((Path(place) / f"{figure}.png").read_bytes())
        print(f"{name}: published")


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="A run, such as natural.")],
    docs: Annotated[Path, typer.Option(help="The project's documentation.")] = Path("docs"),
) -> None:
    """Prints the table of a run, as results.md shows it, from docs/results/NAME.json."""
    results = json.loads((docs / "results" / f"{name}.json").read_text(encoding="utf-8"))
    print(protocols_table(results) if len(results["protocols"]) > 1 else means_table(results))


SHOWN = {"near": "near", "far": "far", "covariate": "corrupted"}
LEFT_OUT = re.compile(r".*/(msp|maxlogit|sigmoid|ash|fdbd|rankfeat|rankfeat-weight)|.*-64/.*")  # of the page
KEPT = re.compile(r"natural-v3-64/logit|paper-v1.*")


def shown_methods(results: Mapping[str, Any]) -> list[str]:
    return [name for name in results["methods"] if KEPT.fullmatch(name) or not LEFT_OUT.fullmatch(name)]


def means_table(results: Mapping[str, Any]) -> str:
    """AUROC by group, the best on corrupted images first, and how far the reference is ahead there, image by image."""
    (found,) = results["protocols"].values()
    groups = [group for group in SHOWN if group in found["means"]]
    methods = [name for name in shown_methods(results) if name in found["means"][groups[-1]]]
    methods.sort(key=lambda name: -found["means"][groups[-1]][name]["auroc"][0])
    rows = []
    for name in methods:
        ahead = found["differences"].get(groups[-1], {}).get(name)
        figures = [per_cent(found["means"][group][name]["auroc"]) for group in groups]
        rows.append([method_label(name), *figures, per_cent(ahead["auroc"]) if ahead else ""])
    ends = f"{method_label(found['reference'])} is ahead by"
    return markdown_table(["", *(SHOWN[group] for group in groups), ends], bold_best(rows, len(groups)))


def protocols_table(results: Mapping[str, Any]) -> str:
    """Matched / paper / control of each group: what part of a figure is preprocessing."""
    matched, paper = (results["protocols"][name] for name in ("matched", "paper"))
    rows = []
    for name in shown_methods(results):
        cells = []
        for group in (each for each in SHOWN if each in paper["means"]):
            control = paper["control"][name] if group == "covariate" else paper["means"][group][name]["control"]
            three = (matched["means"][group][name]["auroc"], paper["means"][group][name]["auroc"], control)
            cells.append(" / ".join(f"{100 * each[0]:.1f}" for each in three))
        rows.append([method_label(name), *cells])
    headings = [f"{SHOWN[group]}: matched / paper / control" for group in SHOWN if group in paper["means"]]
    return markdown_table(["", *headings], rows)


def per_cent(figure: Sequence[float]) -> str:
    """A value and its interval, such as 96.2 [95.5, 96.9]."""
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * number for number in figure))


def bold_best(rows: list[list[str]], columns: int) -> list[list[str]]:
    """The best value of each of the first columns in bold."""
    for column in range(1, 1 + columns):
        best = max(float(row[column].split()[0]) for row in rows)
        for row in rows:
            value, rest = row[column].split(maxsplit=1)
            row[column] = f"**{value}** {rest}" if float(value) == best else row[column]
    return rows


if __name__ == "__main__":
    app()
