"""The shape of the networks as one value."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from discopatch.errors import ParameterError
from discopatch.schema import between, check_fields, length, read_fields

Normalisation = Literal["patch", "batch", "group", "instance", "none"]
Kind = Literal["plain", "residual", "inverted"]
Channels = Annotated[int, between(1, 2**14)]


@dataclass(frozen=True)
class Architecture:
    """Everything that decides the shape of the VAE and of the discriminator.

    A plain discriminator is the paper's. In a residual one the first layer is the stem, and each of the others is a
    stage of `blocks` blocks. An inverted one has five layers in proportion to those of EfficientNet-Lite0, and no
    normalisation. The VAE is plain in all cases.
    """

    patch_size: Annotated[int, between(2, 4096)]
    hidden: Annotated[tuple[Channels, ...], length(1, 12)]  # channels of each layer, which halves height and width
    latent: Channels
    normalisation: Normalisation = "patch"
    kind: Kind = "plain"
    blocks: Annotated[int, between(1, 8)] = 2  # of each stage of a residual network
    stem: Literal[3, 7] = 3  # side of the kernel of its first layer

    def __post_init__(self) -> None:
        check_fields(self)
        if self.patch_size % self.stride:
            raise ParameterError(
                f"{len(self.hidden)} layers halve the patch {len(self.hidden)} times: "
                f"patch_size must be a multiple of {self.stride}, not {self.patch_size}"
            )
        if self.kind == "residual" and len(self.hidden) < 3:
            raise ParameterError(f"hidden is {self.hidden}: a residual network has a stem and two stages at least")
        if self.kind == "inverted" and len(self.hidden) != 5:
            raise ParameterError(f"hidden is {self.hidden}: an inverted residual network has five layers")
        if (self.kind == "inverted") != (self.normalisation == "none"):
            raise ParameterError(
                f"the network is {self.kind}, and its normalisation {self.normalisation}: inverted ones have none, "
                "others need one"
            )
        if self.kind != "residual" and (self.blocks, self.stem) != (2, 3):
            raise ParameterError("blocks and stem are those of a residual network: set kind='residual'")

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
    def classified(self) -> int:
        """Which of the feature maps the logits come from: the last, or of residual networks the one before."""
        return -1 if self.kind == "plain" else -2

    @property
    def place_layers(self) -> slice:
        """Of which layers the maps describe places."""
        return slice(2, 4) if self.kind == "inverted" else slice(1, 3)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """How many of the statistics of an image are each layer's."""
        return tuple(2 * width for width in self.hidden)

    @property
    def statistics(self) -> int:
        """Number of means and log-variances of an image, two for each channel."""
        return 2 * sum(self.hidden)

    def to_dict(self) -> dict[str, Any]:
        """All fields as values that JSON can hold; a plain network has none of those that came with residual ones."""
        fields = {**asdict(self), "hidden": list(self.hidden)}
        return {name: value for name, value in fields.items() if self.kind != "plain" or name not in RESIDUAL}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The inverse of `to_dict`; refuses fields that this version does not have."""
        if isinstance(values, Mapping):
            values = {**{name: getattr(cls, name) for name in RESIDUAL}, **values}
        return read_fields(cls, values, where="architecture")


RESIDUAL = ("kind", "blocks", "stem")  # fields that files of plain networks leave out, and that have their defaults
