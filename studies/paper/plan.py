"""How large the studies are, and which trainings they need."""

from dataclasses import asdict, dataclass, replace
from itertools import product
from math import ceil
from typing import Any, Literal, get_args

from discopatch.corruptions import CORRUPTIONS
from discopatch.errors import ParameterError
from discopatch.images import Transform
from discopatch.model import Architecture, Normalisation
from discopatch.training import PRESETS, TrainingConfig, get_preset

Precision = Literal["tf32", "fp32", "fp16"]
Kind = Literal["paper", "natural", "group", "instance", "full"]

# What is trained, and its normalisation layer; `paper` and `natural` are trained with every seed.
KINDS: dict[Kind, Normalisation] = {
    "paper": "patch",
    "natural": "patch",
    "group": "group",
    "instance": "instance",
    "full": "batch",
}
SEEDED: tuple[Kind, ...] = ("paper", "natural")
RELEASED = "released"  # the pretrained weights, which are not trained here
WITH_SPECTRA = ("paper-0", "natural-0")  # the runs whose VAE is examined


@dataclass(frozen=True)
class Plan:
    """All sizes.

    patches_in_all: how many patches each training sees; all trainings take the same steps of the same number of images.
    patch_model, image_model: architectures in place of those of the presets, for trials.
    severities: of the corruptions in the evaluation; studies for which one is enough take `one_severity`.
    precision: of scoring on a GPU: float32 with products rounded to TF32, without, or autocast to float16.
    """

    patches_in_all: int = 1_000_000
    seeds: int = 5
    images: int = 32
    patches: int = 16
    learning_rate: float = 2e-4
    transform: Transform = Transform()  # noqa: RUF009 - frozen
    patch_model: Architecture | None = None
    image_model: Architecture | None = None
    fit: int = 600
    limit: int | None = None  # images of each set, at most
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = (1, 3, 5)
    one_severity: int = 3
    scored_patches: int = 64
    counts: tuple[int, ...] = (4, 16, 32, 64, 128, 512)
    counted: tuple[str, ...] = ("paper-0", "natural-0", RELEASED)  # the weights whose patches are counted
    count_images: int = 150  # of each set, at most: 512 patches an image are many
    batch_sizes: tuple[int, ...] = (1, 16, 32, 64, 128, 256)
    rounds: int = 3
    single: int = 30  # images of each set that are scored alone among normal ones, at most
    spectrum_batches: int = 4
    resamples: int = 1000
    precision: Precision = "tf32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("patches_in_all", "seeds", "fit", "rounds", "single", "spectrum_batches"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.precision not in get_args(Precision):
            raise ParameterError(
                f"unknown precision {self.precision!r}: choose one of {', '.join(get_args(Precision))}"
            )

    @classmethod
    def tiny(cls) -> "Plan":
        """The smallest that still has every study: to see that it runs, not to be quoted."""
        return cls(
            patches_in_all=256,
            seeds=2,
            images=4,
            transform=Transform(size=64),
            patch_model=Architecture(patch_size=16, hidden=(4, 8), latent=4),
            image_model=Architecture(patch_size=64, hidden=(4, 8, 8, 8), latent=4),
            fit=30,
            limit=12,
            corruptions=("gaussian_noise", "brightness"),
            severities=(1, 3),
            scored_patches=8,
            counts=(2, 4),
            counted=("paper-0", "natural-0"),
            count_images=6,
            batch_sizes=(1, 4, 8),
            rounds=2,
            single=3,
            spectrum_batches=2,
            resamples=50,
        )

    @property
    def steps(self) -> int:
        """The steps of each training."""
        return ceil(self.patches_in_all / (self.images * self.patches))

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every corruption at every severity that some study needs."""
        return list(product(self.corruptions, sorted({*self.severities, self.one_severity})))

    def override(self, **changes: Any) -> "Plan":
        """The plan with some values changed; those that are None or empty stay as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value not in (None, ())})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """One training.

    fused: whether it takes the compiled passes of a GPU, as far as its layers allow; compiling costs more than it gains
    where the shapes occur in no other training.
    """

    kind: Kind
    config: TrainingConfig
    fused: bool = True

    @property
    def name(self) -> str:
        """Such as paper-0."""
        return f"{self.kind}-{self.config.seed}"

    @property
    def of_patches(self) -> bool:
        """Whether the model is one of patches, not of whole images."""
        return self.kind != "full"

    @property
    def patches_seen(self) -> int:
        return (self.config.steps or 0) * self.config.images * self.config.patches


def all_jobs(plan: Plan) -> list[Job]:
    """One of each kind first, then the other seeds: whenever time runs out, every study has something."""
    first = [make_job(kind, 0, plan) for kind in KINDS]
    return [*first, *(make_job(kind, seed, plan) for seed in range(1, plan.seeds) for kind in SEEDED)]


def make_job(kind: Kind, seed: int, plan: Plan) -> Job:
    """The same steps, images a step and learning rate for all.

    The full-size model sees each image whole: as many pixels as the patches of the others have.
    """
    full = kind == "full"
    preset = get_preset(kind if kind in PRESETS else "paper")
    architecture = (plan.image_model if full else plan.patch_model) or preset.architecture
    config = replace(
        preset,
        architecture=replace(architecture, normalisation=KINDS[kind]),
        transform=plan.transform,
        images=plan.images,
        patches=1 if full else plan.patches,
        learning_rate=plan.learning_rate,
        steps=plan.steps,
        seed=seed,
    )
    return Job(kind, config, fused=not full)
