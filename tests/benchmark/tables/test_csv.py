"""The CSV holds the numbers of the report, to the last digit."""

import csv
import io

from discopatch.benchmark.tables.csv import COLUMNS, render

from ..report_samples import METRICS, make_report, only

REPORT = only(make_report(0), ["discopatch/combined", "discopatch-64/logit", "resnet50/energy"])
LINES = list(csv.DictReader(io.StringIO(render(REPORT))))


def found(**where: str) -> list[list[float]]:
    ends = ("value", "low", "high")
    return [
        [float(line[end]) for end in ends if line[end]]
        for line in LINES
        if all(line[key] == each for key, each in where.items())
    ]


def test_every_figure_has_a_line_of_its_own() -> None:
    assert tuple(LINES[0]) == COLUMNS
    keys = [tuple(line[key] for key in COLUMNS[:5]) for line in LINES]
    assert len(keys) == len(set(keys))


def test_it_reads_back_to_the_same_numbers() -> None:
    read = {
        tuple(line[key] for key in COLUMNS[:5]): [float(line[end]) for end in COLUMNS[5:] if line[end]]
        for line in LINES
    }
    for protocol, each in REPORT["protocols"].items():
        parts = {(name, one["group"]): one["methods"] for name, one in each["sets"].items()}
        parts |= {("mean", group): means for group, means in each["means"].items()}
        for (name, group), methods in parts.items():
            for method, metrics in methods.items():
                for metric, figure in metrics.items():
                    assert read[protocol, name, group, method, metric] == figure


def test_corruptions_differences_seeds_and_cost_are_there_too() -> None:
    matched, method = REPORT["protocols"]["matched"], "resnet50/energy"
    where = {"protocol": "matched", "method": method}
    for metric in METRICS:
        cell = matched["corruptions"]["fog"]["3"][method][metric]
        assert found(**where, set="fog/3", group="covariate", metric=metric) == [cell]
    assert found(**where, set="severity 0") == [matched["control"][method]]
    assert found(**where, set="severity 5", metric="auroc") == [matched["severities"][method]["5"]["auroc"]]
    difference = matched["differences"]["near"][method]["auroc"]
    assert found(**where, group="near", metric="auroc difference") == [difference]
    mean, spread = matched["seeds"]["far"][method]["auroc"]
    assert found(**where, group="far", metric="auroc mean over seeds") == [[mean]]
    assert found(**where, group="far", metric="auroc spread over seeds") == [[spread]]
    assert found(method=method, metric="milliseconds") == [[REPORT["methods"][method]["milliseconds"]]]
