"""What looks at pictures: the discriminator in one dense pass or at N patches, and the classifiers of the baselines."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.backbones.backbone import Backbone
from discopatch.baselines.method import STATISTICS, Array, Features, Method
from discopatch.baselines.named import BASELINES, find_baseline
from discopatch.fitting import CHANGED
from discopatch.images import Pixels
from discopatch.model.weights import Weights
from discopatch.scoring import Evidence, Head, Scorer, find_head
from discopatch.scoring.changes import displacements
from discopatch.scoring.evidence import Displacements
from discopatch.scoring.named import HEADS

LOGITS = "logits"  # (images, places), of the discriminator


class Eye(Protocol):
    """A frozen network; `methods` are those that can be made of what it shows."""

    name: str
    digest: str
    parameters: int

    @property
    def methods(self) -> tuple[str, ...]:
        """By name."""

    def needs(self, method: str) -> tuple[str, ...]:
        """The kinds of features that the method of that name looks at."""

    def look(self, pixels: Pixels, kinds: Collection[str]) -> Features:
        """(images, size, size, 3) -> those kinds of features."""

    def method(self, name: str, samples: Pixels) -> Method:
        """One that has learnt nothing yet; `samples` are a few normal pictures, for those who try changes on them."""


@dataclass(frozen=True, eq=False)
class HeadMethod:
    """One of our heads behind the interface of all methods."""

    head: Head
    moved: Displacements = field(default_factory=dict)
    needs: ClassVar[tuple[str, ...]] = (LOGITS, STATISTICS)

    def fit(self, normal: Features) -> Self:
        """What is normal, and in which directions known changes lead away from it."""
        return replace(self, head=self.head.fit(evidence(normal), self.moved))

    def score(self, features: Features) -> Array:
        """The head's."""
        return self.head.score(evidence(features))


def evidence(features: Features) -> Evidence:
    """What heads look at."""
    logits, statistics = (np.asarray(features[kind], np.float32) for kind in (LOGITS, STATISTICS))
    return Evidence(logits, statistics)


class DiscriminatorEye:
    """The discriminator, in one dense pass over the picture or at random patches."""

    methods = tuple(HEADS)

    def __init__(
        self, name: str, weights: Weights, *, patches: int | None, seed: int, device: str, batch_size: int
    ) -> None:
        self.scorer = Scorer(
            weights,
            patches=patches or 1,
            sampling="random" if patches else "dense",
            seed=seed,
            device=device,
            batch_size=batch_size,
        )
        self.name = name
        self.parameters = sum(each.numel() for each in weights.discriminator.parameters())
        looks = f"{weights.digest} {patches} {seed if patches else 0}"
        self.digest = hashlib.sha256(looks.encode()).hexdigest()[:16]
        self._seed = seed
        self._moved: dict[bytes, Displacements] = {}

    def needs(self, method: str) -> tuple[str, ...]:
        """All heads look at the same."""
        return HeadMethod.needs

    def look(self, pixels: Pixels, kinds: Collection[str]) -> Features:
        """Logits and statistics."""
        seen = self.scorer.inspect_pixels(pixels)
        return {LOGITS: seen.logits, STATISTICS: seen.statistics}

    def method(self, name: str, samples: Pixels) -> HeadMethod:
        """A head; the one that knows changes tries them on the samples, once."""
        if name != "combined":
            return HeadMethod(find_head(name))
        key = hashlib.sha256(samples.tobytes()).digest()
        if key not in self._moved:
            self._moved[key] = displacements(self.scorer.inspect_pixels, samples[:CHANGED], seed=self._seed)
        return HeadMethod(find_head(name), self._moved[key])

    def mean_features(self, pixels: Pixels) -> NDArray[np.float32]:
        """(images, channels): the last features, averaged over the picture."""
        return self.scorer.mean_features(pixels)


class ClassifierEye:
    """A classifier that was trained with labels on other images."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.name, self.digest, self.parameters = backbone.name, backbone.digest, backbone.parameters

    @property
    def methods(self) -> tuple[str, ...]:
        """Those whose features it can show."""
        return tuple(name for name, kind in BASELINES.items() if set(kind.needs) <= set(self.backbone.kinds))

    def needs(self, method: str) -> tuple[str, ...]:
        """What that baseline looks at."""
        return find_baseline(method).needs

    def look(self, pixels: Pixels, kinds: Collection[str]) -> Features:
        """The backbone's."""
        return self.backbone.look(pixels, kinds)

    def method(self, name: str, samples: Pixels) -> Method:
        """A baseline with this classifier."""
        made: Method = find_baseline(name)(self.backbone.classifier)
        return made
