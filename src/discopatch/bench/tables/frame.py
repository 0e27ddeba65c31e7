"""The results of a benchmark as one tidy DataFrame, from which all tables and plots are selected."""

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from discopatch.utils import require

if TYPE_CHECKING:
    import pandas as pd

Results = Mapping[str, Any]  # of results.json
Row = tuple[str, str, str, str, str, float, float, float]

COLUMNS = ("protocol", "set", "group", "method", "metric", "value", "low", "high")
PROTOCOLS = ("matched", "paper")
GROUPS = ("near", "far", "covariate")  # those that have means
MEAN = "mean"


def results_frame(results: Results) -> "pd.DataFrame":
    """One row for each figure, with the columns COLUMNS and nothing rounded: the cost of methods, then each protocol.

    `set` is a set of images, corrupted images ("fog/3") or a mean: "mean" over the sets of the group, "mean/3" over the
    corruptions at severity 3. "mean/0" is the control of corrupted images: normal ones stored as these are. `low` and
    `high` are the 95 % interval; figures over seeds and of cost have none (NaN).
    """
    require("pandas", "bench")
    import pandas as pd

    return pd.DataFrame([*_cost_rows(results), *_protocol_rows(results)], columns=list(COLUMNS))


def by_method(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A row for each method and columns (value | low | high, protocol, set, group, metric).

    Single corruptions and severities are left out: `corruption_figures` has them.
    """
    keys, rows = ["protocol", "set", "group", "metric"], ~frame["set"].str.contains(r"/[1-9]")
    wide = frame[rows].pivot(index="method", columns=keys, values=["value", "low", "high"])
    return wide.reindex(method_names(frame))


def method_names(frame: "pd.DataFrame") -> list[str]:
    """All methods in the order of the results."""
    return [*frame["method"].unique()]


def protocol_names(frame: "pd.DataFrame") -> list[str]:
    """The protocols that were run, matched first."""
    return [name for name in frame["protocol"].unique() if name]


def group_names(frame: "pd.DataFrame") -> list[str]:
    """The groups that have a mean in any protocol."""
    return _in_order(frame.loc[frame["set"] == MEAN, "group"].unique(), GROUPS)


def set_groups(frame: "pd.DataFrame", *groups: str) -> dict[str, str]:
    """The sets of the groups, means left out: name -> group, in the order of the groups."""
    pairs = frame.loc[~frame["set"].str.fullmatch(rf"{MEAN}(/\d+)?"), ["set", "group"]].drop_duplicates()
    return {name: group for wanted in groups for name, group in pairs.itertuples(index=False) if group == wanted}


def corruption_figures(frame: "pd.DataFrame", protocol: str) -> "pd.DataFrame":
    """The values on corrupted images: rows (method, corruption) and columns (metric, severity), mildest first.

    The last column of a metric, "", is the mean over severities; the last row of a method, "mean", over corruptions.
    """
    import pandas as pd

    own = frame[(frame["protocol"] == protocol) & (frame["group"] == "covariate") & (frame["set"] != f"{MEAN}/0")]
    own = own.join(own["set"].str.extract(r"(?P<corruption>[^/]+)/?(?P<severity>\d*)"))
    keys = ["method", "corruption", "metric"]
    averages = own[own["corruption"] != MEAN].groupby(keys, sort=False)["value"].agg(fmean).reset_index()
    own = pd.concat([own, averages.assign(severity="")])
    corruptions = sorted(own["corruption"].unique(), key=lambda name: name == MEAN)  # others as in the results
    severities = sorted(own["severity"].unique(), key=lambda name: int(name or 10**9))
    own["corruption"] = pd.Categorical(own["corruption"], corruptions)
    own["severity"] = pd.Categorical(own["severity"], severities)
    return own.pivot(index=["method", "corruption"], columns=["metric", "severity"], values="value")


def _in_order(names: Sequence[str], order: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def _cost_rows(results: Results) -> Iterator[Row]:
    for method, cost in results["methods"].items():
        for metric in ("parameters", "milliseconds"):
            if cost.get(metric) is not None:
                yield "", "", "cost", method, metric, cost[metric], nan, nan


def _protocol_rows(results: Results) -> Iterator[Row]:
    for protocol in _in_order([*results["protocols"]], PROTOCOLS):
        for name, group, methods in _parts(results["protocols"][protocol]):
            for method, metrics in methods.items():
                for metric, figure in metrics.items():
                    if figure is not None:
                        value, low, high = (*figure, nan, nan)[:3]
                        yield protocol, name, group, method, metric, value, low, high


def _parts(found: Results) -> Iterator[tuple[str, str, Results]]:
    """Set, group, and the figures there by method and metric; any part of the results may be missing."""

    def part(key: str) -> Results:
        return found.get(key) or {}

    for name, each in part("sets").items():
        yield name, each["group"], each["methods"]
    for name, levels in part("corruptions").items():
        for severity, methods in levels.items():
            yield f"{name}/{severity}", "covariate", methods
    yield f"{MEAN}/0", "covariate", {method: {"control": figure} for method, figure in part("control").items()}
    for method, levels in part("severities").items():
        for severity, metrics in levels.items():
            yield f"{MEAN}/{severity}", "covariate", {method: metrics}
    for group, methods in part("means").items():
        yield MEAN, group, methods
    for group, methods in part("differences").items():
        yield MEAN, group, {name: {f"{key}_difference": each[key] for key in each} for name, each in methods.items()}
    for group, methods in part("seeds").items():
        for place, statistic in enumerate(("mean", "std")):
            suffix = f"_seed_{statistic}"
            yield (
                MEAN,
                group,
                {name: {key + suffix: [each[key][place]] for key in each} for name, each in methods.items()},
            )
