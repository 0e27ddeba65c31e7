"""Figures on the pages, beside the JSON files that they come from."""

import json
import re
from statistics import mean
from typing import Any

import pytest

from tests.docs.blocks import ROOT


def results(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())


def figures(page: str, pattern: str) -> list[float]:
    """The numbers of the only match of the pattern on the page, whose line ends are spaces."""
    ((found),) = re.findall(pattern, " ".join((ROOT / "docs" / page).read_text().split()))
    return [float(each.replace(",", "")) for each in ([found] if isinstance(found, str) else found)]


@pytest.mark.parametrize("calibration", [99, 199, 999])
def test_the_false_alarms_of_the_monitor(calibration: int) -> None:
    runs = [each for name, each in results("monitoring").items() if name.startswith(f"false/{calibration}/continuous/")]
    streams = sum(each["streams"] for each in runs)
    rates = [
        100 * sum(each[kind] for each in runs) / streams for kind in ("monitor 0.01", "monitor 0.05", "textbook 0.01")
    ]
    found = figures("serving.md", rf"\| {calibration} \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) %")
    assert streams == 2000
    assert found == pytest.approx(rates, abs=0.051)


def test_the_load_of_the_service() -> None:
    runs, soak = results("serve-load")["runs"], results("serve-soak")
    names = ("1 clients", "8 clients", "128 clients", "in process, threads")
    one, eight, many, process = (runs[name]["images a second"] for name in names)
    pattern = (
        r"(\d+) images/s and a median of (\d+) ms with one client, (\d+) images/s with 8, (\d+) .* threads (\d+)\. In"
    )
    expected = [one, runs["1 clients"]["p50"], eight, many, process]
    assert figures("serving.md", pattern) == pytest.approx(expected, abs=0.51)
    pattern = r"with ([\d,]+) good, .* all ([\d,]+) scores .* memory stayed at (\d+) to (\d+) MiB"
    memory = soak["memory, MiB"]
    expected = [soak["requests"], soak["images compared"], memory["median, second tenth"], memory["median, last tenth"]]
    assert figures("serving.md", pattern) == pytest.approx(expected, abs=0.51)
    assert soak["different"] == 0
    assert not any(re.search(": 5..", name) for name in soak["statuses"])


def test_the_memory_and_the_overhead_of_batch_scoring() -> None:
    run = results("scale")["images"]
    memory = [each["MiB"] for each in run["moments"]]
    pattern = rf"over ([\d,]+) images in shards \({run['weights']}, (\d+) images/s .* stayed at (\d+) to (\d+) MiB"
    expected = [run["images"], run["images a second"], min(memory), max(memory)]
    assert figures("batch.md", pattern) == pytest.approx(expected, abs=0.51)
    two_cores, gpu = (each["seconds"] for each in results("ray-overhead").values())
    plain, running, started = map(mean, two_cores.values())
    pattern = r"takes (\d+) % longer than .* images, (\d+) % with the start of a cluster, and (\d+) seconds longer"
    gpu_plain, gpu_running, _ = map(mean, gpu.values())
    expected = [100 * (running / plain - 1), 100 * (started / plain - 1), gpu_running - gpu_plain]
    assert figures("batch.md", pattern) == pytest.approx(expected, abs=0.51)


@pytest.mark.parametrize("decoder", ["scaled", "pillow"])
def test_the_rate_of_each_decoder(decoder: str) -> None:
    rate = results("scale")["decoders"][decoder]["images a second to Parquet"]
    assert figures("batch.md", rf"\| two cores, `{decoder}` \| JPEG 1024 x 1024 \| ([\d.]+) \|") == [rate]
