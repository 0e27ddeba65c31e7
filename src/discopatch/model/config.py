"""The shape of the networks as one value."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from discopatch.errors import ParameterError

Normalisation = Literal["patch", "batch", "group", "instance"]


@dataclass(frozen=True)
class Architecture:
    """Everything that decides the shape of the VAE and of the discriminator."""

    patch_size: int
    hidden: tuple[int, ...]  # channels of each layer; every layer halves height and width
    latent: int
    normalisation: Normalisation = "patch"

    def __post_init__(self) -> None:
        if self.normalisation not in get_args(Normalisation):
            raise ParameterError(
                f"unknown normalisation {self.normalisation!r}: choose one of {', '.join(get_args(Normalisation))}"
            )
        if not self.hidden or self.patch_size % self.stride:
            raise ParameterError(
                f"{len(self.hidden)} layers halve the patch {len(self.hidden)} times: "
                f"patch_size must be a multiple of {self.stride}, not {self.patch_size}"
            )

    @property
    def stride(self) -> int:
        """How many pixels one cell of the last feature map stands for."""
        return int(2 ** len(self.hidden))

    @property
    def cells(self) -> int:
        """Side of a patch's last feature map."""
        return self.patch_size // self.stride

    @property
    def flat(self) -> int:
        """Number of values in a patch's last feature map."""
        return self.hidden[-1] * self.cells**2

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; refuses fields that this version does not have."""
        known = {field.name for field in fields(cls)}
        if values.keys() != known:
            raise ParameterError(
                f"an architecture has the fields {sorted(known)}, not {sorted(values)}: "
                "the file is from another version of discopatch"
            )
        return cls(**{**values, "hidden": tuple(values["hidden"])})
