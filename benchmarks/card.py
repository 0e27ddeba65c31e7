"""The card of the released weights, from the weights themselves and the figures of docs/results.json.

python benchmarks/card.py
"""

import json
from pathlib import Path
from typing import Any

from discopatch.files import write_json
from discopatch.weights import DEFAULT, released

RESULTS = Path("docs/results.json")
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
    weights, results = released(), json.loads(RESULTS.read_text(encoding="utf-8"))
    if results["made"]["weights digest"] != weights.digest:
        raise SystemExit(f"{RESULTS} was made with other weights ({results['made']['weights digest']}): measure again")
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
            "figures": figures(results),
        },
    )


def figures(results: dict[str, Any]) -> dict[str, Any]:
    """Means and their 95 % intervals, [mean, low, high]."""
    return {
        "made_by": "python benchmarks/results.py measure",
        "solar, 19 corruptions x 5 severities": {h: v["all 19"] for h, v in results["solar"]["means"].items()},
        "natural, 19 corruptions x 5 severities": {h: v["all 19"] for h, v in results["natural"]["means"].items()},
        "natural, corruptions unlike any training defect": {
            h: v["unlike any training defect"] for h, v in results["natural"]["means"].items()
        },
        "other sets, combined": {
            name: each["auroc"]["combined"] for name, each in results["out of distribution"]["sets"].items()
        },
        "other sets, route control, combined": {
            name: each["control"]["combined"] for name, each in results["out of distribution"]["sets"].items()
        },
        "false alarms, combined": {
            suite: {rate: each["pooled"] for rate, each in heads["combined"].items()}
            for suite, heads in results["false alarms"].items()
        },
    }


if __name__ == "__main__":
    main()
