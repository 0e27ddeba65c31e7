"""Results of a benchmark as one tidy frame, and as tables in Markdown and LaTeX; labels."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discopatch.utils import require, write_atomically

if TYPE_CHECKING:
    import pandas as pd

Results = Mapping[str, Any]  # of results.json
Row = tuple[str, str, str, str, str, float, float, float]
Cells = list[str]

COLUMNS = ("protocol", "set", "group", "method", "metric", "value", "low", "high")
MEAN = "mean"
INTERVAL = "{:.1f} [{:.1f}, {:.1f}]"
READING = """The best of each column is in bold. AUROC is the probability that an out-of-distribution image scores
higher than a normal one; 50 is chance. FPR95 is the share of normal images flagged when 95 % of the
out-of-distribution ones are. Both are times 100. *Matched*: all images have the same preprocessing. *Paper*: the
preprocessing behind the published figures, which differs between normal and other images. *Control*: normal images
with the preprocessing of a set, against normal images; far from 50, the row measures the preprocessing and not the
images. *Ahead*: the reference minus this method, paired over the same images. Intervals are 95 %, over test images;
n is the number of images of the column, which are compared with the normal test images; corrupted images are copies
of these."""

DISCRIMINATOR = re.compile(r"(discopatch|[a-z][a-z-]*-v\d+|[^=/]+\.safetensors)(?:-([1-9]\d*))?")
HEAD_LABELS = {
    "combined": "combined head",
    "components": "components head",
    "components:place=no": "components head without places",
    "statistics": "statistics head",
    "logit": "mean logit",
    "sigmoid": "mean sigmoid",
}
LABELS = {
    **HEAD_LABELS,
    "msp": "MSP",
    "maxlogit": "MaxLogit",
    "energy": "Energy",
    "ash": "ASH",
    "scale": "SCALE",
    "nnguide": "NNGuide",
    "rankfeat": "RankFeat",
    "rankfeat-weight": "RankFeat & Weight",
    "adascale": "AdaSCALE-A",
    "fdbd": "fDBD",
    "nci": "NCI",
    "vim": "ViM",
    "mahalanobis": "class-free shrunk Mahalanobis",
    "mahalanobis++": "class-free shrunk Mahalanobis++",
    "mds": "MDS with class means",
    "mds++": "Mahalanobis++",
    "dfm": "DFM",
    "knn": "kNN",
    "combood": "CombOOD",
    "cdf": "activation CDFs",
    "niqe": "NIQE",
    "local": "local memory",
    "resnet50": "ResNet-50",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "efficientnet-lite1": "EfficientNet-Lite1",
    "ssb_hard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimage_o": "OpenImage-O",
    "chest-xray": "Chest X-ray",
    "brain-mri": "Brain MRI",
    "jpeg_compression": "JPEG compression",
    "near": "near-OOD",
    "far": "far-OOD",
    "covariate": "covariate shift",
}


def split_method(method: str) -> tuple[str, str]:
    """The encoder and the score of a method: discopatch-64/logit -> discopatch-64, logit."""
    encoder, _, score = method.rpartition("/")
    return encoder, score


def split_discriminator(encoder: str) -> tuple[str, int | None] | None:
    """The weights and the number of patches, None for one dense pass: paper-v1-64 -> paper-v1, 64.

    Other encoders than discriminators have None.
    """
    if not (found := DISCRIMINATOR.fullmatch(encoder)):
        return None
    return found[1], int(found[2]) if found[2] else None


def method_label(method: str) -> str:
    """DisCoPatch-64, mean logit (the paper's scoring rule); Energy (ResNet-50)."""
    encoder, score = split_method(method)
    if found := split_discriminator(encoder):
        weights, patches = found
        end = " (dense)" if patches is None else ""
        if patches == 64 and score in ("logit", "sigmoid"):
            end = f" (the paper's {'method' if weights.startswith('paper') else 'scoring rule'})"
        return f"{encoder_label(encoder)}, {score_label(score)}{end}"
    if score in HEAD_LABELS:
        return f"our {HEAD_LABELS[score]} ({encoder_label(encoder)} blocks)"
    return f"{score_label(score)} ({encoder_label(encoder)})"


def score_label(score: str) -> str:
    """energy -> Energy, knn:k=10 -> kNN k=10, combined -> combined head."""
    name, *options = score.split(":")
    return LABELS.get(score) or " ".join([LABELS.get(name, name), *options])


def encoder_label(encoder: str) -> str:
    """resnet50 -> ResNet-50; a network from outside (dinov2=FOLDER) has the label of its kind."""
    return LABELS.get(encoder) or encoder.partition("=")[0].replace("discopatch", "DisCoPatch")


def set_label(name: str) -> str:
    """chest-xray -> Chest X-ray, jpeg_compression -> JPEG compression: of a set or a corruption."""
    text = name.replace("_", " ")
    return LABELS.get(name) or text[:1].upper() + text[1:]


def results_frame(results: Results) -> "pd.DataFrame":
    """One row for each figure, with the columns COLUMNS and nothing rounded.

    `set` is a set of images, corrupted images ("fog/3") or a mean: "mean" over the sets of the group, "mean/3" over the
    corruptions at severity 3. "mean/0" is the control of corrupted images. `low` and `high` are the 95 % interval;
    figures without one have NaN.
    """
    require("pandas", "bench")
    import pandas as pd

    rows: list[Row] = [
        ("", "", "cost", method, metric, cost[metric], nan, nan)
        for method, cost in results["methods"].items()
        for metric in ("parameters", "milliseconds")
        if cost.get(metric) is not None
    ]
    for protocol, found in results["protocols"].items():
        for name, group, methods in _parts(found):
            for method, metrics in methods.items():
                for metric, figure in metrics.items():
                    value, low, high = (*figure, nan, nan)[:3]
                    rows.append((protocol, name, group, method, metric, value, low, high))
    return pd.DataFrame(rows, columns=list(COLUMNS))


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


def result_tables(results: Results) -> dict[str, "pd.DataFrame"]:
    """Tables of text by title, a row for each method."""
    import pandas as pd

    methods = results["methods"]
    column = partial(_column, methods)
    tables: dict[str, dict[str, Cells]] = {}
    for protocol, found in results["protocols"].items():
        counts = {group: f"n={number:,}" for group, number in found["images"].items()}
        sets = {
            f"{set_label(name)} ({each['group']}, n={each['images']:,})": each["methods"]
            for name, each in found["sets"].items()
        }
        if "covariate" in found["means"]:
            sets[f"Corrupted (covariate, {counts['covariate']})"] = found["means"]["covariate"]
        by_set: dict[str, Cells] = {}
        for label, each in sets.items():
            both = _best(column(each, "auroc", INTERVAL)), _best(column(each, "fpr95", INTERVAL), lowest=True)
            by_set[label] = [" / ".join(pair) for pair in zip(*both, strict=True)]
        means: dict[str, Cells] = {}
        seeds: dict[str, Cells] = {}
        for group, figures in found["means"].items():
            label, ahead = f"{LABELS[group]} ({counts[group]})", found["differences"].get(group, {})
            means[f"{label}, AUROC"] = _best(column(figures, "auroc", INTERVAL))
            means[f"{label}, ahead"] = column(ahead, "auroc", "{:+.1f} [{:+.1f}, {:+.1f}]")
            means[f"{label}, control"] = column(figures, "control", INTERVAL)
            means[f"{label}, against its control"] = column(figures, "route_matched", INTERVAL)
            seeds[f"{label}, AUROC"] = column(found["seeds"][group], "auroc", "{:.1f} ± {:.1f}")
            seeds[f"{label}, FPR95"] = column(found["seeds"][group], "fpr95", "{:.1f} ± {:.1f}")
        levels = max(map(len, found["corruptions"].values()), default=0)
        each_n = results["sizes"]["test"] * levels
        corruptions = {
            f"{set_label(name)} (n={each_n:,})": column(figures, "auroc", INTERVAL)
            for name, figures in found["corruption_means"].items()
        }
        tables |= {
            f"AUROC/FPR95 of each set, {protocol}": by_set,
            f"Group means, {protocol}": means,
            **({f"Over seeds, {protocol}": seeds} if len(results["made"]["seeds"]) > 1 else {}),
            f"AUROC of each corruption, mean over severities, {protocol}": corruptions,
        }
    tables[f"Latency and size, {results['made']['device']}"] = {
        "Parameters": ["" if each["parameters"] is None else f"{each['parameters']:,}" for each in methods.values()],
        "Latency (ms)": [f"{each['milliseconds']:,.1f}" for each in methods.values()],
    }
    labels = [method_label(name) for name in methods]
    return {title: pd.DataFrame({"Method": labels, **columns}) for title, columns in tables.items()}


def _column(methods: Iterable[str], figures: Results, metric: str, form: str = "{:.1f}") -> Cells:
    """The figure of each method, times 100, in that form; empty where there is none."""
    found = (figures.get(method, {}).get(metric) for method in methods)
    return ["" if each is None else form.format(*(100 * number + 0.0 for number in each)) for each in found]


def _best(cells: Sequence[str], *, lowest: bool = False) -> Cells:
    """The cells, the best of the numbers with which they begin in bold."""
    numbers = [float(cell.split()[0]) for cell in cells]
    best = (min if lowest else max)(numbers) if len(set(numbers)) > 1 else None
    parts = [cell.partition(" ") for cell in cells]
    return [
        f"**{first}**{space}{rest}" if number == best else f"{first}{space}{rest}"
        for number, (first, space, rest) in zip(numbers, parts, strict=True)
    ]


def write_tables(folder: Path, results: Results) -> None:
    """Writes results.csv (the tidy frame), tables.md and tables.tex."""
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
    run, sizes, data = results["made"], results["sizes"], next(iter(results["data"].values()))
    notes = {
        "Settings": [
            f"{method_label(name)}: {' '.join(f'{key}={value}' for key, value in each['settings'].items())}"
            for name, each in results["methods"].items()
            if each["settings"]
        ],
        "Left out": [f"{method_label(name)}: {why}" for name, why in results["left_out"].items()],
        "Images (digest)": [
            f"{name} {each['images']:,} (`{each['digest']}`)" for name, each in data.items() if "/" not in name
        ],
    }
    origin = (
        f"discopatch {run['discopatch']}, weights `{run['weights digest']}`, {run['device']}; "
        f"fitted on {sizes['fit']:,} images, tested on {sizes['test']:,}; seeds {', '.join(map(str, run['seeds']))}."
    )
    return "\n\n".join([origin, *(f"{title}: {'; '.join(lines)}." for title, lines in notes.items() if lines), READING])
