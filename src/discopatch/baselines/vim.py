"""ViM: energy against a virtual logit, which is large for what normal images never do."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from discopatch.baselines.energy import energy
from discopatch.baselines.learning import learnt, of_normal
from discopatch.baselines.method import PENULTIMATE, Array, Classifier, Features

SMALLEST_SHARE = 1e-9  # of the length of features: a residual below is rounding


class PrincipalSpace(NamedTuple):
    """What normal images do."""

    origin: Array  # (d,)
    axes: Array  # (d, D), orthonormal columns
    alpha: float  # what makes residuals as large as logits

    def residual(self, x: Array) -> Array:
        """(images, d) -> the length of what lies outside, (images,)."""
        moved = x - self.origin
        result: Array = np.linalg.norm(moved - moved @ self.axes @ self.axes.T, axis=1)
        return result


@dataclass(frozen=True, eq=False)
class ViM:
    """Confidence: E(l) - alpha |R'(f - o)|, o = -pinv(W) b, R = all but the D principal axes of normal f - o.

    alpha = sum of max l / sum of |R'(f - o)| on normal images. Wang et al., ViM: Out-Of-Distribution with Virtual-logit
    Matching, 2022. D is 1000 of 1500 dimensions or more, 512 of 768 or more, else half of them. It is at most half
    the number of normal images: with as many axes as images nothing of them would be left, and alpha be infinite.
    """

    needs: ClassVar[tuple[str, ...]] = (PENULTIMATE,)

    classifier: Classifier
    _: KW_ONLY
    dimensions: int | None = None  # D, None for the paper's
    space: PrincipalSpace | None = None

    def __post_init__(self) -> None:
        size = self.classifier.weight.shape[1]
        if self.dimensions is not None and not 0 <= self.dimensions < size:
            raise ValueError(f"dimensions is {self.dimensions}: choose fewer than the features' {size}, or None")

    def fit(self, normal: Features) -> Self:
        """The principal space of normal images, not centred but seen from where all logits are zero; and alpha."""
        values = of_normal(normal, PENULTIMATE)
        weight = self.classifier.weight.astype(np.float64)
        inverse = np.linalg.pinv(weight @ weight.T, hermitian=True)  # pinv(W) = W'(WW')+
        origin: Array = -weight.T @ inverse @ self.classifier.bias.astype(np.float64)
        axes = principal_axes(values - origin, self.count(len(values)))
        space = PrincipalSpace(origin, axes, alpha=1.0)
        smallest = SMALLEST_SHARE * np.linalg.norm(values - origin, axis=1).sum()
        residuals = max(space.residual(values).sum(), smallest)
        logits = self.classifier.logits(values).max(1).sum()
        return replace(self, space=space._replace(alpha=float(logits / residuals) if residuals > 0 else 0.0))

    def count(self, images: int) -> int:
        """D, from so many normal images."""
        wanted = paper_dimensions(self.classifier.weight.shape[1]) if self.dimensions is None else self.dimensions
        return min(wanted, images // 2)

    def score(self, features: Features) -> Array:
        """alpha |R'(f - o)| - E(l)."""
        space = learnt(self.space)
        values = np.asarray(features[PENULTIMATE], np.float64)
        return space.alpha * space.residual(values) - energy(self.classifier.logits(values))


def paper_dimensions(size: int) -> int:
    """D for features of that size."""
    if size >= 1500:
        return 1000
    return 512 if size >= 768 else size // 2


def principal_axes(x: Array, count: int) -> Array:
    """(images, d) -> the directions of most energy, (d, count); fewer images than dimensions cost no more than they."""
    images, size = x.shape
    if images >= size:
        columns = np.linalg.eigh(x.T @ x / images)[1]  # the least energy first
    else:
        columns = np.linalg.qr(x.T @ np.linalg.eigh(x @ x.T / images)[1][:, ::-1])[0][:, ::-1]
    result: Array = np.ascontiguousarray(columns[:, columns.shape[1] - count :])
    return result
