"""Invented results as a real run leaves them: many methods, near and far sets, corruptions, two protocols, five seeds.

Behind every figure stands a distance between two normal distributions, so that figures and scores agree.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discopatch.corruptions import CORRUPTIONS

Array = NDArray[np.float64]
Results = dict[str, Any]

BACKBONES = {"resnet50": (25_557_032, 61.0), "efficientnet-lite0": (4_652_008, 18.0)}
SCORES = ("msp", "maxlogit", "energy", "ash", "scale", "nnguide", "rankfeat", "fdbd", "vim", "mahalanobis", "knn")
SETS = {
    "textures": "near",
    "sketches": "near",
    "cartoons": "near",
    "chest-xray": "far",
    "brain-mri": "far",
    "steel": "far",
    "receipts": "far",
    "photos-227px": "control",
}
SEVERITIES = ("1", "2", "3", "4", "5")
METRICS = ("auroc", "fpr95", "fpr95_in", "aupr_in", "aupr_out")
IMAGES = 150
TEST = 450
REFERENCE = "discopatch/combined"
NORMAL = NormalDist()


def make_results(seed: int = 0) -> Results:
    """Everything that results can hold."""
    rng = np.random.default_rng(seed)
    methods = make_methods()
    return {
        "format": 2,
        "suite": "natural",
        "made": {
            "discopatch": "0.1.0",
            "device": "2 cores of a CPU",
            "python": "3.11.2",
            "torch": "2.13.0",
            "numpy": "2.4.6",
            "seconds": 812,
            "seeds": [0, 1, 2, 3, 4],
            "weights digest": "00ff00ff00ff00ff",
            "transform digest": "ff00ff00ff00ff00",
        },
        "sizes": {"fit": 2000, "test": TEST},
        "data": {protocol: make_data(protocol) for protocol in ("matched", "paper")},
        "methods": methods,
        "protocols": {
            protocol: make_protocol(list(methods), shift, rng)
            for protocol, shift in (("matched", 0.05), ("paper", 0.4))
        },
    }


def make_methods() -> Results:
    """Our heads dense and at patches, then every score on two backbones."""
    ours = {f"discopatch/{head}": (None, 137.0) for head in ("combined", "statistics", "logit", "knn", "local")}
    patches = {f"discopatch-{count}/logit": (count, 30 + 14.0 * count) for count in (64, 4, 16)}
    found: Results = {
        name: {"encoder": name.split("/")[0], "digest": digest(name), "parameters": 6_218_753, "milliseconds": time}
        | {"patches": count}
        for name, (count, time) in (ours | patches).items()
    }
    for encoder, (parameters, time) in BACKBONES.items():
        for place, score in enumerate((*SCORES, "local", "statistics", "combined")):
            found[f"{encoder}/{score}"] = {
                "encoder": encoder,
                "digest": digest(encoder),
                "parameters": parameters,
                "milliseconds": time + 0.3 * place,
                "patches": None,
            }
    return found


def make_data(protocol: str) -> Results:
    """Of the sets, their controls, and the corrupted images."""
    names = {"fit": 2000, "test": TEST, "control corrupted": TEST} | dict.fromkeys(SETS, IMAGES)
    names |= {f"control {name}": TEST for name in SETS}
    names |= {f"{name}/{severity}": TEST for name in CORRUPTIONS for severity in SEVERITIES}
    steps = [{"resize": {"size": 256, "fit": "crop"}}]
    return {name: {"images": count, "digest": digest(protocol + name), "way": steps} for name, count in names.items()}


def make_protocol(methods: list[str], shift: float, rng: np.random.Generator) -> Results:
    """`shift` is how far the preprocessing of another set moves the scores of normal images."""
    sets: Results = {}
    for name, group in SETS.items():
        distance = {"near": 1.3, "far": 2.6, "control": 0.0}[group] + rng.normal(0, 0.4) * (group != "control")
        found = {}
        for method in methods:
            moved = shift * rng.uniform(0.2, 2.0)
            moved_by = skill(method, group) * distance + moved + rng.normal(0, 0.15)
            found[method] = metrics(moved_by) | {
                "control": figure(auroc(moved), 0.02),
                "route_matched": figure(auroc(moved_by - moved), 0.02),
            }
        sets[name] = {"group": group, "images": IMAGES, "methods": found}
    corruptions: Results = {}
    for place, name in enumerate(CORRUPTIONS):
        ease = 0.3 + 0.12 * (place % 7)
        corruptions[name] = {
            severity: {
                method: metrics(skill(method, "covariate") * ease * int(severity) + shift + rng.normal(0, 0.1))
                for method in methods
            }
            for severity in SEVERITIES
        }
    groups = {group: [each["methods"] for each in sets.values() if each["group"] == group] for group in ("near", "far")}
    groups["covariate"] = [cell for levels in corruptions.values() for cell in levels.values()]
    means = {
        group: {method: mean(cell[method] for cell in cells) for method in methods} for group, cells in groups.items()
    }
    return {
        "sets": sets,
        "corruptions": corruptions,
        "control": {method: figure(auroc(shift * rng.uniform(0.2, 2)), 0.02) for method in methods},
        "means": means,
        "severities": {
            method: {
                severity: mean(levels[severity][method] for levels in corruptions.values()) for severity in SEVERITIES
            }
            for method in methods
        },
        "differences": {group: differences(found) for group, found in means.items()},
        "reference": REFERENCE,
        "seeds": {
            group: {
                method: {metric: [found[method][metric][0], rng.uniform(0.001, 0.01)] for metric in METRICS}
                for method in methods
            }
            for group, found in means.items()
        },
    }


def without(part: Any, names: Collection[str]) -> Any:
    """The same results, in which these methods, sets or groups never were."""
    if isinstance(part, dict):
        return {key: without(each, names) for key, each in part.items() if key not in names}
    return part


def only(results: Results, methods: Collection[str]) -> Results:
    """The same results with few methods."""
    found: Results = without(results, [name for name in results["methods"] if name not in methods])
    return found


def skill(method: str, group: str) -> float:
    """How well the method does there, between 0.3 and 1.4."""
    ours = method.startswith("discopatch")
    chance = int(digest(f"{method} {group}")[:4], 16) / 2**16
    if group == "covariate":
        return (0.9 if ours else 0.3) + 0.5 * chance
    return (0.6 if ours else 0.5) + 0.8 * chance


def metrics(distance: float) -> Results:
    """All five of two normal distributions so far apart."""
    found = auroc(distance)
    false_alarms = NORMAL.cdf(NORMAL.inv_cdf(0.95) - distance)
    values = (found, false_alarms, false_alarms, found**0.8, found**1.4)
    return {name: figure(value, 0.02) for name, value in zip(METRICS, values, strict=True)}


def auroc(distance: float) -> float:
    return NORMAL.cdf(distance / np.sqrt(2))


def figure(value: float, half: float) -> list[float]:
    return [value, max(0.0, value - half), min(1.0, value + half)]


def mean(found: Iterable[Mapping[str, list[float]]]) -> Results:
    cells = list(found)
    return {name: np.mean([cell[name] for cell in cells], axis=0).tolist() for name in cells[0]}


def differences(found: Results) -> Results:
    ours = found[REFERENCE]
    return {
        method: {name: [d := ours[name][0] - each[name][0], d - 0.01, d + 0.01] for name in METRICS}
        for method, each in found.items()
        if method != REFERENCE
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SampleScores:
    """Scores that give about the figures of the results, of as many images as they say."""

    results: Results
    seed: int = 0

    def read(self, protocol: str, name: str) -> dict[str, Array]:
        """By seed and method; for a set that was not scored there are none."""
        rng = np.random.default_rng([self.seed, int(digest(protocol + name), 16)])
        found = self.results["protocols"][protocol]
        if name == "test":
            return {f"0:{method}": rng.normal(size=TEST) for method in self.results["methods"]}
        if name in found["sets"]:
            cells, images = found["sets"][name]["methods"], IMAGES
        else:
            corruption, _, severity = name.partition("/")
            cells, images = found["corruptions"].get(corruption, {}).get(severity, {}), TEST
        return {
            f"0:{method}": rng.normal(np.sqrt(2) * NORMAL.inv_cdf(min(cell["auroc"][0], 0.9999)), size=images)
            for method, cell in cells.items()
        }


def make_features(seed: int = 0, *, images: int = 150, channels: int = 1024) -> dict[str, NDArray[np.float32]]:
    """Mean features of each set around a centre of its own; near sets lie near."""
    rng = np.random.default_rng(seed)
    step = {"near": 0.25, "far": 0.9, "control": 0.0}
    centres = {"test": 0.0 * rng.normal(size=channels)}
    centres |= {name: step[group] * rng.normal(size=channels) for name, group in SETS.items()}
    return {name: (centre + rng.normal(size=(images, channels))).astype(np.float32) for name, centre in centres.items()}
