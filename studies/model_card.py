"""The cards of the pretrained weights, src/discopatch/pretrained/NAME.json, from the weights and docs/results/.

python studies/model_card.py
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from common import check_digests
from discopatch.bench.methods import OURS
from discopatch.corruptions.degradations import SIMILAR_CORRUPTIONS
from discopatch.model import Weights
from discopatch.pretrained import DEFAULT_WEIGHTS, FIRST_WEIGHTS, PAPER_WEIGHTS, SMALL_WEIGHTS, load_pretrained
from discopatch.utils import write_json

Results = Mapping[str, Any]

CARDS = Path("src/discopatch/pretrained")
RESULTS = Path("docs/results")
HEADS = ("components", "combined", "statistics", "logit")
TRAINED_AGAINST = frozenset(chain.from_iterable(SIMILAR_CORRUPTIONS.values()))  # corruptions like a degradation

FIRST_SOURCES = {
    "ajschumacher/imagen (ImageNet-like photos)": "research use",
    "BSDS500": "research use",
    "Caltech-101": "research use",
    "dog-cat-full-dataset (pets)": "research use",
    "Flower-Classifier (Oxford-102 flowers)": "research use",
    "alexeygrigorev/clothing-dataset": "free for any use",
    "GroceryStoreDataset": "MIT",
    "Houses-dataset": "research use",
    "PlantDoc": "CC BY 4.0",
    "Flickr8k (sic_translator)": "research use",
}
MORE_SOURCES = {
    "alexeygrigorev/clothing-dataset": "CC0 1.0",
    "marcusklasson/GroceryStoreDataset": "MIT",
    "Oldpel/flower_photos": "CC BY 2.0, as its first publication lists them",
    "MiguelARD/DoorDetect-Dataset (those of Open Images V4)": "CC BY 2.0, as Open Images lists them",
    "AlexOlsen/DeepWeeds": "CC BY 4.0",
    "m0-n/Plastic-Bottles-Dataset": "public domain",
    "fruits-360/fruits-360-multi": "CC BY-SA 4.0",
    "FarmBot-Docs/farmbot-genesis": "MIT",
    "lewisevans2007/image_dataset": "public domain (Unlicense)",
    "photos of animals from Wikimedia Commons (ezfibuilds/NPC-Thought-Starter-Generator)": "CC BY-SA, CC BY, CC0",
    "UbuntuBudgie/budgie-wallpapers": "CC BY-SA 4.0 and 3.0",
    "LukeSmithxyz/based.cooking": "public domain",
    "fsfe/fsfe-website": "CC BY-SA 4.0",
    "raspberrypi/documentation": "CC BY-SA 4.0",
    "k88hudson/wouldeatagain": "CC BY-SA 4.0",
    "tetiana-kolmychek/oceanic-awesomewm-theme (Pexels)": "CC0, as stated there",
    "galaxyproject/galaxy-hub": "CC BY 4.0",
    "ronaldl29/public-domain-recipes": "public domain",
    "riesinger/nononsensecooking": "CC BY 4.0",
    "jenkins-infra/jenkins.io": "CC BY-SA 4.0",
}
BEGINNING = {
    "what": "the blocks of EfficientNet-Lite0, trained by its authors on ImageNet",
    "from": "tensorflow/tpu, models/official/efficientnet/lite",
    "licence": "Apache-2.0, see NOTICE",
}
# The settings that the weights carry, under the names that they have today.
RENAMED = {
    "weight_spoiled": "weight_degraded",
    "weight_named": "weight_classified",
    "weight_taught": "weight_distilled",
    "smallest_scale": "min_scale",
    "forgeries": "vae",
}
FIRST_RUN = {
    "what": "preset natural with the VAE, images not shrunk",
    "steps": 7814,
    "images": 64,
    "patches": 16,
    "learning_rate": 3e-4,
    "decay": 0.3,
    "weight_degraded": 1.0,
    "weight_classified": 0.5,
    "seed": 0,
}


def main() -> None:
    """Writes the cards; figures that belong to other weights are an error."""
    full = {"solar": read("solar"), "natural": read("natural"), "calibration": read("calibration")}
    check_digests(load_pretrained().digest, full)
    trained = "begun as EfficientNet-Lite0, its layers held where nothing is degraded"
    write_card(DEFAULT_WEIGHTS, card_figures(**full), [BEGINNING, trained], photos=13848, more=MORE_SOURCES)
    older = (
        (FIRST_WEIGHTS, "v1", "float16", [FIRST_RUN, "without the VAE, images shrunk"]),
        (SMALL_WEIGHTS, "small", "float32", [f"distilled from {FIRST_WEIGHTS}, without the VAE, images shrunk"]),
    )
    for name, suffix, stored_as, runs in older:
        measured = {suite: read(f"work-{suite}-{suffix}") for suite in ("solar", "natural")}
        check_digests(load_pretrained(name).digest, measured)
        write_card(name, work_figures(**measured), runs, stored_as=stored_as)
    write_card(PAPER_WEIGHTS, paper_figures(), ["the paper's recipe"])


def read(name: str) -> Results:
    results: Results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def paper_figures() -> dict[str, Any]:
    """Those of the curve's last step."""
    weights, curve = load_pretrained(PAPER_WEIGHTS), read("paper-curve")
    last = curve["steps"][str(weights.origin["step"])]
    if last["weights digest"] != weights.digest:
        raise SystemExit(f"the curve ends with other weights than {PAPER_WEIGHTS}")
    return {
        "made_by": "python studies/paper_curve.py run",
        "steps": weights.origin["step"],
        "natural, corruptions at severity 3, by group and method": last["auroc"],
    }


def write_card(
    name: str,
    figures: Mapping[str, Any],
    runs: list[Any],
    *,
    stored_as: str = "float16",
    photos: int = 6256,
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """One card; the last of the runs is the one whose settings the weights carry."""
    weights = load_pretrained(name)
    discriminator = weights.discriminator
    card = {
        "name": name,
        "weights_digest": weights.digest,
        "transform_digest": weights.transform.digest,
        "transform": weights.transform.to_dict(),
        "architecture": discriminator.architecture.to_dict(),
        "parameters": sum(parameter.numel() for parameter in discriminator.parameters()),
        "stored_as": stored_as,
        "data": {
            "photos": photos,
            "held_out_for_choices": photos // 15,
            "digest": weights.origin["data_digest"],
            "stored": "short side 256, antialiased bicubic, centre crop, JPEG quality 92",
            "sources": {**FIRST_SOURCES, **more},
        },
        "training": training_runs(weights, runs),
        "made_with": {each: weights.origin[each] for each in ("torch", "python", "discopatch")},
        "figures": figures,
    }
    write_json(CARDS / f"{name}.json", card)


def training_runs(weights: Weights, runs: list[Any]) -> list[Any]:
    """The last of the runs with the settings that the weights carry, which were called a recipe once."""
    settings = weights.origin.get("config") or weights.origin["recipe"]
    return [*runs[:-1], {"what": runs[-1], **{RENAMED.get(key, key): value for key, value in settings.items()}}]


def card_figures(solar: Results, natural: Results, calibration: Results) -> dict[str, Any]:
    """AUROC as [mean, low end, high end] of the 95 % interval; false alarms as shares."""
    matched = natural["protocols"]["matched"]
    reference = matched["reference"]
    sets = {name: each["methods"][reference] for name, each in matched["sets"].items() if reference in each["methods"]}
    return {
        "made_by": "discopatch bench --suite natural, --suite solar; python studies/calibration_check.py measure",
        "solar, 19 corruptions x 5 severities": by_head(solar, "covariate"),
        "solar, defective cells": by_head(solar, "near"),
        "natural, 19 corruptions x 5 severities": by_head(natural, "covariate"),
        "natural, corruptions unlike any training degradation, mean alone": unlike_degradations(natural),
        "other sets, components": {name: each["auroc"] for name, each in sets.items()},
        "other sets, preprocessing control, components": {name: each["control"] for name, each in sets.items()},
        "false alarms, components": {
            suite: {rate: each["pooled"] for rate, each in heads["components"].items()}
            for suite, heads in calibration["false alarms"].items()
        },
    }


def work_figures(solar: Results, natural: Results) -> dict[str, Any]:
    """The same of weights that are measured on fewer images and at one severity."""
    suites = {"solar": solar, "natural": natural}
    return {
        "made_by": "discopatch bench, see studies/work_curve.py",
        **{f"{suite}, 19 corruptions at severity 3": by_head(each, "covariate") for suite, each in suites.items()},
        **{f"{suite}, near sets": by_head(each, "near") for suite, each in suites.items()},
    }


def methods_by_head(found: Mapping[str, Any]) -> dict[str, str]:
    """Our method of each head among those that are there; photos have components without places."""
    names = {head: [f"{OURS}/{head}", f"{OURS}/{head}:place=no"] for head in HEADS}
    return {head: name for head, both in names.items() for name in both if name in found}


def by_head(results: Results, group: str) -> dict[str, list[float]]:
    """The mean over all sets of the group."""
    means = results["protocols"]["matched"]["means"][group]
    return {head: means[name]["auroc"] for head, name in methods_by_head(means).items()}


def unlike_degradations(results: Results) -> dict[str, float]:
    """The mean over those corruptions that the discriminator was not trained against, by head."""
    levels = [
        level
        for name, severities in results["protocols"]["matched"]["corruptions"].items()
        if name not in TRAINED_AGAINST
        for level in severities.values()
    ]
    return {
        head: round(mean(level[name]["auroc"][0] for level in levels), 5)
        for head, name in methods_by_head(levels[0]).items()
    }


if __name__ == "__main__":
    main()
