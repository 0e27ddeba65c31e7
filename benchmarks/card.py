"""The cards of the released weights, from the weights and the figures in docs/results/ and docs/promises.json.

python benchmarks/card.py
"""

import json
from pathlib import Path
from typing import Any

from discopatch.benchmark.card import card_figures, check_digests, small_figures
from discopatch.files import write_json
from discopatch.model.weights import Weights
from discopatch.weights import DEFAULT, SMALL, released

RESULTS = Path("docs/results")
REPORTS = {
    DEFAULT: {
        "solar": RESULTS / "solar.json",
        "natural": RESULTS / "natural.json",
        "promises": Path("docs/promises.json"),
    },
    SMALL: {"solar": RESULTS / "work-solar-small.json", "natural": RESULTS / "work-natural-small.json"},
}
FIGURES = {DEFAULT: card_figures, SMALL: small_figures}
CARDS = Path("src/discopatch/weights")

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
FIRST_RUN = {
    "what": "preset natural with the forgeries of the VAE, pictures not shrunk",
    "steps": 7814,
    "images": 64,
    "patches": 16,
    "learning_rate": 3e-4,
    "decay": 0.3,
    "weight_spoiled": 1.0,
    "weight_named": 0.5,
    "seed": 0,
}


def main() -> None:
    """Writes the cards, refusing figures that belong to other weights."""
    write(DEFAULT, [FIRST_RUN, "without forgeries, pictures shrunk"], stored_as="float16")
    write(SMALL, [f"taught by {DEFAULT}, without forgeries, pictures shrunk"], stored_as="float32")


def write(name: str, runs: list[Any], *, stored_as: str) -> None:
    """One card; the last of the runs is the one whose recipe the weights carry."""
    weights = released(name)
    reports = {key: json.loads(path.read_text(encoding="utf-8")) for key, path in REPORTS[name].items()}
    check_digests(weights.digest, reports)
    figures: Any = FIGURES[name]
    training = [*runs[:-1], {"what": runs[-1], **weights.origin["recipe"]}]
    write_json(CARDS / f"{name}.json", {**facts(name, weights, training, stored_as), "figures": figures(**reports)})


def facts(name: str, weights: Weights, training: list[Any], stored_as: str) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
