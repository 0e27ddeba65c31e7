"""The tables of a benchmark, each a selection of the tidy results, and the files that hold them."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from discopatch.bench.labels import corruption_label, group_label, is_ours, method_label, patch_count, set_label
from discopatch.bench.tables.frame import (
    MEAN,
    Results,
    by_method,
    corruption_figures,
    group_names,
    method_names,
    protocol_names,
    results_frame,
    set_groups,
)
from discopatch.bench.tables.table import Better, Heading, Number, Row, Table, is_empty, mark_best
from discopatch.bench.tables.writers import latex_page, markdown_page
from discopatch.utils import write_atomically

if TYPE_CHECKING:
    import pandas as pd

READING = """The best of each column is in bold, the second in italics. AUROC is the probability that an
out-of-distribution image scores higher than a normal one; 50 is chance. FPR95 is the share of normal images flagged
when 95 % of the out-of-distribution ones are. Both are times 100. *Matched*: all images have the same preprocessing.
*Paper*: the preprocessing behind the published figures, which differs between normal and other images. *Control*:
normal images with the preprocessing of a set, against normal images; far from 50, the row measures the preprocessing
and not the images. Intervals are 95 %, over test images."""
SIDE_BY_SIDE = 4  # sets in one table: more would be too small in print

Key = tuple[str, str, str, str]  # protocol, set, group, metric: a column of figures
Column = tuple[Heading, Sequence[Key]]  # its figures stand side by side in a cell


class Format(NamedTuple):
    """How the figures of a metric are headed, printed and compared."""

    heading: str
    better: Better = 0
    scale: float = 100
    digits: int = 1
    signed: bool = False
    spread: str = ""  # the metric that is its standard deviation


FORMATS = {
    "auroc": Format("AUROC", 1),
    "fpr95": Format("FPR95", -1),
    "fpr95_in": Format("FPR95-in", -1),
    "aupr_in": Format("AUPR-in", 1),
    "aupr_out": Format("AUPR-out", 1),
    "control": Format("control"),
    "route_matched": Format("preprocessing-matched", 1),
    "auroc_difference": Format("ahead", signed=True),
    "auroc_seed_mean": Format("AUROC", 1, spread="auroc_seed_std"),
    "fpr95_seed_mean": Format("FPR95", -1, spread="fpr95_seed_std"),
    "parameters": Format("Parameters", -1, scale=1, digits=0),
    "milliseconds": Format("Latency (ms)", -1, scale=1),
}
PAIR = ("auroc", "fpr95")


def write_tables(folder: Path, results: Results) -> list[Path]:
    """Writes results.csv (the tidy frame), tables.md and tables.tex, and returns their paths."""
    tables = result_tables(results)
    texts = {
        "results.csv": results_frame(results).to_csv(index=False, lineterminator="\n"),
        "tables.md": markdown_page(_title(results), _introduction(results), tables),
        "tables.tex": latex_page(_title(results), tables),
    }
    for name, text in texts.items():
        _write_text(folder / name, text)
    return [folder / name for name in texts]


def write_page(path: Path) -> Path:
    """Writes the tables of the results in a JSON file as a Markdown page beside it, under the same name."""
    results, page = json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".md")
    _write_text(page, markdown_page(_title(results), _introduction(results), result_tables(results)))
    return page


def result_tables(results: Results) -> list[Table]:
    """The tables that can be made from the results, the most important first."""
    frame = results_frame(results)
    wide = by_method(frame)
    return [
        *_set_tables(frame, wide),
        *_group_tables(results, frame, wide),
        *_patch_tables(frame, wide),
        _method_table(
            wide,
            "cost",
            "Latency and size",
            f"Milliseconds an image, {results['made'].get('device') or 'one by one'}.",
            [_cost_column("parameters"), _cost_column("milliseconds")],
        ),
        _sources_table(results, protocol_names(frame)),
        *_corruption_tables(frame),
    ]


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def _title(results: Results) -> str:
    return f"Benchmark on {results['suite']} images"


def _introduction(results: Results) -> str:
    """Where the figures come from, and how to read them."""
    run, sizes = results["made"], results["sizes"]
    origin = (
        f"discopatch {run['discopatch']}, weights `{run['weights digest']}`, {run['device']}",
        f"fitted on {sizes['fit']:,} images, tested on {sizes['test']:,}",
        f"protocols {', '.join(results['protocols'])}",
        f"seeds {', '.join(map(str, run['seeds']))}",
    )
    settings = [
        f"{method_label(name)}: {_pairs(each['settings'])}"
        for name, each in results["methods"].items()
        if each.get("settings")
    ]
    left_out = [f"{method_label(name)}: {why}" for name, why in results.get("left_out", {}).items()]
    notes = [
        f"{title}: {'; '.join(lines)}." for title, lines in (("Settings", settings), ("Left out", left_out)) if lines
    ]
    return "\n\n".join([f"{'; '.join(origin)}.", *notes, READING])


def _pairs(settings: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _method_table(
    wide: "pd.DataFrame",
    name: str,
    title: str,
    caption: str,
    columns: Sequence[Column],
    *,
    unmarked: Collection[str] = (),
    interval: bool = False,
) -> Table:
    """A row for each method, the best marked except in `unmarked` metrics; columns without any figure are left out."""
    cells = [[*zip(*(_numbers(wide, key, unmarked, interval) for key in keys), strict=True)] for _, keys in columns]
    filled = [place for place, column in enumerate(cells) if not all(map(is_empty, column))]
    headings = (Heading("Method"), *(columns[place][0] for place in filled))
    rows = zip(map(method_label, wide.index), *(cells[place] for place in filled), strict=True)
    return Table(name, title, caption, headings, mark_best(rows))


def _numbers(wide: "pd.DataFrame", key: Key, unmarked: Collection[str], interval: bool) -> list[Number | None]:
    """A figure for each method; None where it was not measured."""
    style, scale = FORMATS[key[-1]], FORMATS[key[-1]].scale
    ends = [("value", *key), ("low", *key), ("high", *key), ("value", *key[:-1], style.spread)]
    better: Better = 0 if key[-1] in unmarked else style.better
    return [
        None
        if isnan(value)
        else Number(
            scale * value,
            interval=(scale * low, scale * high) if interval else None,
            spread=None if isnan(spread) else scale * spread,
            digits=style.digits,
            better=better,
            signed=style.signed,
        )
        for value, low, high, spread in zip(*(wide.get(end, [nan] * len(wide)) for end in ends), strict=True)
    ]


def _set_tables(frame: "pd.DataFrame", wide: "pd.DataFrame") -> Iterator[Table]:
    """The paper's tables, every method on every set; sets of normal images have a table of their own."""
    sets = [*set_groups(frame, "near", "far").items()]
    if "covariate" in group_names(frame):
        sets.append((MEAN, "covariate"))
    order = "/".join(protocol_names(frame))
    control = f"control: AUROC of normal images with the preprocessing of the set ({order})."
    size = ceil(len(sets) / max(1, ceil(len(sets) / SIDE_BY_SIDE)))  # tables as equal as they can be
    for number, first in enumerate(range(0, len(sets), max(1, size)), start=1):
        part = sets[first : first + size]
        title = f"OOD detection: {', '.join(dict.fromkeys(group_label(group) for _, group in part))}"
        columns = [column for each in part for column in _set_columns(frame, *each)]
        yield _method_table(wide, f"main-{number}", title, f"AUROC/FPR95; {control}", columns)
    if controls := set_groups(frame, "control"):
        columns = [column for each in controls.items() for column in _set_columns(frame, *each)]
        caption = f"AUROC/FPR95, 50/95 where a detector reacts to nothing but the images; {control}"
        yield _method_table(wide, "control-sets", "Sets of normal images", caption, columns, unmarked=PAIR)


def _set_columns(frame: "pd.DataFrame", name: str, group: str) -> Iterator[Column]:
    """AUROC/FPR95 under each protocol, then the controls of all protocols side by side."""
    above = "Corrupted images" if name == MEAN else f"{set_label(name)} ({group})"
    control = (f"{MEAN}/0" if name == MEAN else name, group, "control")
    for protocol in protocol_names(frame):
        yield Heading(protocol, above), [(protocol, name, group, metric) for metric in PAIR]
    yield Heading("control", above), [(protocol, *control) for protocol in protocol_names(frame)]


def _group_tables(results: Results, frame: "pd.DataFrame", wide: "pd.DataFrame") -> Iterator[Table]:
    """Means over the sets of a group, for each protocol: with intervals, controls, over seeds, by other metrics."""
    seeds = len(results["made"].get("seeds") or ())
    kinds = {
        "means": ("Group means", "AUROC with its 95 % interval{ahead}.", ("auroc", "auroc_difference")),
        "preprocessing": (
            "Effect of the preprocessing",
            "AUROC; control: normal images with the preprocessing of a set against normal images; "
            "preprocessing-matched: the set against normal images with its preprocessing.",
            ("auroc", "control", "route_matched"),
        ),
        "seeds": (
            "Over seeds",
            f"Mean and standard deviation over {seeds} {'seed' if seeds == 1 else 'seeds'}.",
            ("auroc_seed_mean", "fpr95_seed_mean"),
        ),
        "metrics": (
            "Other metrics",
            "FPR95-in: share of out-of-distribution images accepted when 95 % of the normal ones are; "
            "AUPR-in and AUPR-out: average precision in finding normal and out-of-distribution images.",
            ("fpr95_in", "aupr_in", "aupr_out"),
        ),
    }
    for kind, (title, caption, metrics) in kinds.items():
        for protocol in protocol_names(frame):
            reference = results["protocols"][protocol].get("reference")
            ahead = f"; ahead: {method_label(reference)} minus this method, paired over the same images"
            columns = [
                (Heading(FORMATS[metric].heading, group_label(group)), [(protocol, MEAN, group, metric)])
                for group in group_names(frame)
                for metric in metrics
            ]
            table = _method_table(
                wide,
                f"{kind}-{protocol}",
                f"{title}, {protocol}",
                caption.format(ahead=ahead if reference else ""),
                columns,
                unmarked=("auroc",) if kind == "preprocessing" else (),
                interval=kind == "means",
            )
            if len(table.headings) > 1:
                yield table


def _patch_tables(frame: "pd.DataFrame", wide: "pd.DataFrame") -> Iterator[Table]:
    """What more patches bring: the discriminator alone, the dense pass last."""
    counts = {method: patch_count(method) for method in method_names(frame) if is_ours(method)}
    if not any(counts.values()):
        return
    ours = sorted(counts, key=lambda method: counts[method] or float("inf"))
    columns: list[Column] = [
        (Heading(protocol, group_label(group)), [(protocol, MEAN, group, metric) for metric in PAIR])
        for group in group_names(frame)
        for protocol in protocol_names(frame)
    ]
    columns.append(_cost_column("milliseconds"))
    yield _method_table(wide.loc[ours], "patches", "Number of patches", "Group means, AUROC/FPR95.", columns)


def _cost_column(metric: str) -> Column:
    return Heading(FORMATS[metric].heading), [("", "", "cost", metric)]


def _sources_table(results: Results, protocols: Sequence[str]) -> Table:
    """How many images each set has, and digests by which one can tell whether one's own are the same."""
    data = [results["data"].get(protocol, {}) for protocol in protocols]
    names = dict.fromkeys(name for each in data for name in each if "/" not in name)  # corrupted test images have one
    rows: list[Row] = []
    for name in names:
        found = [each.get(name, {}) for each in data]
        images = next((Number(each["images"], digits=0) for each in found if each.get("images") is not None), None)
        rows.append((set_label(name), (images,), *(each.get("digest") or "" for each in found)))
    headings = (Heading("Set"), Heading("Images"), *(Heading(name, "Digest") for name in protocols))
    caption = "A digest stands for all pixels that the network gets."
    return Table("sources", "Images", caption, headings, tuple(rows))


def _corruption_tables(frame: "pd.DataFrame") -> Iterator[Table]:
    """Every corruption at every severity, a table for each method and protocol, as in the paper's appendix."""
    for protocol in protocol_names(frame):
        figures = corruption_figures(frame, protocol)
        levels = figures.columns.unique("severity")
        severities = [Heading(level, "Corruption severity") if level else Heading("Average") for level in levels]
        for number, method in enumerate(method_names(frame), start=1):
            own = figures.xs(method) if method in figures.index else figures.iloc[:0]
            names = [*sorted(name for name in own.index if name != MEAN), MEAN]
            if len(names) > 1:
                labels = [*map(corruption_label, names[:-1]), "Average"]
                values = np.stack([own[metric].reindex(index=names, columns=levels) for metric in PAIR], axis=2)
                cells = [[(_share(auroc), _share(fpr95)) for auroc, fpr95 in row] for row in values.tolist()]
                yield Table(
                    f"corruptions-{protocol}-{number}",
                    f"Corruptions, {protocol}: {method_label(method)}",
                    "AUROC/FPR95.",
                    (Heading("Corruption"), *severities),
                    tuple((label, *row) for label, row in zip(labels, cells, strict=True)),
                    averages=1,
                )


def _share(value: float) -> Number | None:
    return None if isnan(value) else Number(100 * value)
