"""Every hyper-parameter of a run, as one value that lands in its JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from typing import Any, Self, get_args

from discopatch.images import Transform
from discopatch.model import Architecture, Grouping, Normalisation, find_preset
from discopatch.patches import check_fits


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, and how. The defaults of `Recipe.of` are the paper's.

    steps: how long, instead of `epochs`, where that is given.
    grouping: PatchNorm's group in training; `batch` is all patches of the step, the paper's way, `image` is each
    image's own patches, as in scoring.
    """

    preset: str
    architecture: Architecture
    transform: Transform
    images: int
    patches: int
    epochs: float
    learning_rate: float
    steps: int | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    weight_kl: float = 1e-4
    weight_reconstructed: float = 1e-3
    weight_generated: float = 1e-3
    grouping: Grouping = "batch"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "patches", "epochs", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps is {self.steps}: it must be at least 1")
        if self.grouping not in get_args(Grouping):
            raise ValueError(f"unknown grouping {self.grouping!r}: choose one of {get_args(Grouping)}")
        check_fits(self.transform.size, self.architecture.patch_size)

    @classmethod
    def of(cls, preset: str, *, normalisation: Normalisation = "patch", **changes: Any) -> Self:
        """The preset's recipe with some values changed; those that are None stay as they are."""
        chosen = find_preset(preset)
        wanted = {name: value for name, value in changes.items() if value is not None}
        return cls(
            **{
                "preset": preset,
                "architecture": replace(chosen.architecture, normalisation=normalisation),
                "transform": Transform(),
                "images": chosen.images,
                "patches": chosen.patches,
                "epochs": chosen.epochs,
                "learning_rate": chosen.learning_rate,
                "grouping": chosen.grouping,
                **wanted,
            }
        )

    @property
    def group(self) -> int | None:
        """How many successive patches a PatchNorm takes together in training; None for all."""
        return self.patches if self.grouping == "image" else None

    def total_steps(self, pictures: int, ranks: int = 1) -> int:
        """How many steps the run has, each of `images` pictures a rank."""
        return self.steps or ceil(self.epochs * pictures / (self.images * ranks))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **asdict(self),
            "architecture": self.architecture.to_dict(),
            "transform": self.transform.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        known = {field.name for field in fields(cls)}
        if values.keys() != known:
            raise ValueError(f"a recipe has the fields {sorted(known)}, not {sorted(values)}")
        return cls(
            **{
                **values,
                "architecture": Architecture.from_dict(values["architecture"]),
                "transform": Transform.from_dict(values["transform"]),
            }
        )
