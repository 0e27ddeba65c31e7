"""What all measurements share: the network, the processes that prepare pictures, and the scores of what is seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discopatch.benchmark.metrics import Counts, Estimate, draw, estimate_auroc
from discopatch.benchmark.plan import Plan
from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.reading import Encoded, ImageSet, read
from discopatch.detector import Detector
from discopatch.images import Pixels
from discopatch.model.weights import Weights
from discopatch.scoring import Evidence, Head, Scorer

Report = dict[str, Any]
Scores = dict[str, NDArray[np.float64]]  # by head
Tell = Callable[[str, int, int], object]  # what is being done, pictures done, pictures in all

PAPER = "paper"  # the paper's own way: the mean logit of random patches
PAPER_PATCHES = 64
HEADS = ("combined", "statistics", "logit", PAPER)
DIGITS = 5


class Seen(NamedTuple):
    """What the network shows of some images: in one dense pass, and in the paper's way where it was asked for."""

    dense: Evidence
    paper: NDArray[np.float64] | None

    @classmethod
    def concatenate(cls, parts: Sequence["Seen"]) -> "Seen":
        """Of all images."""
        papers = [part.paper for part in parts if part.paper is not None]
        return cls(Evidence.concatenate([part.dense for part in parts]), np.concatenate(papers) if papers else None)


@dataclass(eq=False)
class Bench:
    """Everything that a measurement needs; `data` notes which images were used."""

    weights: str | Weights
    plan: Plan
    pool: Pool
    device: str
    tell: Tell = lambda what, done, total: None
    data: Report = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dense = self.detector().scorer
        weights, device = self.dense.weights, self.dense.device
        self.paper = Scorer(weights, patches=PAPER_PATCHES, seed=self.plan.seed, device=device, batch_size=PART)

    def detector(self, **parameters: Any) -> Detector:
        """A new one, of the same weights."""
        return Detector(self.weights, seed=self.plan.seed, device=self.device, batch_size=PART, **parameters)

    def look(self, pixels: Pixels, *, paper: bool = True) -> Seen:
        """(N, size, size, 3) -> what the network shows."""
        return Seen(self.dense.inspect_pixels(pixels), self.paper.score_pixels(pixels) if paper else None)

    def load(self, name: str, files: Sequence[Encoded] | Sequence[Path]) -> ImageSet:
        """Read, and noted with its digest."""
        self.tell(f"reading {name}", 0, len(files))
        found = read(files, self.dense.weights.transform, workers=self.pool.workers)
        self.data[name] = {"images": len(found), "digest": found.digest}
        return found

    def drawn(self, name: str, images: int) -> Counts:
        """Which images of the set of that name each resample has."""
        return draw(images, seed=self.plan.seed, name=name, resamples=self.plan.resamples)


def score(seen: Seen, heads: Mapping[str, Head]) -> Scores:
    """By every head, and in the paper's way where that was looked at."""
    found = {name: head.score(seen.dense) for name, head in heads.items()}
    return found if seen.paper is None else {**found, PAPER: seen.paper}


def compare(normal: Scores, shifted: Scores, drawn: tuple[Counts, Counts]) -> dict[str, Estimate]:
    """AUROC by each head that has scored both."""
    return {head: estimate_auroc(normal[head], shifted[head], drawn) for head in HEADS if head in shifted}


def figure(estimate: Estimate) -> list[float]:
    """Value, low and high end, for JSON."""
    return [round(number, DIGITS) for number in (estimate.value, *estimate.interval)]


def figures(estimates: Mapping[str, Estimate]) -> dict[str, list[float]]:
    """The same, by name."""
    return {name: figure(each) for name, each in estimates.items()}
