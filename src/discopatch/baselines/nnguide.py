"""NNGuide: energy, trusted as far as confident normal images look alike."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from discopatch.baselines.energy import energy
from discopatch.baselines.learning import in_chunks, learnt, normalised, of_normal
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features


@dataclass(frozen=True, eq=False)
class NNGuide:
    """Confidence: E(l) times the mean of the K largest of f/|f| . f_i/|f_i| E(l_i) over normal images i.

    Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, 2023. The paper keeps one percent of
    ImageNet, 12 800 images; here every normal image is kept, and K is at most their number. Where a classifier's
    energies are negative the formula stays as it is, though the paper did not mean it for them.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    k: int = 100
    bank: Array | None = None  # (normal images, d), rows as long as the energy

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k is {self.k}: ask for at least one neighbour")

    def fit(self, normal: Features) -> Self:
        """Keeps the normal images, each as long as its energy."""
        values = of_normal(normal, PENULTIMATE)
        return replace(self, bank=normalised(values) * energy(self.classifier.logits(values))[:, None])

    def score(self, features: Features) -> Array:
        """-E(l) guidance."""
        bank = learnt(self.bank)
        k = min(self.k, len(bank))

        def guided(x: NDArray[np.floating]) -> Array:
            products = normalised(x) @ bank.T
            guidance = np.partition(products, len(bank) - k, axis=1)[:, len(bank) - k :].mean(1)
            result: Array = -energy(self.classifier.logits(x)) * guidance
            return result

        return in_chunks(guided, features[PENULTIMATE], bank)
