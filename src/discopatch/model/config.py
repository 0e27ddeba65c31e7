"""The shape of the networks as one value."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from discopatch.errors import ParameterError
from discopatch.schema import Between, check_fields, read_fields

Normalisation = Literal["patch", "batch", "group", "instance"]
Channels = Annotated[int, Between(1, 2**14)]


@dataclass(frozen=True)
class Architecture:
    """Everything that decides the shape of the VAE and of the discriminator."""

    patch_size: Annotated[int, Between(2, 4096)]
    hidden: Annotated[tuple[Channels, ...], Between(1, 12)]  # channels of each layer, which halves height and width
    latent: Channels
    normalisation: Normalisation = "patch"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.patch_size % self.stride:
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

    @property
    def statistics(self) -> int:
        """Number of means and log-variances of an image, two for each channel."""
        return 2 * sum(self.hidden)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The inverse of `to_dict`; refuses fields that this version does not have."""
        return read_fields(cls, values, where="architecture")
