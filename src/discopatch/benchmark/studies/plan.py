"""How large every study is."""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Literal, get_args

from discopatch.benchmark.studies.gallery import Wanted
from discopatch.images import Transform
from discopatch.images.corrupt import CORRUPTIONS
from discopatch.model import Architecture

Precision = Literal["tf32", "fp32", "fp16"]
RELEASED = "released"
SPECTRA = ("paper-0", "natural-0")  # the runs whose VAE is looked at


@dataclass(frozen=True)
class Plan:
    """The sizes of everything.

    patches_in_all: how many patches each training sees; all of them take the same steps of the same number of pictures.
    of_patches, of_pictures: the networks, where they are not those of the presets; for trials.
    severities: of the corruptions behind the evaluation; where one is enough, it is `one_severity`.
    precision: of scoring on a GPU: float32 with products rounded to TF32, without, or autocast to float16.
    """

    patches_in_all: int = 1_000_000
    seeds: int = 5
    images: int = 32
    patches: int = 16
    learning_rate: float = 2e-4
    transform: Transform = Transform()  # noqa: RUF009 - frozen
    of_patches: Architecture | None = None
    of_pictures: Architecture | None = None
    fit: int = 600
    limit: int | None = None  # images of each set, at most
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = (1, 3, 5)
    one_severity: int = 3
    scored_patches: int = 64
    counts: tuple[int, ...] = (4, 16, 32, 64, 128, 512)
    counted: tuple[str, ...] = ("paper-0", "natural-0", RELEASED)  # whose patches are counted
    count_pictures: int = 150  # of each set, at most: 512 patches an image are many
    batch_sizes: tuple[int, ...] = (1, 16, 32, 64, 128, 256)
    rounds: int = 3
    lone: int = 30  # images of each set that are each put alone among normal ones, at most
    spectrum_batches: int = 4
    resamples: int = 1000
    precision: Precision = "tf32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("patches_in_all", "seeds", "fit", "rounds", "lone", "spectrum_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.precision not in get_args(Precision):
            raise ValueError(f"unknown precision {self.precision!r}: choose one of {', '.join(get_args(Precision))}")

    @classmethod
    def tiny(cls) -> "Plan":
        """The smallest that is still everything: to see that it runs, not to be quoted."""
        return cls(
            patches_in_all=256,
            seeds=2,
            images=4,
            patches=16,
            transform=Transform(size=64),
            of_patches=Architecture(patch_size=16, hidden=(4, 8), latent=4),
            of_pictures=Architecture(patch_size=64, hidden=(4, 8, 8, 8), latent=4),
            fit=30,
            limit=12,
            corruptions=("gaussian_noise", "brightness"),
            severities=(1, 3),
            scored_patches=8,
            counts=(2, 4),
            counted=("paper-0", "natural-0"),
            count_pictures=6,
            batch_sizes=(1, 4, 8),
            rounds=2,
            lone=3,
            spectrum_batches=2,
            resamples=50,
        )

    @property
    def steps(self) -> int:
        """Of each training."""
        return ceil(self.patches_in_all / (self.images * self.patches))

    @property
    def wanted(self) -> Wanted:
        """The pictures that all studies look at."""
        return Wanted(
            transform=self.transform,
            fit=self.fit,
            limit=self.limit,
            corruptions=self.corruptions,
            severities=tuple(sorted({*self.severities, self.one_severity})),
            seed=self.seed,
        )

    def only(self, **changes: Any) -> "Plan":
        """With some values changed; those that are None or empty stay as they are."""
        return replace(self, **{name: value for name, value in changes.items() if value not in (None, ())})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
