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
    weight_spoiled: how much the discriminator also learns from whole pictures against spoiled copies of them, and
    weight_named: to name what is wrong with those; not the paper's.
    decay: the share of the run, at its end, over which the learning rate falls to zero.
    smallest_scale: each step shrinks its pictures by a random factor down to this, so that traces of how they were
    stored, such as the grid of a JPEG, are lost: a discriminator takes those for the mark of a real picture.
    forgeries: whether there is a VAE at all; without one the discriminator learns from spoiled pictures alone.
    weight_taught: how much it learns to see those, and the pictures themselves, as a teacher does, who has seen more;
    teacher: the digest of the teacher's weights.
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
    weight_spoiled: float = 0.0
    weight_named: float = 0.0
    decay: float = 0.0
    smallest_scale: float = 1.0
    forgeries: bool = True
    weight_taught: float = 0.0
    teacher: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "patches", "epochs", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("weight_spoiled", "weight_named", "weight_taught", "decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be 0 or above")
        if not 0 < self.smallest_scale <= 1:
            raise ValueError(f"smallest_scale is {self.smallest_scale}: it must lie above 0, and be 1 at most")
        check_fits(int(self.smallest_scale * self.transform.size), self.architecture.patch_size)
        if not self.forgeries and not self.weight_spoiled:
            raise ValueError("without forgeries nothing is left to learn from: give weight_spoiled")
        if self.weight_taught and not self.weight_spoiled:
            raise ValueError("a teacher looks at whole pictures and spoiled copies of them: give weight_spoiled")
        if bool(self.weight_taught) != (self.teacher is not None):
            raise ValueError("a teacher and weight_taught go together: give both, or none")
        if self.decay > 1:
            raise ValueError(f"decay is {self.decay}: it is a share of the run, at most 1")
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
                "weight_spoiled": chosen.weight_spoiled,
                "weight_named": chosen.weight_named,
                "decay": chosen.decay,
                "smallest_scale": chosen.smallest_scale,
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

    def learning_rate_at(self, step: int, total: int) -> float:
        """Constant, then in a straight line towards zero at `total`."""
        falling = self.decay * total
        return self.learning_rate * (min(1.0, (total - step) / falling) if falling else 1.0)

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
