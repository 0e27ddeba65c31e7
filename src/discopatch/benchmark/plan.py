"""What is measured, and on how much."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from discopatch.benchmark.metrics import RESAMPLES
from discopatch.benchmark.routes import Storage
from discopatch.images.corrupt import CORE15, CORRUPTIONS, FAMILIES, SEVERITIES
from discopatch.training.negatives import RESEMBLED

Cell = tuple[str, int]  # corruption, severity

_LIKE_A_DEFECT = set(chain.from_iterable(RESEMBLED.values()))
GROUPS: dict[str, tuple[str, ...]] = {
    "all 19": tuple(CORRUPTIONS),
    "core 15": CORE15,
    "like a training defect": tuple(name for name in CORRUPTIONS if name in _LIKE_A_DEFECT),
    "unlike any training defect": tuple(name for name in CORRUPTIONS if name not in _LIKE_A_DEFECT),
    **FAMILIES,
}


@dataclass(frozen=True)
class Folders:
    """Where the images lie."""

    solar: Path  # labels.csv and images/
    natural: Path  # train-*.tar and test.tar
    ood: Path  # a shard for each set


@dataclass(frozen=True)
class Plan:
    """The sizes of everything; the defaults are those of docs/results.md."""

    seed: int = 0
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = SEVERITIES
    paper_severities: tuple[int, ...] = (1, 3, 5)  # the paper's own way costs four times the rest together
    limit: int | None = None  # test images of each set, at most
    solar_test: int = 300
    solar_fit: int = 600
    solar_rest: int | None = None  # of the other cells, at most so many in the splits for false alarms
    split_fit: int = 401
    split_calibration: int = 199
    natural_fit: int = 2000
    natural_storage: Storage = Storage(92)  # noqa: RUF009 - frozen; of the photos to fit on, and so of all that is compared with them
    natural_calibration: int = 500
    splits: int = 10
    rates: tuple[float, ...] = (0.01, 0.05)
    halvings: int = 20
    fit_sizes: tuple[int, ...] = (30, 60, 120, 300, 600)
    fit_size_test: int = 100
    fit_size_severity: int = 3
    resamples: int = RESAMPLES

    def quick(self) -> "Plan":
        """Fewer images to fit on: to see that everything runs, not to be quoted."""
        return replace(
            self,
            solar_fit=120,
            solar_rest=60,
            split_fit=40,
            split_calibration=99,
            natural_fit=40,
            natural_calibration=99,
            fit_sizes=(30, 60),
        )

    def only(
        self,
        *,
        corruptions: Sequence[str] | None = None,
        severities: Sequence[int] | None = None,
        paper_severities: Sequence[int] | None = None,
    ) -> "Plan":
        """Some of the corruptions and severities; all of what is not named."""
        return replace(
            self,
            corruptions=tuple(corruptions or self.corruptions),
            severities=tuple(severities or self.severities),
            paper_severities=tuple(paper_severities or self.paper_severities),
        )

    @property
    def cells(self) -> list[Cell]:
        """Every corruption at every severity."""
        return [(name, severity) for name in self.corruptions for severity in self.severities]

    @property
    def common_severities(self) -> tuple[int, ...]:
        """Those at which the paper's own way is measured too."""
        return tuple(severity for severity in self.severities if severity in self.paper_severities)
