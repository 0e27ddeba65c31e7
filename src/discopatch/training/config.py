"""All settings of a training run: what is trained and how, on which hardware, and what is written when.

A field with a help text is a flag of `discopatch train`, so the fields stand nowhere else. Nothing here imports torch:
`discopatch train --help` would wait for it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import ceil, cos, pi
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from discopatch.errors import ParameterError, RunError, TransformError
from discopatch.schema import Digest, read_fields

if TYPE_CHECKING:
    from discopatch.images import Limits, Transform, Workers
    from discopatch.model import Architecture

Grouping = Literal["batch", "image"]
Schedule = Literal["linear", "cosine"]
TrainingPrecision = Literal["auto", "32-true", "bf16-mixed"]

DISCRIMINATOR = "discriminator"
TEACHERS = (DISCRIMINATOR, "resnet50", "efficientnet-lite0")
MOST = 1_000_000  # images or patches a step, and epochs: a larger number is a mistake, or the file of an attacker


@dataclass(frozen=True)
class TrainingConfig:
    """What is trained, on what, and how. The defaults are the paper's; `get_preset` has the rest.

    `teachers` are the digests of the teachers' weights by the names of `TEACHERS`; `preset` is the name of the preset
    that was begun with.
    """

    preset: str
    architecture: "Architecture"
    transform: "Transform"
    images: int = field(metadata={"help": "Images a step, on each device."})
    patches: int = field(metadata={"help": "Patches an image."})
    epochs: float = field(metadata={"help": "Passes over the images."})
    learning_rate: float = field(metadata={"help": "Learning rate of both networks.", "flag": "--lr"})
    epoch_share: float = field(
        default=1.0, metadata={"help": "Share of the images after which an epoch ends (0.2 in the authors' code)."}
    )
    steps: int | None = field(default=None, metadata={"help": "Length in steps, instead of --epochs."})
    beta1: float = field(default=0.9, metadata={"help": "Adam's decay of the first moment."})
    beta2: float = field(default=0.999, metadata={"help": "Adam's decay of the second moment."})
    weight_decay: float = field(default=0.0, metadata={"help": "AdamW's decay of the weights."})
    weight_kl: float = field(default=1e-4, metadata={"help": "Weight of the KL divergence."})
    weight_reconstructed: float = field(
        default=1e-3, metadata={"help": "Weight of fooling the discriminator with reconstructed patches."}
    )
    weight_generated: float = field(
        default=1e-3, metadata={"help": "Weight of fooling the discriminator with generated patches."}
    )
    grouping: Grouping = field(
        default="batch",
        metadata={"help": "Patches that PatchNorm normalises together: the batch (the paper) or each image's."},
    )
    weight_degraded: float = field(default=0.0, metadata={"help": "Weight of degraded images as further negatives."})
    weight_classified: float = field(default=0.0, metadata={"help": "Weight of classifying the degradations."})
    warm_up: float = field(default=0.0, metadata={"help": "Share of the run, at its start, over which --lr rises."})
    decay: float = field(default=0.0, metadata={"help": "Share of the run, at its end, over which --lr falls to 0."})
    schedule: Schedule = field(
        default="linear", metadata={"help": "How --lr falls: in a straight line, or as a cosine."}
    )
    min_scale: float = field(default=1.0, metadata={"help": "Shrink the images of each step at random, down to this."})
    vae: bool = field(default=True, metadata={"help": "Train with a VAE, or on degraded images alone."})
    crop: int | None = field(
        default=None,
        metadata={"help": "Side of the crops that a residual network is trained on, half of them degraded."},
    )
    cut_mix: float = field(default=0.0, metadata={"help": "Share of the crops that get a part of another."})
    grey: float = field(default=0.0, metadata={"help": "Share of the crops that lose their colours."})
    weight_distilled: float = field(
        default=0.0, metadata={"help": "Weight of the teachers' output (1 with --teacher; 0 for no teachers)."}
    )
    weight_maps: float = field(default=1.0, metadata={"help": "Weight of feature maps among the teachers' output."})
    weight_pooled: float = field(default=1.0, metadata={"help": "Weight of pooled features among it."})
    weight_kept: float = field(
        default=0.0, metadata={"help": "Weight of staying what its teacher is where nothing is degraded."}
    )
    stream: bool | None = field(
        default=None,
        metadata={"help": "Read tar shards anew each epoch, or decode all once (what does not fit is streamed)."},
    )
    teachers: dict[str, Digest] = field(default_factory=dict)
    seed: int = field(default=0, metadata={"help": "Seed of all random draws."})

    def __post_init__(self) -> None:
        from discopatch.model.patches import check_fits

        for name in ("images", "patches", "epochs", "learning_rate"):
            if not 0 < getattr(self, name) <= MOST:
                raise ParameterError(f"{name} is {getattr(self, name)}: it must be above 0, and {MOST:,} at most")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ParameterError(f"{name} is {getattr(self, name)}: it must be 0 or above")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}: it must be 0 or above, and below 1")
        if not 0 <= self.seed < 2**63:
            raise ParameterError(f"seed is {self.seed}: it must be 0 or above, and fit 64 bits")
        for name in SHARES:
            if getattr(self, name) > 1:
                raise ParameterError(f"{name} is {getattr(self, name)}: it is a share, at most 1")
        if self.steps is not None and self.steps < 1:
            raise ParameterError(f"steps is {self.steps}: it must be at least 1")
        if self.grouping not in get_args(Grouping):
            raise ParameterError(f"unknown grouping {self.grouping!r}: choose one of {get_args(Grouping)}")
        if self.schedule not in get_args(Schedule):
            raise ParameterError(f"unknown schedule {self.schedule!r}: choose one of {get_args(Schedule)}")
        if not 0 < self.epoch_share <= 1:
            raise ParameterError(f"epoch_share is {self.epoch_share}: it must lie above 0, and be 1 at most")
        if not 0 < self.min_scale <= 1:
            raise ParameterError(f"min_scale is {self.min_scale}: it must lie above 0, and be 1 at most")
        if self.transform.pixels != "symmetric":
            raise ParameterError(
                f"training takes pixels in [-1, 1], the range of the decoder's tanh, not {self.transform.pixels!r}: "
                "use these weights as they are, without training"
            )
        check_fits(int(self.min_scale * self.transform.size), self.architecture.patch_size)
        if not self.vae and not self.weight_degraded:
            raise ParameterError("without a VAE there are no negatives: set weight_degraded above 0")
        if self.weight_distilled and not self.weight_degraded:
            raise ParameterError("distillation takes place on degraded images: set weight_degraded above 0")
        if bool(self.weight_distilled) != bool(self.teachers):
            raise ParameterError("a teacher and weight_distilled go together: give both, or none")
        self._check_crops()

    def _check_crops(self) -> None:
        if unknown := self.teachers.keys() - set(TEACHERS):
            raise ParameterError(f"unknown teachers {sorted(unknown)}: choose among {', '.join(TEACHERS)}")
        if (self.crop is None) != (self.architecture.kind == "plain"):
            raise ParameterError(
                f"crop is {self.crop}, and the network is {self.architecture.kind}: residual networks are trained on "
                "crops, plain ones are not"
            )
        if self.crop is None and self.teachers.keys() - {DISCRIMINATOR}:
            raise ParameterError("backbones teach residual networks alone: choose the preset natural-v2 or residual")
        if self.crop is not None and not self.weight_degraded:
            raise ParameterError("half of the crops are degraded: set weight_degraded above 0")
        smallest = ceil(self.min_scale * self.transform.size)
        if self.crop is not None and not self.architecture.patch_size <= self.crop_size < 2 * smallest:
            raise ParameterError(
                f"crop is {self.crop}: it must be {self.architecture.patch_size} pixels at least, as patches are, and "
                f"below twice the {smallest} to which min_scale shrinks images"
            )

    @property
    def crop_size(self) -> int:
        """Side of the crops: no larger than the images."""
        return min(self.crop or self.transform.size, self.transform.size)

    @property
    def group(self) -> int | None:
        """How many successive patches one PatchNorm normalises together in training; None for the whole batch."""
        return self.patches if self.grouping == "image" else None

    def total_steps(self, images: int, ranks: int = 1) -> int:
        """The length of a run over so many training images, where every rank takes `self.images` a step."""
        return self.steps or ceil(self.epochs * self.epoch_share * images / (self.images * ranks))

    def learning_rate_at(self, step: int, total: int) -> float:
        """The learning rate rises to its value, stays there, then falls towards zero at `total`."""
        rising, falling = self.warm_up * total, self.decay * total
        risen = min(1.0, (step + 1) / rising) if rising else 1.0
        left = min(1.0, (total - step) / falling) if falling else 1.0
        return self.learning_rate * risen * (left if self.schedule == "linear" else 0.5 - 0.5 * cos(pi * left))

    def to_dict(self) -> dict[str, Any]:
        """All fields as values that JSON can hold."""
        parts = {"architecture": self.architecture.to_dict(), "transform": self.transform.to_dict()}
        return {**asdict(self), **parts}

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The config that `to_dict` described; RunError where this version would not have written it.

        One from before a field of `LATER` has its default, and one from before `teachers` may have a `teacher`; one
        from before `stream` had all images decoded.
        """
        from discopatch.images import Transform
        from discopatch.model import Architecture

        if isinstance(values, Mapping):
            values = {"teachers": {}, "stream": False, **{name: getattr(cls, name) for name in LATER}, **values}
            if (teacher := values.pop("teacher", None)) is not None:
                values["teachers"] = {DISCRIMINATOR: teacher}
        try:
            return read_fields(
                cls,
                values,
                where="config",
                names={"Architecture": Architecture, "Transform": Transform},
            )
        except (ParameterError, TransformError) as error:
            raise RunError(f"{error}: start a new run") from None


NOT_NEGATIVE = (
    *("weight_degraded", "weight_classified", "weight_distilled", "weight_maps", "weight_pooled", "weight_kept"),
    "weight_decay",
    *("warm_up", "decay", "cut_mix", "grey"),
)
SHARES = ("warm_up", "decay", "cut_mix", "grey")
LATER = (  # fields that earlier versions did not write, beside `teachers`
    *("epoch_share", "weight_decay", "warm_up", "schedule", "crop", "cut_mix"),
    *("grey", "weight_maps", "weight_pooled", "weight_kept"),
)


@dataclass(frozen=True)
class Hardware:
    """Where a run computes; none of it changes what is learnt, but for rounding.

    `compile` takes the fused and compiled passes, which plain networks have; None is yes on a GPU and no on a CPU.
    `workers` None is as many threads as suit the computer; `limits` None are the usual ones.
    """

    accelerator: str = field(default="auto", metadata={"help": "auto, cpu or cuda."})
    devices: int = field(default=1, metadata={"help": "Devices on each node."})
    nodes: int = field(default=1, metadata={"help": "Nodes, started by torchrun."})
    precision: TrainingPrecision = field(default="auto", metadata={"help": "auto is bf16-mixed on a GPU."})
    compile: bool | None = field(default=None, metadata={"help": "Fused, compiled passes (yes on a GPU)."})
    workers: "Workers | None" = None
    limits: "Limits | None" = None


@dataclass(frozen=True)
class RunOptions:
    """What a run writes and when, counted in steps, and how long it may take."""

    checkpoint_every: int = field(default=1000, metadata={"help": "Steps between checkpoints."})
    keep_every: int | None = field(
        default=None, metadata={"help": "Steps between discriminators that are kept, in the folder kept."}
    )
    samples_every: int = field(default=1000, metadata={"help": "Steps between sheets of sample patches."})
    log_every: int = field(default=20, metadata={"help": "Steps between updates of the logs."})
    tensorboard: bool = field(default=False, metadata={"help": "Also log to TensorBoard."})
    wandb: str | None = field(default=None, metadata={"help": "Also log to this project of Weights & Biases."})
    max_minutes: float | None = field(default=None, metadata={"help": "Save and stop after that long."})

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "keep_every", "samples_every", "log_every"):
            if (every := getattr(self, name)) is not None and every < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}: it must be at least 1")
