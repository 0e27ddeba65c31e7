"""The models and their recipes, as values: the paper's two, those of the released weights, and one for trials."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

Normalisation = Literal["patch", "batch", "group", "instance"]
Grouping = Literal["batch", "image"]


@dataclass(frozen=True)
class Architecture:
    """Everything that decides the shape of the networks."""

    patch_size: int
    hidden: tuple[int, ...]
    latent: int
    normalisation: Normalisation = "patch"

    def __post_init__(self) -> None:
        if self.normalisation not in get_args(Normalisation):
            raise ValueError(f"unknown normalisation {self.normalisation!r}: choose one of {get_args(Normalisation)}")
        if not self.hidden or self.patch_size % self.stride:
            raise ValueError(
                f"{len(self.hidden)} layers halve the patch {len(self.hidden)} times: "
                f"patch_size must be a multiple of {self.stride}, not {self.patch_size}"
            )

    @property
    def stride(self) -> int:
        """How many pixels one cell of the last feature map stands for."""
        return int(2 ** len(self.hidden))

    @property
    def cells(self) -> int:
        """Side of the last feature map."""
        return self.patch_size // self.stride

    @property
    def flat(self) -> int:
        """Length of the last feature map when it is laid out flat."""
        return self.hidden[-1] * self.cells**2

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        known = {field.name for field in fields(cls)}
        if values.keys() != known:
            raise ValueError(
                f"an architecture has the fields {sorted(known)}, not {sorted(values)}: "
                "the file is from another version of discopatch"
            )
        return cls(**{**values, "hidden": tuple(values["hidden"])})


@dataclass(frozen=True)
class Preset:
    """An architecture and the recipe that goes with it; what is not the paper's is off unless it is named."""

    architecture: Architecture
    images: int
    patches: int
    epochs: int
    learning_rate: float
    grouping: Grouping = "batch"
    weight_spoiled: float = 0.0
    weight_named: float = 0.0
    decay: float = 0.0
    smallest_scale: float = 1.0


OF_PATCHES = Architecture(patch_size=64, hidden=(128, 256, 512, 1024), latent=1024)

PRESETS = {
    "paper": Preset(
        OF_PATCHES,
        images=67,
        patches=48,
        epochs=30,
        learning_rate=8.5e-5,
    ),
    "natural": Preset(
        OF_PATCHES,
        images=64,
        patches=16,
        epochs=90,
        learning_rate=3e-4,
        grouping="image",
        weight_spoiled=1.0,
        weight_named=0.5,
        decay=0.3,
        smallest_scale=0.55,
    ),
    "full": Preset(
        Architecture(patch_size=256, hidden=(32, 64, 128, 256, 512, 1024), latent=1024),
        images=660,
        patches=1,
        epochs=70,
        learning_rate=5e-5,
    ),
    "small": Preset(
        Architecture(patch_size=64, hidden=(48, 80, 144, 240), latent=240),
        images=48,
        patches=16,
        epochs=120,
        learning_rate=1e-3,
        grouping="image",
        weight_spoiled=1.0,
        weight_named=0.5,
        decay=0.5,
        smallest_scale=0.55,
    ),
    "tiny": Preset(
        Architecture(patch_size=16, hidden=(16, 32), latent=32),
        images=8,
        patches=16,
        epochs=30,
        learning_rate=2e-3,
        grouping="image",
    ),
}


def find_preset(name: str) -> Preset:
    """The preset of that name, or an error that lists the names there are."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}") from None
