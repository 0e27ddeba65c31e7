"""How much each suite measures, in full and in a few minutes."""

from typing import Any

from discopatch.images.corrupt import FAMILIES

MOST_TO_FIT = 600  # of a folder that nobody has said more about
FULL: dict[str, dict[str, Any]] = {
    "solar": {"fit": 600, "test": 300},
    "natural": {"fit": 2000},
    "imagenet": {"fit": 5000, "test": 5000},
}

# One corruption of each family at one severity: to see everything run and to get a first idea, not to be quoted.
QUICK: dict[str, Any] = {
    "fit": 40,
    "test": 8,
    "corruptions": tuple(family[0] for family in FAMILIES.values()),
    "severities": (3,),
    "resamples": 200,
}


def sizes_of(suite: str, *, quick: bool) -> dict[str, Any]:
    """The fields of a plan; a suite that is not known has none of its own."""
    if not quick:
        return dict(FULL.get(suite, {}))
    return {**QUICK, "other": None if suite == "folder" else 5}
