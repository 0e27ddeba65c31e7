"""Figures on the pages, beside the JSON files that they come from."""

import json
import re
from statistics import mean
from typing import Any

import pytest

from tests.docs.blocks import FENCE, ROOT

METHODS = {  # of rows of results.md; HEAD is the components head
    "ours": "discopatch/HEAD",
    "natural-v2, combined head": "discopatch/combined",
    "natural-v2, statistics head": "discopatch/statistics",
    "natural-small-v1, combined head": "natural-small-v1/combined",
    "paper-v1, combined head": "paper-v1/combined",
    "the paper's method": "paper-v1-64/sigmoid",
    "the paper's method (paper-v1, 64 patches, mean sigmoid)": "paper-v1-64/sigmoid",
    "ResNet-50, our components head": "resnet50/HEAD",
    "EfficientNet-Lite0, our components head": "efficientnet-lite0/HEAD",
    **{f"{name}, ResNet-50": f"resnet50/{name.lower()}" for name in ("kNN", "ViM", "NNGuide", "Energy")},
}
BASELINE = re.compile(r"(resnet50|efficientnet-lite0)/(?!components|combined|statistics)")


def results(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())


def plain(page: str) -> str:
    """The text of the page without bold type and blocks of code, in one line."""
    return " ".join(FENCE.sub("", (ROOT / "docs" / page).read_text()).replace("**", "").split())


def figures(page: str, pattern: str) -> list[float]:
    """The numbers of the only match of the pattern on the page."""
    ((found),) = re.findall(pattern, plain(page))
    return [float(each.replace(",", "")) for each in ([found] if isinstance(found, str) else found)]


def table(page: str, heading: str) -> dict[str, list[float]]:
    """The numbers of the rows below the heading by their label, without what is in brackets; of two the first."""
    part = (ROOT / "docs" / page).read_text().replace("**", "").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found: dict[str, list[float]] = {}
    for label, cells in re.findall(r"^\| ([^|]+) \|(.*)\|$", part, re.MULTILINE):
        numbers = re.findall(r"\d[\d,.]*", re.sub(r"\[.*?\]|\(.*?\)", "", cells))
        found.setdefault(label, [float(each.replace(",", "")) for each in numbers])
    return found


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
    runs, soak = results("serve-load")["runs"], results("soak")
    names = ("1 clients", "8 clients", "128 clients", "in process, threads")
    one, eight, many, process = (runs[name]["images a second"] for name in names)
    pattern = (
        r"(\d+) images/s and a median of (\d+) ms with one client, (\d+) images/s with 8, (\d+) .* threads (\d+)\. A"
    )
    expected = [one, runs["1 clients"]["p50"], eight, many, process]
    assert figures("serving.md", pattern) == pytest.approx(expected, abs=0.51)
    pattern = (
        r"had ([\d,]+) good, .* (\d+) kills and (\d+) full .* All ([\d,]+) sc.* the ([\d,]+) ans.* reached (\d+) MiB"
    )
    counts = ("requests", "kills", "full disks", "images compared", "answered images")
    expected = [*(soak[name] for name in counts), soak["memory, MiB"]["most of the group"]]
    assert figures("serving.md", pattern) == pytest.approx(expected, abs=0.51)
    assert soak["unexpected"] == []
    assert not any(soak[name] for name in ("answered, not in the history", "more than once in the history"))
    assert [name for name in soak["statuses"] if re.search(": 5..", name)] == ["ready: 503"]


def test_the_memory_and_the_overhead_of_batch_scoring() -> None:
    run = results("scale")["images"]
    memory = [each["MiB"] for each in run["moments"]]
    pattern = rf"over ([\d,]+) images in shards \({run['weights']}, (\d+) images/s .* stayed at (\d+) to (\d+) MiB"
    expected = [run["images"], run["images a second"], min(memory), max(memory)]
    assert figures("batch.md", pattern) == pytest.approx(expected, abs=0.51)
    plan = results("scale")["plan"]
    pattern = r"Of ([\d,]+) loose images the plan takes (\d+) bytes each in every process, and (\d+) while"
    expected = [plan["images"], plan["bytes an image"], plan["bytes an image, at most"]]
    assert figures("batch.md", pattern) == pytest.approx(expected, abs=0.51)
    two_cores, gpu = (each["seconds"] for each in results("ray-overhead").values())
    plain, running, started = map(mean, two_cores.values())
    pattern = r"takes (\d+) % longer than .* images, (\d+) % with the start of a cluster, and (\d+) seconds longer"
    gpu_plain, gpu_running, _ = map(mean, gpu.values())
    expected = [100 * (running / plain - 1), 100 * (started / plain - 1), gpu_running - gpu_plain]
    assert figures("batch.md", pattern) == pytest.approx(expected, abs=0.51)


def test_the_interruptions_of_ray() -> None:
    run = results("ray-interruptions")
    pattern = (
        r"([\d,]+) small images on three .* workers (\d+) times and the command (\d+) times, and (\d+) times a node"
    )
    stopped = (run["stopped"][kind] for kind in ("worker", "driver", "node"))
    assert figures("batch.md", pattern) == [run["images"], *stopped]
    assert figures("batch.md", r"All ([\d,]+) rows were equal") == [run["equal rows"]] == [run["images"]]


@pytest.mark.parametrize("decoder", ["scaled", "pillow"])
def test_the_rate_of_each_decoder(decoder: str) -> None:
    found = results("scale")["decoders"][decoder]
    assert figures("performance.md", rf"`{decoder}` ([\d.]+) ms") == [found["ms of a core to read, decode and resize"]]
    rate = found["images a second to Parquet"]
    assert figures("batch.md", rf"\| two cores, `{decoder}` \| JPEG 1024 x 1024 \| ([\d.]+) \|") == [rate]


@pytest.mark.parametrize(
    ("heading", "suite", "protocol", "groups", "column"),
    [
        ("Photos", "natural", "matched", ("near", "far", "covariate"), 0),
        ("Solar cells", "solar", "matched", ("near", "covariate"), 0),
        ("Other domains", "chest-xray", "matched", ("far", "covariate"), 0),
        ("Other domains", "brain-mri", "matched", ("far", "covariate"), 2),
        ("Preprocessing", "natural-protocols", "matched", ("covariate",), 0),
        ("Preprocessing", "natural-protocols", "paper", ("covariate", "control"), 1),
        ("Preprocessing", "solar-protocols", "matched", ("covariate",), 3),
        ("Preprocessing", "solar-protocols", "paper", ("covariate", "control"), 4),
    ],
)
def test_the_tables_of_the_benchmark(
    heading: str, suite: str, protocol: str, groups: tuple[str, ...], column: int
) -> None:
    found = results(suite)["protocols"][protocol]
    values = {**found["means"], "control": {name: {"auroc": each} for name, each in found["control"].items()}}
    rows = {label: numbers for label, numbers in table("results.md", heading).items() if label in METHODS}
    assert len(rows) >= 6
    for label, numbers in rows.items():
        method = METHODS[label].replace("HEAD", "components:place=no" if "natural" in suite else "components")
        expected = [100 * values[group][method]["auroc"][0] for group in groups]
        assert numbers[column : column + len(groups)] == pytest.approx(expected, abs=0.051), label


@pytest.mark.parametrize(("suite", "head"), [("natural", "components:place=no"), ("solar", "components")])
def test_the_table_of_the_readme(suite: str, head: str) -> None:
    rows = {
        "natural": {"photos, 19 corruptions x 5 severities": "covariate", "textures and cartoons among photos": "near"},
        "solar": {
            "solar cells, 19 corruptions x 5 severities": "covariate",
            "solar cells with real defects, fitted on 600": "near",
        },
    }
    for label, group in rows[suite].items():
        found = results(suite)["protocols"]["matched"]["means"][group]
        means = {name: 100 * each["auroc"][0] for name, each in found.items()}
        best = max(value for name, value in means.items() if BASELINE.match(name))
        expected = [means[f"discopatch/{head}"], means[f"resnet50/{head}"], best, means["paper-v1-64/sigmoid"]]
        assert table("../README.md", "How good it is")[label] == pytest.approx(expected, abs=0.051)


def test_the_figures_of_calibration_and_damaged_files() -> None:
    sizes = results("calibration")["fit size"]["sizes"].values()
    for head in ("components", "combined", "statistics"):
        found = table("calibration.md", "How many images")[f"{head} head"]
        assert found == pytest.approx([100 * each[head][0] for each in sizes], abs=0.051)
    normal = [each for each in results("folder-gate")["shares"] if each["kind"] == "normal"]
    for n in (9, 19, 99, 199):
        shares = {each["images"]: each for each in normal if each["n"] == n}
        expected = [*(100 * shares[images]["folder"] for images in (1, 10, 100, 1000)), 100 * shares[100]["any"]]
        assert table("calibration.md", "Folders")[str(n)] == pytest.approx(expected, abs=0.051)
    damaged = list(table("robustness.md", "Changed and damaged files").values())[1:]
    for numbers, kind in zip(damaged, results("fuzz")["kinds"].values(), strict=True):
        refused = sum(count for name, count in kind["counts"].items() if "refused" in name)
        expected = [2000, refused, 2000 - refused, len(kind["other"]), kind["most_bytes"] / 1e6]
        assert numbers == pytest.approx(expected, abs=0.5)


def test_every_figure_of_the_performance_page_is_stored_with_its_machine() -> None:
    text = plain("performance.md")
    for each in results("performance"):
        assert {"date", "machine", "command"} < each.keys()
        for words, numbers in each["stated"].items():
            stated = words.format(*numbers)
            assert text.count(stated) == 1, stated
            text = text.replace(stated, "")
    assert not re.findall(r"\d (?:ms|s|seconds|%|[MG]i?B|images/s|times)\b|\| [\d.,]+ \|", text)


def test_the_figures_of_decoders() -> None:
    gpu, photos = results("gpu-decode"), results("decoders")["sets"]["photos, JPEG of 1024 x 1024"]
    fitted = {"`nvimgcodec`, read with `pillow`": gpu["parity"][0], "`pillow`, read with `scaled`": photos["parity"]}
    for pair, parity in fitted.items():
        found = table("images.md", "Decoders")[f"fitted with {pair}"]
        assert found[:2] == pytest.approx([parity["mean_difference"], parity["max_difference"]], rel=0.05)
    found = figures("images.md", r"\(([\d.]+) against ([\d.]+) at severity 1, ([\d.]+) against ([\d.]+) at severity 3")
    means = [mean(photos["auroc"][decoder][level].values()) for level in "13" for decoder in ("scaled", "pillow")]
    assert found == pytest.approx(means, abs=0.00006)
    rates = {(each["side"], each["until"]): each["images/s"] for each in gpu["stream"] if each["decoder"] != "scaled"}
    runs = [(1024, "Parquet, 1 process"), (1024, "Parquet, 2 processes"), (256, "Parquet, 4 processes")]
    found = figures("batch.md", r"184 kB \| ([\d,]+) \|.* GPU \| \| ([\d,]+) \|.* 20 kB \| ([\d,]+) \|")
    assert found == pytest.approx([rates[each] for each in runs], rel=0.005)


def test_the_figures_of_the_papers_recipe_and_of_slips() -> None:
    rows, curve = table("results.md", "The paper's recipe"), results("paper-curve")["steps"]
    for label, group, score in (
        ("the paper's score: near", "near", "discopatch-64/sigmoid"),
        ("far", "far", "discopatch-64/sigmoid"),
        ("corrupted", "covariate", "discopatch-64/sigmoid"),
        ("combined head, dense: near", "near", "discopatch/combined"),
    ):
        expected = [100 * curve[steps]["auroc"][group][score][0] for steps in ("1000", "2000", "4000", "8000")]
        assert rows[label] == pytest.approx(expected, abs=0.051), label
    found, paper = results("slips")["protocols"], "paper-v1-64/sigmoid"
    slips = ("pixel-range", "single-patches", "corners")
    names = {
        "none": "paper",
        "all three": "+".join(("paper", *slips)),
        **{f"`{each}`": f"paper+{each}" for each in slips},
    }
    for label, name in names.items():
        expected = [found[name]["means"][group][paper]["auroc"][0] for group in ("near", "far", "covariate")]
        expected.append(found[name]["control"][paper][0])
        assert table("results.md", "Preprocessing")[label] == pytest.approx(
            [100 * each for each in expected], abs=0.051
        )


def test_the_figures_of_smaller_runs() -> None:
    heads = results("natural-heads")["protocols"]["matched"]["means"]["covariate"]
    names = ("resnet50/statistics", "resnet50/combined", "discopatch/combined", "discopatch/components")
    pattern = (
        r"rises from ([\d.]+) with the statistics head to ([\d.]+) with the .* ours has ([\d.]+) and, .*?, ([\d.]+) \("
    )
    expected = [100 * heads[name]["auroc"][0] for name in names]
    assert figures("results.md", pattern) == pytest.approx(expected, abs=0.051)
    peers = {name: 100 * mean(each["3"].values()) for name, each in results("peers")["auroc"].items()}
    pattern = r"ours ([\d.]+), PyOD 3.6.7's kNN ([\d.]+) on .* and ([\d.]+) on ResNet-50, cleanvision 0.3.7 ([\d.]+)\."
    names = (
        "discopatch, as it comes",
        "PyOD's KNN, features of our network",
        "PyOD's KNN, features of ResNet-50",
        "cleanvision",
    )
    assert figures("results.md", pattern) == pytest.approx([peers[name] for name in names], abs=0.051)
