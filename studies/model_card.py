"""The cards of the pretrained weights, src/discopatch/pretrained/NAME.json, from the weights and docs/results/.

python studies/model_card.py
"""

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from common import check_digests
from discopatch.bench.methods import OURS, REFERENCE
from discopatch.corruptions.degradations import SIMILAR_CORRUPTIONS
from discopatch.model import Weights
from discopatch.pretrained import DEFAULT_WEIGHTS, PAPER_WEIGHTS, SMALL_WEIGHTS, load_pretrained
from discopatch.utils import write_json

Results = Mapping[str, Any]

CARDS = Path("src/discopatch/pretrained")
RESULTS = Path("docs/results")
HEADS = ("combined", "statistics", "logit")
TRAINED_AGAINST = frozenset(chain.from_iterable(SIMILAR_CORRUPTIONS.values()))  # corruptions like a degradation

SOURCES = {
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
    large = {"solar": read("solar"), "natural": read("natural"), "calibration": read("calibration")}
    write_card(DEFAULT_WEIGHTS, large, [FIRST_RUN, "without the VAE, images shrunk"], stored_as="float16")
    small = {"solar": read("work-solar-small"), "natural": read("work-natural-small")}
    distilled = f"distilled from {DEFAULT_WEIGHTS}, without the VAE, images shrunk"
    write_card(SMALL_WEIGHTS, small, [distilled], stored_as="float32")
    write_paper_card()


def read(name: str) -> Results:
    results: Results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def write_paper_card() -> None:
    """Its figures are those of the curve's last step."""
    weights, curve = load_pretrained(PAPER_WEIGHTS), read("paper-curve")
    last = curve["steps"][str(weights.origin["step"])]
    if last["weights digest"] != weights.digest:
        raise SystemExit(f"the curve ends with other weights than {PAPER_WEIGHTS}")
    facts = card_facts(PAPER_WEIGHTS, weights, training_runs(weights, ["the paper's recipe"]), "float16")
    figures = {
        "made_by": "python studies/paper_curve.py run",
        "steps": weights.origin["step"],
        "natural, corruptions at severity 3, by group and method": last["auroc"],
    }
    write_json(CARDS / f"{PAPER_WEIGHTS}.json", {**facts, "figures": figures})


def write_card(name: str, results: Mapping[str, Results], runs: list[Any], *, stored_as: str) -> None:
    """One card; the last of the runs is the one whose settings the weights carry."""
    weights = load_pretrained(name)
    check_digests(weights.digest, results)
    figures = card_figures(**results) if "calibration" in results else small_card_figures(**results)
    facts = card_facts(name, weights, training_runs(weights, runs), stored_as)
    write_json(CARDS / f"{name}.json", {**facts, "figures": figures})


def training_runs(weights: Weights, runs: list[Any]) -> list[Any]:
    """The last of the runs with the settings that the weights carry, which were called a recipe once."""
    settings = weights.origin.get("config") or weights.origin["recipe"]
    return [*runs[:-1], {"what": runs[-1], **{RENAMED.get(key, key): value for key, value in settings.items()}}]


def card_facts(name: str, weights: Weights, training: list[Any], stored_as: str) -> dict[str, Any]:
    """All but the figures."""
    discriminator = weights.discriminator
    return {
        "name": name,
        "weights_digest": weights.digest,
        "transform_digest": weights.transform.digest,
        "transform": weights.transform.to_dict(),
        "architecture": discriminator.architecture.to_dict(),
        "parameters": sum(parameter.numel() for parameter in discriminator.parameters()),
        "stored_as": stored_as,
        "data": {
            "photos": 6256,
            "held_out_for_choices": 417,
            "digest": weights.origin["data_digest"],
            "stored": "short side 256, antialiased bicubic, centre crop, JPEG quality 92",
            "sources": SOURCES,
        },
        "training": training,
        "made_with": {each: weights.origin[each] for each in ("torch", "python", "discopatch")},
    }


def card_figures(solar: Results, natural: Results, calibration: Results) -> dict[str, Any]:
    """AUROC as [mean, low end, high end] of the 95 % interval; false alarms as shares."""
    sets = {
        name: each["methods"][REFERENCE]
        for name, each in natural["protocols"]["matched"]["sets"].items()
        if REFERENCE in each["methods"]
    }
    return {
        "made_by": "discopatch bench --suite natural, --suite solar; python studies/calibration_check.py measure",
        "solar, 19 corruptions x 5 severities": by_head(solar, "covariate"),
        "natural, 19 corruptions x 5 severities": by_head(natural, "covariate"),
        "natural, corruptions unlike any training degradation, mean alone": unlike_degradations(natural),
        "other sets, combined": {name: each["auroc"] for name, each in sets.items()},
        "other sets, preprocessing control, combined": {name: each["control"] for name, each in sets.items()},
        "false alarms, combined": {
            suite: {rate: each["pooled"] for rate, each in heads["combined"].items()}
            for suite, heads in calibration["false alarms"].items()
        },
    }


def small_card_figures(solar: Results, natural: Results) -> dict[str, Any]:
    """The same of weights that were measured on fewer images and at one severity."""
    suites = {"solar": solar, "natural": natural}
    return {
        "made_by": "discopatch bench, see studies/work_curve.py",
        **{f"{suite}, 19 corruptions at severity 3": by_head(each, "covariate") for suite, each in suites.items()},
        **{f"{suite}, near sets": by_head(each, "near") for suite, each in suites.items()},
    }


def by_head(results: Results, group: str) -> dict[str, list[float]]:
    """The mean over all sets of the group."""
    means = results["protocols"]["matched"]["means"][group]
    return {head: means[f"{OURS}/{head}"]["auroc"] for head in HEADS}


def unlike_degradations(results: Results) -> dict[str, float]:
    """The mean over those corruptions that the discriminator was not trained against, by head."""
    levels = [
        level
        for name, severities in results["protocols"]["matched"]["corruptions"].items()
        if name not in TRAINED_AGAINST
        for level in severities.values()
    ]
    return {head: round(mean(level[f"{OURS}/{head}"]["auroc"][0] for level in levels), 5) for head in HEADS}


if __name__ == "__main__":
    main()
