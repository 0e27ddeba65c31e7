"""Shape of the networks."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from discopatch.errors import ParameterError
from discopatch.schema import between, check_fields, length, read_fields

Normalisation = Literal["patch", "batch", "group", "instance", "none"]
Kind = Literal["plain", "inverted"]
Channels = Annotated[int, between(1, 2**14)]

LITE = (16, 24, 40, 112, 320)  # channels of EfficientNet-Lite0 and Lite1 after each halving of height and width
LITE0, LITE1 = (1, 2, 2, 3, 3, 4, 1), (1, 3, 3, 4, 4, 5, 1)  # their numbers of equal blocks in succession


@dataclass(frozen=True)
class Architecture:
    """Shape of the VAE and of the discriminator.

    A `plain` discriminator is the paper's. An `inverted` one has the inverted residual blocks of EfficientNet-Lite in
    five layers, and no normalisation. The VAE is plain in both cases.

    depths: of an inverted network, the numbers of equal blocks in succession; the last two layers have two kinds each.
    embedding: length of the embedding of how an image was degraded; 0 for none.
    """

    patch_size: Annotated[int, between(2, 4096)]
    hidden: Annotated[tuple[Channels, ...], length(1, 12)]  # channels of each layer, which halves height and width
    latent: Channels
    normalisation: Normalisation = "patch"
    kind: Kind = "plain"
    depths: Annotated[tuple[Annotated[int, between(1, 100)], ...], length(7, 7)] = LITE0
    embedding: Annotated[int, between(0, 2**12)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.patch_size % self.stride:
            raise ParameterError(
                f"{len(self.hidden)} layers halve the patch {len(self.hidden)} times: "
                f"patch_size must be a multiple of {self.stride}, not {self.patch_size}"
            )
        if self.kind == "inverted" and len(self.hidden) != 5:
            raise ParameterError(f"hidden is {self.hidden}: an inverted residual network has five layers")
        if self.kind == "plain" and self.embedding:
            raise ParameterError(f"embedding is {self.embedding}: only inverted networks have one")
        if (self.kind == "inverted") != (self.normalisation == "none"):
            raise ParameterError(
                f"normalisation is {self.normalisation} in a network of kind {self.kind}: inverted networks have none, "
                "plain ones need one"
            )

    @property
    def stride(self) -> int:
        """Pixels per cell of the last feature map."""
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
    def classified(self) -> int:
        """Index of the feature map that is classified: the last, of inverted networks the one before."""
        return -1 if self.kind == "plain" else -2

    @property
    def place_layers(self) -> slice:
        """Layers whose maps describe places of an image."""
        return slice(min(2, len(self.hidden) - 1), 5)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Number of statistics of each layer."""
        return tuple(2 * width for width in self.hidden)

    @property
    def statistics(self) -> int:
        """Number of statistics of an image: a mean and a log-variance for each channel, then the embedding."""
        return sum(self.layer_sizes) + self.embedding

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {**asdict(self), "hidden": list(self.hidden), "depths": list(self.depths)}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`; SchemaError for unknown or invalid fields."""
        return read_fields(cls, values, where="architecture")
