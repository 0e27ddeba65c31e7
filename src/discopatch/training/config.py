"""Settings of a training run, and the presets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil, cos, pi
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from discopatch.corruptions.degradations import DEGRADATIONS
from discopatch.errors import ParameterError
from discopatch.images.transform import Transform
from discopatch.model.config import LITE, LITE1, Architecture
from discopatch.schema import Digest, between, check_fields, read_fields

MOST = 1_000_000  # images or patches a step, and epochs: a larger number is a mistake
Number = Annotated[int, between(1, MOST)]
Above0 = Annotated[float, Meta(gt=0, le=MOST)]
Weight = Annotated[float, between(0, MOST)]
Share = Annotated[float, between(0, 1)]
ShareAbove0 = Annotated[float, Meta(gt=0, le=1)]
Beta = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True)
class TrainingConfig:
    """Networks, data and hyperparameters of a run; the defaults are the paper's.

    | Field | Meaning |
    |---|---|
    | images, patches | images a step on each device, and patches an image |
    | epochs, epoch_share | passes over the images; share of the images in an epoch (0.2 in the authors' code) |
    | steps | length in steps, instead of `epochs` |
    | weight_kl, weight_reconstructed, weight_generated | weights of the VAE's loss beside the reconstruction |
    | grouping | patches that PatchNorm normalises together: the batch (the paper) or those of each image |
    | vae | train with a VAE, or on degraded images alone |
    | weight_degraded, weight_classified | weights of degraded images as negatives, and of classifying them |
    | weight_embedded | weight of embedding equally degraded images alike |
    | left_out | a degradation that the training does not have |
    | warm_up, decay, schedule | share of the run over which the learning rate rises, and falls to 0 at the end |
    | min_scale | smallest random scale of the images of a step |
    | native | short side of larger copies, of which every third step has crops; photos that are smaller have none |
    | crop, cut_mix, grey | side of the crops of inverted networks; shares that are mixed, and that lose their colours |
    | teachers | digests of the teachers' weights by name |
    | weight_distilled, weight_maps, weight_pooled | weights of the teachers' outputs, and of maps and pooled features |
    | weight_cosine | weight of the distance (1 - cosine) to a teacher's embedding |
    | weight_kept | weight of keeping the features that the network began with where nothing is degraded |
    """

    preset: str
    architecture: Architecture
    transform: Transform
    images: Number
    patches: Number
    epochs: Above0
    learning_rate: Above0
    epoch_share: ShareAbove0 = 1.0
    steps: Annotated[int, Meta(ge=1)] | None = None
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    weight_decay: Weight = 0.0
    weight_kl: Weight = 1e-4
    weight_reconstructed: Weight = 1e-3
    weight_generated: Weight = 1e-3
    grouping: Literal["batch", "image"] = "batch"
    weight_degraded: Weight = 0.0
    weight_classified: Weight = 0.0
    weight_embedded: Weight = 0.0
    left_out: str | None = None
    warm_up: Share = 0.0
    decay: Share = 0.0
    schedule: Literal["linear", "cosine"] = "linear"
    min_scale: ShareAbove0 = 1.0
    native: Annotated[int, between(64, 4096)] | None = None
    vae: bool = True
    crop: int | None = None
    cut_mix: Share = 0.0
    grey: Share = 0.0
    weight_distilled: Weight = 0.0
    weight_maps: Weight = 1.0
    weight_pooled: Weight = 1.0
    weight_cosine: Weight = 1.0
    weight_kept: Weight = 0.0
    teachers: dict[str, Digest] = field(default_factory=dict)
    seed: Annotated[int, between(0, 2**63 - 1)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.transform.pixels != "symmetric":
            raise ParameterError(
                f"training takes pixels in [-1, 1], the range of the decoder's tanh, not {self.transform.pixels!r}: "
                "use these weights without training"
            )
        smallest, patch = ceil(self.min_scale * self.transform.size), self.architecture.patch_size
        if patch > int(self.min_scale * self.transform.size):
            raise ParameterError(f"a patch of {patch} pixels does not fit an image of {smallest}: raise min_scale")
        if not self.weight_degraded and (not self.vae or self.teachers or self.crop):
            raise ParameterError(
                "training without a VAE, with teachers or on crops needs degraded images: set weight_degraded above 0"
            )
        if self.left_out is not None and self.left_out not in DEGRADATIONS:
            raise ParameterError(f"left_out is {self.left_out!r}: choose one of {', '.join(DEGRADATIONS)}")
        if bool(self.weight_embedded) != bool(self.architecture.embedding) or (self.weight_embedded and not self.crop):
            raise ParameterError(
                "an embedding needs weight_embedded above 0 and crops, and weight_embedded an architecture with one"
            )
        if self.native is not None and (not self.crop or self.native <= self.transform.size):
            raise ParameterError(f"native is {self.native}: it needs crops, and more than {self.transform.size} pixels")
        if bool(self.weight_distilled) != bool(self.teachers):
            raise ParameterError("a teacher and weight_distilled go together: give both, or none")
        crops = self.architecture.kind == "inverted"
        if crops != (self.crop is not None) or (crops and not patch <= self.crop_size < 2 * smallest):
            raise ParameterError(
                f"crop is {self.crop}: inverted networks are trained on crops of at least {patch} pixels, as patches "
                f"are, and below twice the {smallest} to which min_scale shrinks images; plain networks on none"
            )

    @property
    def crop_size(self) -> int:
        """Side of the crops: no larger than the images."""
        return min(self.crop or self.transform.size, self.transform.size)

    @property
    def group(self) -> int | None:
        """Number of consecutive patches that PatchNorm normalises together in training; None for the whole batch."""
        return self.patches if self.grouping == "image" else None

    def total_steps(self, images: int, ranks: int = 1) -> int:
        """Length of a run over so many training images, where every rank takes `self.images` a step."""
        return self.steps or ceil(self.epochs * self.epoch_share * images / (self.images * ranks))

    def learning_rate_at(self, step: int, total: int) -> float:
        """Learning rate of a step: it rises to its value, stays there, then falls towards zero at `total`."""
        rising, falling = self.warm_up * total, self.decay * total
        risen = min(1.0, (step + 1) / rising) if rising else 1.0
        left = min(1.0, (total - step) / falling) if falling else 1.0
        return self.learning_rate * risen * (left if self.schedule == "linear" else 0.5 - 0.5 * cos(pi * left))

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The config with some of `SETTINGS`; no weight on teachers removes them."""
        changes = dict(settings)
        if changes.get("weight_distilled") == 0:
            changes["teachers"] = {}
        if changes.get("weight_embedded") == 0:
            changes["architecture"] = replace(self.architecture, embedding=0)
        if "normalisation" in changes:
            changes["architecture"] = replace(self.architecture, normalisation=changes.pop("normalisation"))
        if "fit" in changes:
            changes["transform"] = replace(self.transform, fit=changes.pop("fit"))
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        parts = {"architecture": self.architecture.to_dict(), "transform": self.transform.to_dict()}
        return {**asdict(self), **parts}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Inverse of `to_dict`; SchemaError for unknown or invalid fields."""
        return read_fields(cls, values, where="config")


@dataclass(frozen=True)
class RunOptions:
    """Hardware of a run, its output, counted in steps, and its time limit; none of it changes the training."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1  # on each node
    nodes: int = 1  # started by torchrun
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"  # auto is bf16-mixed on a GPU
    fused: bool | None = None  # fused and compiled passes of plain networks; None is yes on a GPU
    checkpoint_every: Annotated[int, Meta(ge=1)] = 1000
    samples_every: Annotated[int, Meta(ge=1)] = 1000  # sheets of sample patches
    log_every: Annotated[int, Meta(ge=1)] = 20
    tensorboard: bool = False
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)


PAPER = TrainingConfig(
    preset="paper",
    architecture=Architecture(patch_size=64, hidden=(128, 256, 512, 1024), latent=1024),
    transform=Transform(),
    images=67,
    patches=48,
    epochs=30,
    learning_rate=8.5e-5,
)
SMALL = replace(
    PAPER,
    preset="small",
    architecture=Architecture(patch_size=64, hidden=(48, 80, 144, 240), latent=240),
    images=48,
    patches=16,
    epochs=120,
    learning_rate=1e-3,
    grouping="image",
    weight_degraded=1.0,
    weight_classified=0.5,
    decay=0.5,
    min_scale=0.55,
)
NATURAL_V3 = replace(
    SMALL,
    preset="natural-v3",
    architecture=Architecture(
        patch_size=64, hidden=LITE, latent=320, normalisation="none", kind="inverted", depths=LITE1, embedding=64
    ),
    images=128,
    patches=2,
    epochs=62,
    learning_rate=4e-4,
    weight_decay=0.01,
    weight_degraded=2.0,
    weight_classified=1.0,
    weight_embedded=0.5,
    warm_up=0.02,
    decay=1.0,
    schedule="cosine",
    native=512,
    crop=224,
    cut_mix=0.25,
    grey=0.1,
    weight_distilled=1.0,
    weight_kept=10.0,
    teachers={"resnet50": "23b9b4ec74f0b501", "efficientnet-lite1": "d7b715387ed98f9e"},
)
NATURAL_SMALL_V2 = replace(
    NATURAL_V3,
    preset="natural-small-v2",
    architecture=Architecture(
        patch_size=64,
        hidden=(8, 16, 40, 112, 240),
        latent=240,
        normalisation="none",
        kind="inverted",
        depths=(1, 1, 1, 1, 2, 1, 1),
        embedding=64,
    ),
    epochs=121,
    learning_rate=1e-3,
    vae=False,
    weight_cosine=2.0,
    weight_kept=0.0,
    teachers={"natural-v3": "89a20bd6bd1e713d"},
)
TINY = replace(
    PAPER,
    preset="tiny",
    architecture=Architecture(patch_size=16, hidden=(16, 32), latent=32),
    images=8,
    patches=16,
    learning_rate=2e-3,
    grouping="image",
)
PRESETS = {config.preset: config for config in (PAPER, NATURAL_V3, NATURAL_SMALL_V2, SMALL, TINY)}


def get_preset(name: str) -> TrainingConfig:
    """Configuration of that name; `dataclasses.replace` changes single fields."""
    if name not in PRESETS:
        raise ParameterError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def preset_of(architecture: Architecture) -> TrainingConfig:
    """The preset with that architecture, without teachers."""
    for config in PRESETS.values():
        if config.architecture == architecture:
            return replace(config, teachers={}, weight_distilled=0.0)
    raise ParameterError("no preset has the architecture of these weights: choose one with --preset")


OTHERS = {"preset", "architecture", "transform", "teachers"}
SETTINGS = ("normalisation", "fit", *(each.name for each in fields(TrainingConfig) if each.name not in OTHERS))
RUN_SETTINGS = ("checkpoint_every", "samples_every", "log_every", "fused")
