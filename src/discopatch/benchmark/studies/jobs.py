"""The trainings: which recipes, with which seeds, in which order."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from discopatch.benchmark.studies.plan import Plan
from discopatch.model import PRESETS, Architecture, Normalisation
from discopatch.training.recipe import Recipe

Kind = Literal["paper", "natural", "group", "instance", "full"]
LAYERS: dict[Kind, Normalisation] = {
    "paper": "patch",
    "natural": "patch",
    "group": "group",
    "instance": "instance",
    "full": "batch",
}
SEEDED: tuple[Kind, ...] = ("paper", "natural")  # trained with every seed


@dataclass(frozen=True)
class Job:
    """One training.

    fused: whether it takes the compiled passes of a GPU, as far as its layers allow; compiling costs more than it gains
    where the shapes occur in no other training.
    """

    kind: Kind
    recipe: Recipe
    fused: bool = True

    @property
    def name(self) -> str:
        """Such as paper-0."""
        return f"{self.kind}-{self.recipe.seed}"

    @property
    def of_patches(self) -> bool:
        """Whether it judges patches, and not whole pictures."""
        return self.kind != "full"

    @property
    def patches(self) -> int:
        """How many it has seen at its end."""
        return (self.recipe.steps or 0) * self.recipe.images * self.recipe.patches


def all_jobs(plan: Plan) -> list[Job]:
    """One of each kind first, then the other seeds: whenever time runs out, every study has something."""
    first = [make_job(kind, 0, plan) for kind in LAYERS]
    return [*first, *(make_job(kind, seed, plan) for seed in range(1, plan.seeds) for kind in SEEDED)]


def make_job(kind: Kind, seed: int, plan: Plan) -> Job:
    """The same steps, pictures a step and learning rate for all.

    The full-size model sees each picture whole: as many pixels as the patches of the others have.
    """
    preset = kind if kind in PRESETS else "paper"
    normalisation = LAYERS[kind]
    changes: dict[str, Any] = {
        "architecture": architecture(plan.of_pictures if kind == "full" else plan.of_patches, normalisation),
        "transform": plan.transform,
        "images": plan.images,
        "patches": 1 if kind == "full" else plan.patches,
        "learning_rate": plan.learning_rate,
        "steps": plan.steps,
        "seed": seed,
    }
    return Job(kind, Recipe.of(preset, normalisation=normalisation, **changes), fused=kind != "full")


def architecture(instead: Architecture | None, normalisation: Normalisation) -> Architecture | None:
    """None for the preset's own."""
    return None if instead is None else replace(instead, normalisation=normalisation)
