"""The card of the released weights, from the weights and the figures in docs/results/ and docs/promises.json.

python benchmarks/card.py
"""

import json
from pathlib import Path

from discopatch.benchmark.card import card_figures, check_digests
from discopatch.files import write_json
from discopatch.weights import DEFAULT, released

REPORTS = {
    "solar": Path("docs/results/solar.json"),
    "natural": Path("docs/results/natural.json"),
    "promises": Path("docs/promises.json"),
}
CARD = Path(f"src/discopatch/weights/{DEFAULT}.json")

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
    """Writes the card, refusing figures that belong to other weights."""
    weights = released()
    reports = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in REPORTS.items()}
    check_digests(weights.digest, reports)
    discriminator = weights.discriminator
    write_json(
        CARD,
        {
            "name": DEFAULT,
            "weights_digest": weights.digest,
            "transform_digest": weights.transform.digest,
            "transform": weights.transform.to_dict(),
            "architecture": discriminator.architecture.to_dict(),
            "parameters": sum(parameter.numel() for parameter in discriminator.parameters()),
            "stored_as": "float16",
            "data": {
                "photos": 6256,
                "held_out_for_choices": 417,
                "digest": weights.origin["data_digest"],
                "stored": "short side 256, antialiased bicubic, centre crop, JPEG quality 92",
                "sources": SOURCES,
            },
            "training": [FIRST_RUN, {"what": "without forgeries, pictures shrunk", **weights.origin["recipe"]}],
            "made_with": {name: weights.origin[name] for name in ("torch", "python", "discopatch")},
            "figures": card_figures(**reports),
        },
    )


if __name__ == "__main__":
    main()
