"""What is measured, and on how much."""

from dataclasses import dataclass
from typing import Self

from discopatch.benchmark.metrics import RESAMPLES
from discopatch.images.corrupt import CORRUPTIONS


@dataclass(frozen=True)
class Plan:
    """The sizes of everything; the defaults are those of docs/promises.md."""

    seed: int = 0
    rates: tuple[float, ...] = (0.01, 0.05)
    splits: int = 10
    split_fit: int = 401
    split_calibration: int = 199
    cells: int | None = None  # solar cells to fit on and to split, at most so many
    fit_sizes: tuple[int, ...] = (30, 60, 120, 300, 600)
    corrupted: int = 100  # solar cells, under each corruption
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severity: int = 3
    fit_photos: int = 2000
    unfitted_photos: int = 500  # that the discriminator was trained on, but the head is not fitted on
    other: int | None = None  # test photos, and images of each other set, at most so many
    resamples: int = RESAMPLES

    @classmethod
    def quick(cls) -> Self:
        """Few of everything: to see it run, not to be quoted."""
        return cls(
            splits=4,
            split_fit=30,
            split_calibration=99,
            cells=150,
            fit_sizes=(30, 60),
            corrupted=8,
            corruptions=("gaussian_noise", "contrast"),
            fit_photos=30,
            unfitted_photos=8,
            other=8,
            resamples=200,
        )
