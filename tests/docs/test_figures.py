"""Figures on the pages, beside the JSON files that they come from.

docs/results/sources.json says where each figure of a sentence or table comes from. performance.json and trials.json are
records of runs: they have the figures themselves.
"""

import json
import re
from functools import cache
from itertools import product
from statistics import mean, stdev
from typing import Any

import pytest
from scipy.stats import t

from discopatch.calibration import Guarantee, images_needed
from discopatch.pretrained import PRETRAINED, model_card
from tests.docs.blocks import ROOT, Page, numbers, pages

BASELINE = r"(resnet50|efficientnet-lite0)/(?!components|combined|statistics)"
FURTHER = {"speckle_noise", "gaussian_blur", "spatter", "saturate"}  # ImageNet-C's four besides the fifteen
CONSTANTS = (  # no measurement: rates and levels of intervals, limits, settings, versions, figures of others
    r"(?<![\d.])(?:1|2|5|10|95|99)(?:, \d| and \d+)* %",
    r"(?:Python|Pillow|torch|BY) \d+\.\d+(?: to \d\.\d+)?|(?:sharpness|[Ss]hrinkage|slope|delta|than) 0\.\d+|, 0\.7",
    r"(?:after|upload of) (?:at most|more than) \d+ s(?:econds)?|every 30 seconds|\| 60 s|(?:up to 20|wide, 16) times",
    r"(?:64|128|256) MiB|2 GiB|131 kB|(?:above|up to) 1\d?\.\d GB|of 196 kB|of 1 GB\)|300 MB more",
    r"[Aa]bout 0\.5 %|up to (?:4|30) %|least 74 %|finds 90 %|p-value of 0\.05|(?:be|AUROC,) 0\.5|off by 0\.5 sd",
    r"76\.4 on the 15 common corruptions and 75\.1 on|0\.0001(?: to 0\.1)?",
    r"0\.55 to 0\.9|1\.28 million|128 points|AUROC of 97\.2 .* 99\.1 on three|\(0\.9, 0\.999\)|fitted on 600: 89\.0",
)


@cache
def results(name: str) -> Any:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())


def value(path: Any) -> Any:
    """What a path leads to, such as `100 * calibration: storage / as they come / combined / 0`; a number is itself.

    A step is a key, a number, or what an entry of a list has. Files may be pages, with heading, row and cell.
    """
    if not isinstance(path, str):
        return path
    factor, _, rest = path.rpartition(" * ")
    name, _, keys = rest.partition(": ")
    steps = keys.split(" / ")
    if name.endswith(".md"):
        page, heading, label, *steps = Page(name), *steps
        cells = page.lines[page.find_row(heading, label)].strip("|").split("|")
        found: Any = [[float(each.replace(",", "")) for each in numbers(cell)] for cell in cells]
    else:
        found = computed() if name == "computed" else model_card(name) if name in PRETRAINED else results(name)
    for step in steps:
        if isinstance(found, dict):
            found = found[step]
        elif step.isdigit():
            found = found[int(step)]
        else:
            wanted = [each.split("=", 1) for each in step.split("; ")]
            (found,) = (each for each in found if all(str(each[key]) == text for key, text in wanted))
    if isinstance(found, str):  # such as "93.0 [91.3, 94.7]"
        found = [float(each) for each in numbers(found)]
    if not factor:
        return found
    return [float(factor) * each for each in found] if isinstance(found, list) else float(factor) * found


def values(paths: Any) -> list[float]:
    """The numbers of a cell, or of a sentence."""
    found = [value(path) for path in (paths if isinstance(paths, list) else [paths])]
    return [number for each in found for number in (each if isinstance(each, list) else [each])]


def auroc(suite: str, protocol: str, group: str, method: str) -> float:
    found = results(suite)["protocols"][protocol]
    return float(100 * (found["control"][method] if group == "control" else found["means"][group][method]["auroc"])[0])


def slip(*slips: str) -> list[float]:
    """Near, far, corrupted and uncorrupted photos with the slips."""
    groups = ("near", "far", "covariate", "control")
    return [auroc("slips", "+".join(("paper", *slips)), group, "paper-v1-64/sigmoid") for group in groups]


def seeds(kind: str, group: str, score: str) -> list[float]:
    """AUROC x 100 of five seeds of a recipe."""
    found = results("studies")["evaluation"]
    return [100 * found[f"{kind}-{seed}"]["groups"][group][score][0] for seed in range(5)]


@cache
def computed() -> dict[str, Any]:
    """Figures that no file has as they are, by name."""
    found: dict[str, Any] = {}
    for n, rate in ((9, 0.1), (19, 0.05), (199, 0.01)):
        found[f"likely rates, {n}"] = [100 * each for each in Guarantee(1, n, rate).likely_rates]
    for n in (99, 199, 999):
        runs = [each for name, each in results("monitoring").items() if name.startswith(f"false/{n}/continuous/")]
        assert sum(each["streams"] for each in runs) == 2000
        names = ("monitor 0.01", "monitor 0.05", "textbook 0.01")
        found[f"false alarms, {n}"] = [sum(each[name] for each in runs) / 20 for name in names]
    for name, each in results("monitoring")["compare"].items():
        found[f"false alarms, {name}"] = 100 * each["false"] / each["streams"]
    memory = [each["MiB"] for each in results("scale")["images"]["moments"]]
    found["memory"] = [min(memory), max(memory)]
    cores, gpu = ([mean(runs) for runs in each["seconds"].values()] for each in results("ray-overhead").values())
    found["overhead of Ray"] = [*(100 * (each / cores[0] - 1) for each in cores[1:]), gpu[1] - gpu[0]]
    best = value("gpu-decode: stream / side=1024; until=Parquet, 2 processes / images/s")
    rates = [value(f"scale: decoders / {name} / images a second to Parquet") for name in ("scaled", "pillow")]
    found["a billion images"] = [1e9 / best / 3600, *(2e9 / rate / 3600 for rate in rates)]
    found["GB/s to each GPU"] = value("gpu-decode: made / bytes a file / 1024") * best / 1e9
    decoded = results("decoders")["sets"]["photos, JPEG of 1024 x 1024"]["auroc"]
    means = [mean(decoded[decoder][level].values()) for level in "13" for decoder in ("scaled", "pillow")]
    found["decoders"] = [100 * max(means[1] - means[0], means[3] - means[2]), *means]
    for kind, each in results("fuzz")["kinds"].items():
        refused = sum(count for name, count in each["counts"].items() if "refused" in name)
        found[f"damaged, {kind}"] = [2000, refused, 2000 - refused, len(each["other"]), each["most_bytes"] / 1e6]
    found["kills"] = sum(each["kills"] for each in results("kills")["commands"].values())
    none, pixels, corners = slip(), slip("pixel-range"), slip("corners")
    found["pixel range"] = [pixels[i] - none[i] for i in (2, 3)]
    found["corners"] = max(abs(one - other) for one, other in zip(corners, none, strict=True))
    kinds = [auroc("natural-protocols", each, "covariate", "paper-v1-64/sigmoid") for each in ("matched", "paper")]
    found["the paper's protocol"] = kinds[1] - kinds[0]
    alone, both = value("docs/training.md: Training / `paper` / 2")
    found["parameters of the VAE"] = both - alone
    found["corrupted solar cells at most"] = 100 * (18 + 0.7) / 19  # grey: chance in three of five severities of one
    found["spread of seeds"] = [stdev(seeds("paper", "covariate", score)) for score in ("patches", "combined")]
    for kind in (("covariate", "combined"), ("covariate", "patches"), ("near", "combined")):
        gains = [one - other for one, other in zip(seeds("natural", *kind), seeds("paper", *kind), strict=True)]
        width = t.ppf(0.975, 4) * stdev(gains) / 5**0.5
        found[f"gain, {' '.join(kind)}"] = [mean(gains), mean(gains) - width, mean(gains) + width]
    counts = [run["counts"] for run in results("studies")["patch counts"].values()]
    curves = [[each[n]["covariate"] for n in ("32", "64", "128", "512")] for each in counts]
    series = [[each[score][0] for each in curve] for curve in curves for score in curve[0]]
    found["patch counts"] = 100 * max(max(each) - min(each) for each in series)
    levels = [
        results("natural-networks")["protocols"]["matched"]["severities"][f"{network}/components:place=no"]
        for network in ("natural-v3", "resnet50")
    ]
    found["ahead at severity 1"] = 100 * (levels[0]["1"]["auroc"][0] - levels[1]["1"]["auroc"][0])
    for suite, group in product(("natural", "solar"), ("near", "covariate")):
        means = results(suite)["protocols"]["matched"]["means"][group]
        best = max(100 * each["auroc"][0] for name, each in means.items() if re.match(BASELINE, name))
        paper = 100 * means["paper-v1-64/sigmoid"]["auroc"][0]
        if suite == "natural":
            means = results("natural-networks")["protocols"]["matched"]["means"][group]
        network, head = ("natural-v3", "components:place=no") if suite == "natural" else ("discopatch", "components")
        ours, resnet = (100 * means[f"{each}/{head}"]["auroc"][0] for each in (network, "resnet50"))
        found[f"readme, {suite} {group}"] = [ours, resnet, best, paper]
    corruptions = results("natural")["protocols"]["matched"]["corruptions"]
    for suite, method in (("natural", "paper-v1-64/sigmoid"), ("natural-networks", "natural-v3/components:place=no")):
        kinds = results(suite)["protocols"]["matched"]["corruptions"]
        found[f"as on COCO, {method}"] = [
            100 * mean(level[method]["auroc"][0] for name in names for level in kinds[name].values())
            for names in ([*kinds.keys() - FURTHER], FURTHER)
        ]
    others = ("impulse_noise", "glass_blur", "motion_blur", "zoom_blur", "snow", "frost", "contrast")
    for network in ("discopatch", "resnet50"):
        levels = [level[f"{network}/components:place=no"] for other in others for level in corruptions[other].values()]
        found[f"unlike the training, {network}"] = mean(level["auroc"][0] for level in levels)
    files = [ROOT / f"src/discopatch/pretrained/{name}.safetensors" for name in PRETRAINED]
    found["MB of weights"] = [file.stat().st_size / 1e6 for file in files]
    found["MB of all weights"] = sum(found["MB of weights"])
    held_out = {rate: images_needed(rate) for rate in (0.1, 0.05, 0.02, 0.01)}
    found["smallest rates"] = {str(max(30, n + max(n, 20))): [rate, n] for rate, n in held_out.items()}
    for images in ("photos", "solar cells"):
        for kind, each in results("reasons")[images]["by images given"]["89"]["degraded"]["first reasons"].items():
            found[f"no reason, {images}, {kind}"] = 100 * each.get("none", 0) / sum(each.values())
    return found


@pytest.mark.parametrize("name", [each for each in pages() if each == "README.md" or each.startswith("docs/")])
def test_each_measured_number_of_a_page_is_stored(name: str) -> None:
    page = Page(name)
    for entry in (*results("sources"), *results("performance"), *results("trials")):
        if entry["page"] == name:
            for words, paths in entry.get("stated", {}).items():
                page.says(words, values(paths))
            if "columns" in entry:
                assert " ".join(f"| {' | '.join(entry['columns'])} |".split()) in page.lines
            for label, *cells in entry.get("rows", ()):
                page.has_row(entry["section"], label, [values(cell) if cell is not None else [] for cell in cells])
            for label, row in value(entry["table"]).items() if "table" in entry else ():
                texts = [numbers(cell) for cell in row.values()]
                page.has_row(entry["section"], label, [list(map(float, each)) for each in texts])
    assert not page.left_over(CONSTANTS)


def test_each_record_names_its_section_and_what_was_run_when_and_where() -> None:
    for entry in (*results("sources"), *results("performance"), *results("trials")):
        assert Page(entry["page"]).section(entry["section"]), entry
    for entry in (*results("performance"), *results("trials")):
        assert {"date", "machine", "command"} < entry.keys()


def test_the_service_lost_no_answer_in_the_soak() -> None:
    soak = results("soak")
    assert soak["unexpected"] == []
    assert not any(soak[name] for name in ("answered, not in the history", "more than once in the history"))
    assert [name for name in soak["statuses"] if re.search(": 5..", name)] == ["ready: 503"]
    assert results("ray-interruptions")["equal rows"] == results("ray-interruptions")["images"]
