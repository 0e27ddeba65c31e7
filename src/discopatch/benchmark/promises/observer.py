"""Sets of images pass the discriminator once; which images these were is noted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from discopatch.benchmark.falsealarms import Scores
from discopatch.benchmark.imageset import Digests, ImageSet
from discopatch.benchmark.pool import PART, Pool
from discopatch.benchmark.report import Report, set_report
from discopatch.benchmark.runner import Tell, prepare
from discopatch.fitting import CHANGED
from discopatch.images import Pixels
from discopatch.model.weights import Weights
from discopatch.scoring import Evidence, Head, Scorer
from discopatch.scoring.changes import displacements
from discopatch.scoring.evidence import Displacements


@dataclass(eq=False)
class Observer:
    """Looks in one dense pass, as a detector does, while the processes of the pool prepare what comes next."""

    weights: Weights
    pool: Pool
    device: str = "auto"
    seed: int = 0
    tell: Tell = lambda what, done, total: None
    data: Report = field(default_factory=dict)  # what each set consists of
    digests: Digests = field(default_factory=Digests)

    def __post_init__(self) -> None:
        self.scorer = Scorer(self.weights, sampling="dense", device=self.device, batch_size=PART)

    def see(self, *sets: ImageSet) -> list[Evidence]:
        """What is seen of each set."""
        found: list[list[Evidence]] = [[] for _ in sets]
        done, total = 0, sum(map(len, sets))
        for place, pixels in self._prepared(*sets):
            found[place].append(self.scorer.inspect_pixels(pixels))
            done += len(pixels)
            self.tell(sets[place].name, done, total)
        return [Evidence.concatenate(parts) for parts in found]

    def _prepared(self, *sets: ImageSet) -> Iterator[tuple[int, Pixels]]:
        """In one stream, so that no process waits while another set ends."""
        for images in sets:
            self.digests.learn(images.files, workers=self.pool.workers)
            self.data[images.name] = set_report(images, self.digests)
        parts = [(place, part) for place, images in enumerate(sets) for part in images.parts(PART)]
        pictures = self.pool.stream(partial(prepare, part.files, part.way, part.first) for _, part in parts)
        for (place, _), pixels in zip(parts, pictures, strict=True):
            yield place, pixels

    def changes(self, images: ImageSet) -> Displacements:
        """How known changes move what is seen of the first few."""
        samples = prepare(images.files[:CHANGED], images.way, images.first)
        return displacements(self.scorer.inspect_pixels, samples, seed=self.seed)


def scored(seen: Evidence, heads: Mapping[str, Head]) -> Scores:
    """By every head."""
    return {name: head.score(seen) for name, head in heads.items()}
