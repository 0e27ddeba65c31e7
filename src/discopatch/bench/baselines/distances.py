"""Baselines that measure a distance: from a Gaussian of normal images, from decision boundaries, from a subspace."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from scipy.spatial.distance import cdist

from discopatch.bench.baselines.base import CLASSES, ClassifierBaseline, Setting, check_fitted, energy
from discopatch.bench.networks.base import PENULTIMATE, Array, FeatureDict
from discopatch.errors import ParameterError
from discopatch.heads.gaussian import ShrunkGaussian

MIN_SCALE_SHARE = 0.01  # of the usual standard deviation, so that a feature which is always 0 does not decide alone
MIN_SCALE = 1e-6  # when no feature varies at all
MIN_MEAN_DISTANCE = 1e-9  # of features that are the normal mean itself, so that the quotient is a number
MIN_RESIDUAL_SHARE = 1e-9  # of the length of features: a residual below is rounding


@dataclass(frozen=True, eq=False, kw_only=True)
class Mahalanobis(ClassifierBaseline):
    """Score: (f - m)' C^-1 (f - m), one mean m for all normal images, C shrunk as Ledoit and Wolf do; no class is used.

    The method of Lee et al., 2018, which goes by this name elsewhere, has a mean a class: `MDS`.
    """

    needs_classifier = False

    gaussian: ShrunkGaussian | None = None

    def fit(self, normal: FeatureDict) -> Self:
        values = np.asarray(normal[PENULTIMATE], np.float64)
        smallest = max(MIN_SCALE_SHARE * float(np.sqrt(values.var(0).mean())), MIN_SCALE)
        return replace(self, gaussian=ShrunkGaussian.fit(values, smallest_scale=smallest))

    def score(self, features: FeatureDict) -> Array:
        gaussian, values = check_fitted(self.gaussian), np.asarray(features[PENULTIMATE], np.float64)
        with torch.inference_mode():
            result: Array = gaussian(torch.from_numpy(values)).numpy() * values.shape[1]
        return result


class ClassGaussians(NamedTuple):
    """The parameters of a fitted MDS: one Gaussian a class, all with the same covariance V diag(variances) V'."""

    whitening: Array  # (d, rank): V / sqrt(variances), without the directions in which no class varies
    means: Array  # (classes, rank), whitened


@dataclass(frozen=True, eq=False, kw_only=True)
class MDS(ClassifierBaseline):
    """Score: the least of (f - m_c)' C^+ (f - m_c) over classes c, C the covariance of f less the mean of its class.

    Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, 2018, of
    the last features alone, as OpenOOD has it: C is not shrunk, and its pseudo-inverse taken.
    """

    needs_classifier = False
    needs_classes = True

    gaussians: ClassGaussians | None = None

    def fit(self, normal: FeatureDict) -> Self:
        values = np.asarray(normal[PENULTIMATE], np.float64)
        numbers = np.unique(normal[CLASSES], return_inverse=True)[1]
        sums = np.zeros((numbers.max() + 1, values.shape[1]))
        np.add.at(sums, numbers, values)
        means = sums / np.bincount(numbers)[:, None]
        within = values - means[numbers]
        variances, directions = np.linalg.eigh(within.T @ within / len(values))
        varied = variances > variances.size * np.finfo(np.float64).eps * variances[-1]
        whitening = directions[:, varied] / np.sqrt(variances[varied])
        return replace(self, gaussians=ClassGaussians(whitening, means @ whitening))

    def score(self, features: FeatureDict) -> Array:
        whitening, means = check_fitted(self.gaussians)
        values = np.asarray(features[PENULTIMATE], np.float64) @ whitening
        result: Array = cdist(values, means, "sqeuclidean").min(1)
        return result


@dataclass(frozen=True, eq=False, kw_only=True)
class FDBD(ClassifierBaseline):
    """Confidence: mean over other classes c of (l_max - l_c) / |w_max - w_c|, over |f - mean of normal f|.

    Liu and Qin, Fast Decision Boundary based Out-of-Distribution Detector, 2024. Classes whose weights are those of
    the likeliest have no boundary with it and are left out: itself, and any twin.
    """

    mean: Array | None = None  # (d,) of normal features

    @cached_property
    def apart(self) -> Array:
        """(classes, classes): |w_a - w_b|, exactly 0 between weights that differ by rounding alone."""
        weight = self.classifier.weight.astype(np.float64)
        squares = np.square(weight).sum(1)
        squared = squares[:, None] + squares - 2 * weight @ weight.T
        rounding = 1e-13 * (squares[:, None] + squares)
        result: Array = np.sqrt(np.where(squared > rounding, squared, 0.0))
        return result

    def fit(self, normal: FeatureDict) -> Self:
        return replace(self, mean=np.asarray(normal[PENULTIMATE], np.float64).mean(0))

    def score(self, features: FeatureDict) -> Array:
        mean, logits = check_fitted(self.mean), self.classifier.logits(features[PENULTIMATE])
        between = self.apart[logits.argmax(1)]  # (images, classes)
        gaps = logits.max(1, keepdims=True) - logits
        to_boundaries = np.divide(gaps, between, out=np.zeros_like(gaps), where=between > 0)
        depth = to_boundaries.sum(1) / np.maximum(np.count_nonzero(between, axis=1), 1)
        from_mean = np.linalg.norm(features[PENULTIMATE] - mean, axis=1)
        result: Array = -depth / np.maximum(from_mean, MIN_MEAN_DISTANCE)
        return result


class PrincipalSpace(NamedTuple):
    """The parameters of a fitted ViM."""

    origin: Array  # o, (d,)
    axes: Array  # (d, D), orthonormal columns
    alpha: float  # scales residuals to the size of logits

    def residual(self, x: Array) -> Array:
        """(images, d) -> the length of what lies outside the space, (images,)."""
        moved = x - self.origin
        result: Array = np.linalg.norm(moved - moved @ self.axes @ self.axes.T, axis=1)
        return result


@dataclass(frozen=True, eq=False, kw_only=True)
class ViM(ClassifierBaseline):
    """Confidence: E(l) - alpha |R'(f - o)|, o = -pinv(W) b, R = all but the D principal axes of normal f - o.

    alpha = sum of max l / sum of |R'(f - o)| on normal images. Wang et al., ViM: Out-Of-Distribution with Virtual-logit
    Matching, 2022. D is 1000 of 1500 dimensions or more, 512 of 768 or more, else half of them. It is at most half
    the number of normal images: with as many axes as images nothing of them would be left, and alpha be infinite.
    """

    options: ClassVar = {"dimensions": int}

    dimensions: int | None = None  # D, None for the paper's
    space: PrincipalSpace | None = None

    def __post_init__(self) -> None:
        size = self.classifier.weight.shape[1]
        if self.dimensions is not None and not 0 <= self.dimensions < size:
            raise ParameterError(f"dimensions is {self.dimensions}: choose fewer than the features' {size}, or None")

    def fit(self, normal: FeatureDict) -> Self:
        """Principal axes are those of most energy about o, where all logits are zero: features are not centred."""
        values = np.asarray(normal[PENULTIMATE], np.float64)
        weight = self.classifier.weight.astype(np.float64)
        inverse = np.linalg.pinv(weight @ weight.T, hermitian=True)  # pinv(W) = W'(WW')+
        origin: Array = -weight.T @ inverse @ self.classifier.bias.astype(np.float64)
        space = PrincipalSpace(origin, leading_axes(values - origin, self.n_axes(len(values))), alpha=1.0)
        smallest = MIN_RESIDUAL_SHARE * np.linalg.norm(values - origin, axis=1).sum()
        residuals = max(space.residual(values).sum(), smallest)
        logits = self.classifier.logits(values).max(1).sum()
        return replace(self, space=space._replace(alpha=float(logits / residuals) if residuals > 0 else 0.0))

    def n_axes(self, n_images: int) -> int:
        """D when fitted on so many normal images."""
        size, wanted = self.classifier.weight.shape[1], self.dimensions
        if wanted is None:
            wanted = 1000 if size >= 1500 else 512 if size >= 768 else size // 2
        return min(wanted, n_images // 2)

    def settings(self, images: int) -> dict[str, Setting]:
        return {"dimensions": self.n_axes(images)}

    def score(self, features: FeatureDict) -> Array:
        space, values = check_fitted(self.space), np.asarray(features[PENULTIMATE], np.float64)
        return space.alpha * space.residual(values) - energy(self.classifier.logits(values))


def leading_axes(x: Array, count: int) -> Array:
    """(images, d) -> the orthonormal directions of most energy, (d, count), at the cost of the smaller of the two."""
    images, size = x.shape
    if images >= size:
        columns = np.linalg.eigh(x.T @ x / images)[1]  # the least energy first
    else:
        columns = np.linalg.qr(x.T @ np.linalg.eigh(x @ x.T / images)[1][:, ::-1])[0][:, ::-1]
    result: Array = np.ascontiguousarray(columns[:, columns.shape[1] - count :])
    return result
