"""Results of a benchmark as one tidy frame, and as tables in Markdown and LaTeX."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.bench.labels import group_label, method_label, set_label
from discopatch.utils import require, write_atomically

if TYPE_CHECKING:
    import pandas as pd

Results = Mapping[str, Any]  # of results.json
Row = tuple[str, str, str, str, str, float, float, float]
Key = tuple[str, str, str, str]  # protocol, set, group, metric
Cells = list[str]

COLUMNS = ("protocol", "set", "group", "method", "metric", "value", "low", "high")
GROUPS = ("near", "far", "covariate")  # the groups that have means
MEAN = "mean"
READING = """The best of each column is in bold. AUROC is the probability that an out-of-distribution image scores
higher than a normal one; 50 is chance. FPR95 is the share of normal images flagged when 95 % of the
out-of-distribution ones are. Both are times 100. *Matched*: all images have the same preprocessing. *Paper*: the
preprocessing behind the published figures, which differs between normal and other images. *Control*: normal images
with the preprocessing of a set, against normal images; far from 50, the row measures the preprocessing and not the
images. *Ahead*: the reference minus this method, paired over the same images. Intervals are 95 %, over test images."""


def results_frame(results: Results) -> "pd.DataFrame":
    """One row for each figure, with the columns COLUMNS and nothing rounded.

    `set` is a set of images, corrupted images ("fog/3") or a mean: "mean" over the sets of the group, "mean/3" over the
    corruptions at severity 3. "mean/0" is the control of corrupted images. `low` and `high` are the 95 % interval;
    figures over seeds and of cost have none (NaN).
    """
    require("pandas", "bench")
    import pandas as pd

    return pd.DataFrame([*_cost_rows(results), *_protocol_rows(results)], columns=list(COLUMNS))


def _cost_rows(results: Results) -> Iterator[Row]:
    for method, cost in results["methods"].items():
        for metric in ("parameters", "milliseconds"):
            if cost.get(metric) is not None:
                yield "", "", "cost", method, metric, cost[metric], nan, nan


def _protocol_rows(results: Results) -> Iterator[Row]:
    for protocol, content in results["protocols"].items():
        for name, group, methods in _parts(content):
            for method, metrics in methods.items():
                for metric, figure in metrics.items():
                    value, low, high = (*figure, nan, nan)[:3]
                    yield protocol, name, group, method, metric, value, low, high


def _parts(found: Results) -> Iterator[tuple[str, str, Results]]:
    """Set, group, and the figures there by method and metric."""
    for name, each in found["sets"].items():
        yield name, each["group"], each["methods"]
    for name, levels in found["corruptions"].items():
        for severity, methods in levels.items():
            yield f"{name}/{severity}", "covariate", methods
    yield f"{MEAN}/0", "covariate", {method: {"control": figure} for method, figure in found["control"].items()}
    for method, levels in found["severities"].items():
        for severity, metrics in levels.items():
            yield f"{MEAN}/{severity}", "covariate", {method: metrics}
    for group, methods in found["means"].items():
        yield MEAN, group, methods
    for group, methods in found["differences"].items():
        yield MEAN, group, {name: {"auroc_difference": each["auroc"]} for name, each in methods.items()}
    for group, methods in found["seeds"].items():
        for place, end in enumerate(("_seed_mean", "_seed_std")):
            yield MEAN, group, {name: {key + end: [each[key][place]] for key in each} for name, each in methods.items()}


def method_names(frame: "pd.DataFrame") -> list[str]:
    """All methods in the order of the results."""
    return [*frame["method"].unique()]


def protocol_names(frame: "pd.DataFrame") -> list[str]:
    """The protocols of the run."""
    return [name for name in frame["protocol"].unique() if name]


def group_names(frame: "pd.DataFrame") -> list[str]:
    """The groups that have a mean."""
    found = set(frame.loc[frame["set"] == MEAN, "group"])
    return [name for name in GROUPS if name in found]


def set_groups(frame: "pd.DataFrame", *groups: str) -> dict[str, str]:
    """The sets of the groups without means: name -> group, in the order of the groups."""
    pairs = frame.loc[~frame["set"].str.fullmatch(rf"{MEAN}(/\d+)?"), ["set", "group"]].drop_duplicates()
    return {name: group for wanted in groups for name, group in pairs.itertuples(index=False) if group == wanted}


def by_method(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A row for each method and columns (value | low | high, protocol, set, group, metric)."""
    keys = ["protocol", "set", "group", "metric"]
    wide = frame.pivot(index="method", columns=keys, values=["value", "low", "high"])
    return wide.reindex(method_names(frame))


def result_tables(results: Results) -> dict[str, "pd.DataFrame"]:
    """Tables of text by title, a row for each method."""
    frame = results_frame(results)
    wide, groups = by_method(frame), group_names(frame)
    sets = [(name, set_label(name), group) for name, group in set_groups(frame, "near", "far", "control").items()]
    sets += [(MEAN, "Corrupted", "covariate")] if "covariate" in groups else []
    kinds: dict[str, dict[str, tuple[str, Callable[..., Cells]]]] = {
        "Group means": {"AUROC": ("auroc", _intervals), "ahead": ("auroc_difference", _intervals)},
        "Effect of the preprocessing": {
            "AUROC": ("auroc", _shares),
            "control": ("control", _shares),
            "against its control": ("route_matched", _shares),
        },
        "Over seeds": {"AUROC": ("auroc_seed_mean", _spreads), "FPR95": ("fpr95_seed_mean", _spreads)},
    }
    found: dict[str, dict[str, Cells]] = {}
    for protocol in protocol_names(frame):
        found[f"AUROC/FPR95 of each set, {protocol}"] = {
            f"{label} ({group})": _pairs(wide, (protocol, name, group, "auroc")) for name, label, group in sets
        }
        for title, headings in kinds.items():
            found[f"{title}, {protocol}"] = {
                f"{group_label(group)}, {heading}": write(wide, (protocol, MEAN, group, metric))
                for group in groups
                for heading, (metric, write) in headings.items()
            }
        means = corruption_figures(frame, protocol).groupby(["method", "corruption"], sort=False)["value"].mean()
        found[f"AUROC of each corruption, mean over severities, {protocol}"] = {
            set_label(name): [f"{100 * value:.1f}" for value in means[:, name].reindex(wide.index)]
            for name in means.index.unique("corruption")
        }
    cost = {"Parameters": ("parameters", "{:,.0f}"), "Latency (ms)": ("milliseconds", "{:,.1f}")}
    found[f"Latency and size, {results['made']['device']}"] = {
        name: _texts(wide, ("", "", "cost", metric), form) for name, (metric, form) in cost.items()
    }
    import pandas as pd

    labels = [*map(method_label, wide.index)]
    return {title: pd.DataFrame({"Method": labels, **columns}) for title, columns in found.items()}


def corruption_figures(frame: "pd.DataFrame", protocol: str) -> "pd.DataFrame":
    """The AUROC of each method, corruption and severity, a row each."""
    own = frame[(frame["protocol"] == protocol) & (frame["group"] == "covariate") & (frame["metric"] == "auroc")]
    own = own.join(own["set"].str.extract(r"(?P<corruption>[^/]+)/(?P<severity>[1-9])"))
    return own[own["severity"].notna() & (own["corruption"] != MEAN)]


def _texts(wide: "pd.DataFrame", key: Key, form: str, *, scale: float = 1, part: str = "value") -> Cells:
    values = wide.get((part, *key), [nan] * len(wide))
    return ["" if value != value else form.format(scale * value + 0.0) for value in values]  # NaN is not itself


def _shares(wide: "pd.DataFrame", key: Key, *, part: str = "value", form: str = "{:.1f}") -> Cells:
    return _texts(wide, key, form, scale=100, part=part)


def _best(cells: Sequence[str], *, lowest: bool = False) -> Cells:
    """The cells with the best number in bold."""
    known = [float(cell) for cell in cells if cell]
    best = (min if lowest else max)(known) if len(set(known)) > 1 else None
    return [f"**{cell}**" if cell and float(cell) == best else cell for cell in cells]


def _pairs(wide: "pd.DataFrame", key: Key) -> Cells:
    """AUROC/FPR95."""
    lowest = _best(_shares(wide, (*key[:3], "fpr95")), lowest=True)
    return [f"{one}/{other}" if one else "" for one, other in zip(_best(_shares(wide, key)), lowest, strict=True)]


def _intervals(wide: "pd.DataFrame", key: Key) -> Cells:
    """97.2 [96.8, 97.5], or a difference +0.4 [-0.1, +0.9]."""
    difference = key[3] == "auroc_difference"
    form = "{:+.1f}" if difference else "{:.1f}"
    values, lows, highs = (_shares(wide, key, part=part, form=form) for part in ("value", "low", "high"))
    values = values if difference else _best(values)
    return [f"{value} [{low}, {high}]" if value else "" for value, low, high in zip(values, lows, highs, strict=True)]


def _spreads(wide: "pd.DataFrame", key: Key) -> Cells:
    """81.2 ± 0.6: mean and standard deviation over seeds."""
    spreads = _shares(wide, (*key[:3], key[3].replace("mean", "std")))
    return [f"{one} ± {other}" if one else "" for one, other in zip(_shares(wide, key), spreads, strict=True)]


def write_tables(folder: Path, results: Results) -> list[Path]:
    """Writes results.csv (the tidy frame), tables.md and tables.tex, and returns their paths."""
    title, tables = f"Benchmark on {results['suite']} images", result_tables(results)
    markdown = [
        f"## {name}\n\n{markdown_table(list(each.columns), each.itertuples(index=False))}"
        for name, each in tables.items()
    ]
    latex = [to_latex(name, each) for name, each in tables.items()]
    texts = {
        "results.csv": results_frame(results).to_csv(index=False, lineterminator="\n"),
        "tables.md": "\n\n".join([f"# {title}", _introduction(results), *markdown]) + "\n",
        "tables.tex": "\n".join([f"% {title}. Needs the package booktabs.", *latex]),
    }
    for name, text in texts.items():
        write_atomically(folder / name, partial(Path.write_text, data=text, encoding="utf-8"))
    return [folder / name for name in texts]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of text: the first column flush left, the others flush right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def to_latex(title: str, table: "pd.DataFrame") -> str:
    """A LaTeX table with the rules of booktabs."""
    label = "tab:" + re.sub(r"\W+", "-", title.lower())
    text = table.to_latex(index=False, escape=True, caption=title, label=label)
    return re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", text)


def _introduction(results: Results) -> str:
    """Where the figures come from, and how to read them."""
    run, sizes = results["made"], results["sizes"]
    origin = (
        f"discopatch {run['discopatch']}, weights `{run['weights digest']}`, {run['device']}; "
        f"fitted on {sizes['fit']:,} images, tested on {sizes['test']:,}; seeds {', '.join(map(str, run['seeds']))}."
    )
    settings = [
        f"{method_label(name)}: {' '.join(f'{key}={value}' for key, value in each['settings'].items())}"
        for name, each in results["methods"].items()
        if each.get("settings")
    ]
    left_out = [f"{method_label(name)}: {why}" for name, why in results.get("left_out", {}).items()]
    data = [
        f"{name} {each['images']:,} (`{each['digest']}`)"
        for name, each in next(iter(results["data"].values())).items()
        if "/" not in name
    ]
    notes = {"Settings": settings, "Left out": left_out, "Images (digest)": data}
    return "\n\n".join([origin, *(f"{title}: {'; '.join(lines)}." for title, lines in notes.items() if lines), READING])
