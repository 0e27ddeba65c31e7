"""The tidy frame holds the numbers of the results, to the last digit, and nothing twice."""

import sys
from math import isnan

import pytest

from discopatch.bench.tables import results_frame
from discopatch.bench.tables.frame import (
    COLUMNS,
    corruption_figures,
    group_names,
    method_names,
    protocol_names,
    set_groups,
)
from discopatch.errors import MissingExtraError
from tests.bench.sample_results import METRICS, SETS, make_results, only

METHODS = ["discopatch/combined", "discopatch-64/logit", "resnet50/energy"]
RESULTS = only(make_results(0), METHODS)
FRAME = results_frame(RESULTS)
FIGURES = {row[:5]: [end for end in row[5:] if not isnan(end)] for row in FRAME.itertuples(index=False, name=None)}


def test_every_figure_has_a_row_of_its_own() -> None:
    assert tuple(FRAME) == COLUMNS
    assert len(FIGURES) == len(FRAME)


def test_sets_and_means_have_the_same_numbers() -> None:
    for protocol, each in RESULTS["protocols"].items():
        parts = {(name, one["group"]): one["methods"] for name, one in each["sets"].items()}
        parts |= {("mean", group): means for group, means in each["means"].items()}
        for (name, group), methods in parts.items():
            for method, metrics in methods.items():
                for metric, figure in metrics.items():
                    assert FIGURES[protocol, name, group, method, metric] == figure


def test_corruptions_differences_seeds_and_cost_are_there_too() -> None:
    matched, method = RESULTS["protocols"]["matched"], "resnet50/energy"

    def found(name: str, group: str, metric: str, protocol: str = "matched") -> list[float]:
        return FIGURES[protocol, name, group, method, metric]

    for metric in METRICS:
        assert found("fog/3", "covariate", metric) == matched["corruptions"]["fog"]["3"][method][metric]
    assert found("mean/0", "covariate", "control") == matched["control"][method]
    assert found("mean/5", "covariate", "auroc") == matched["severities"][method]["5"]["auroc"]
    assert found("mean", "near", "auroc_difference") == matched["differences"]["near"][method]["auroc"]
    mean, spread = matched["seeds"]["far"][method]["auroc"]
    assert found("mean", "far", "auroc_seed_mean") == [mean]
    assert found("mean", "far", "auroc_seed_std") == [spread]
    assert found("", "cost", "milliseconds", protocol="") == [RESULTS["methods"][method]["milliseconds"]]


def test_names_are_in_the_order_of_the_results() -> None:
    assert method_names(FRAME) == list(RESULTS["methods"])
    assert protocol_names(results_frame({**RESULTS, "protocols": dict(reversed(RESULTS["protocols"].items()))})) == [
        "matched",
        "paper",
    ]
    assert group_names(FRAME) == ["near", "far", "covariate"]
    assert set_groups(FRAME, "far", "near") == {
        name: group for wanted in ("far", "near") for name, group in SETS.items() if group == wanted
    }
    assert len(set_groups(FRAME, "covariate")) == 19 * 5


def test_corruption_figures_have_averages_at_their_ends() -> None:
    figures = corruption_figures(FRAME, "matched")
    own = figures.xs("discopatch/combined")["auroc"]
    found = RESULTS["protocols"]["matched"]["corruptions"]["fog"]
    values = [found[severity]["discopatch/combined"]["auroc"][0] for severity in "12345"]
    assert own.loc["fog"].tolist() == [*values, pytest.approx(sum(values) / 5)]
    assert own.index[-1] == "mean"
    assert own.iloc[-1, -1] == RESULTS["protocols"]["matched"]["means"]["covariate"]["discopatch/combined"]["auroc"][0]


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="bench"):
        results_frame(RESULTS)
