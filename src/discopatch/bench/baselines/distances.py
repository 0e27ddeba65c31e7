"""Baselines that measure a distance: from a Gaussian, boundaries, a subspace, or the nearest normal images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import yeojohnson
from torch import Tensor

from discopatch.bench.baselines.base import CLASSES, Baseline, Setting, below_hundred, energy, whole
from discopatch.bench.networks.base import (
    DISTRIBUTIONS,
    EXTREMES,
    GPU_BATCH,
    LOCAL,
    PENULTIMATE,
    SCENE,
    Array,
    FeatureDict,
    Floats,
)
from discopatch.calibration import Index, fold_numbers
from discopatch.encoders.base import of_unit_length
from discopatch.heads import PlaceModel
from discopatch.heads.gaussian import ShrunkGaussian
from discopatch.heads.places import PlaceFit, fit_places, window_maxima

MIN_SCALE_SHARE = 0.01  # of the usual standard deviation, so that a feature which is always 0 does not decide alone
MIN_SCALE = 1e-6  # when no feature varies at all
MIN_MEAN_DISTANCE = 1e-9  # of features that are the normal mean itself, so that the quotient is a number
MIN_RESIDUAL_SHARE = 1e-9  # of the length of features: a residual below is rounding
MAX_NEIGHBOURS = 50
SMALLEST = 1e-300  # below which no logarithm is taken
LARGEST = 1e30  # of an extreme after its transform, so that squares stay finite
MARGIN = 0.2  # of the range of a channel's activations, beyond each end
SHARP = 0.75  # of the sharpest block of a normal image: NIQE is fitted on blocks above it


class Mahalanobis(Baseline):
    """Score: (f - m)' C^-1 (f - m), one mean m for all normal images, C shrunk as Ledoit and Wolf do; no class is used.

    The method of Lee et al., 2018, which goes by this name elsewhere, has a mean a class: `MDS`.
    """

    needs_classifier = False

    def fit(self, normal: FeatureDict) -> Self:
        values = self.values(normal)
        smallest = max(MIN_SCALE_SHARE * float(np.sqrt(values.var(0).mean())), MIN_SCALE)
        self.gaussian = ShrunkGaussian.fit(values, smallest_scale=smallest)
        return self

    def score(self, features: FeatureDict) -> Array:
        values = self.values(features)
        with torch.inference_mode():
            return np.asarray(self.gaussian(torch.from_numpy(values)).numpy() * values.shape[1])


class MDS(Baseline):
    """Score: the least of (f - m_c)' C^+ (f - m_c) over classes c, C the covariance of f less the mean of its class.

    Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks, 2018, of
    the last features alone, as OpenOOD has it: C is not shrunk, and its pseudo-inverse taken.
    """

    needs_classifier = False
    needs_classes = True

    def fit(self, normal: FeatureDict) -> Self:
        values = self.values(normal)
        numbers = np.unique(normal[CLASSES], return_inverse=True)[1]
        sums = np.zeros((numbers.max() + 1, values.shape[1]))
        np.add.at(sums, numbers, values)
        means = sums / np.bincount(numbers)[:, None]
        within = values - means[numbers]
        variances, directions = np.linalg.eigh(within.T @ within / len(values))
        varied = variances > variances.size * np.finfo(np.float64).eps * variances[-1]
        self.whitening = directions[:, varied] / np.sqrt(variances[varied])  # (d, rank)
        self.means = means @ self.whitening  # (classes, rank)
        return self

    def score(self, features: FeatureDict) -> Array:
        return np.asarray(cdist(self.values(features) @ self.whitening, self.means, "sqeuclidean").min(1))


class UnitLength(Baseline):
    """Base class of Mahalanobis++: f / |f| in place of f.

    Mueller and Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, 2025. The paper's has class
    means: `mds++`. `mahalanobis++` does the same to the class-free method.
    """

    def values(self, features: FeatureDict) -> Array:
        return of_unit_length(super().values(features))


class UnitMahalanobis(UnitLength, Mahalanobis):
    """`Mahalanobis` of f / |f|."""


class UnitMDS(UnitLength, MDS):
    """`MDS` of f / |f|: Mahalanobis++ as its authors have it."""


class DFM(Baseline):
    """Score: |g - V V' g|^2, g = f - m, V as many principal axes of normal f as have less than 97 % of their variance.

    Ahuja et al., Probabilistic Modeling of Deep Features for Out-of-Distribution and Adversarial Detection, 2019: the
    feature reconstruction error, as in anomalib, of the last features in place of a pooled middle layer.
    """

    needs_classifier = False

    def fit(self, normal: FeatureDict) -> Self:
        values = self.values(normal)
        self.mean = values.mean(0)
        variances, axes = np.linalg.svd(values - self.mean, full_matrices=False)[1:]
        total = np.square(variances).cumsum()
        self.axes = axes[: int(np.searchsorted(total, 0.97 * total[-1]))].T
        return self

    def score(self, features: FeatureDict) -> Array:
        moved = self.values(features) - self.mean
        return np.asarray(np.square(moved - moved @ self.axes @ self.axes.T).sum(1))


@dataclass(kw_only=True)
class NCI(Baseline):
    """Confidence: w_c . (f - m) / |f - m| + alpha |f|_1, c the likeliest class, m the mean of normal f.

    Liu and Qin, Detecting Out-of-Distribution through the Lens of Neural Collapse, 2025. The authors choose alpha from
    0.0001 to 0.1 on validation images; here it is the smallest, the default of their program and of OpenOOD.
    """

    options: ClassVar = {"alpha": below_hundred}

    alpha: float = 0.0001

    def fit(self, normal: FeatureDict) -> Self:
        self.mean = self.values(normal).mean(0)
        return self

    def score(self, features: FeatureDict) -> Array:
        values = self.values(features)
        weight = self.classifier.weight[self.classifier.logits(values).argmax(1)].astype(np.float64)
        towards = (weight * of_unit_length(values - self.mean)).sum(1)
        return np.asarray(-towards - self.alpha * np.abs(values).sum(1))


class FDBD(Baseline):
    """Confidence: mean over other classes c of (l_max - l_c) / |w_max - w_c|, over |f - mean of normal f|.

    Liu and Qin, Fast Decision Boundary based Out-of-Distribution Detector, 2024. Classes whose weights are those of
    the likeliest have no boundary with it and are left out: itself, and any twin.
    """

    def fit(self, normal: FeatureDict) -> Self:
        self.mean = self.values(normal).mean(0)
        weight = self.classifier.weight.astype(np.float64)
        squares = np.square(weight).sum(1)
        squared = squares[:, None] + squares - 2 * weight @ weight.T
        rounding = 1e-13 * (squares[:, None] + squares)
        # (classes, classes): |w_a - w_b|, exactly 0 between weights that differ by rounding alone.
        self.apart = np.sqrt(np.where(squared > rounding, squared, 0.0))
        return self

    def score(self, features: FeatureDict) -> Array:
        logits = self.classifier.logits(features[PENULTIMATE])
        between = self.apart[logits.argmax(1)]  # (images, classes)
        gaps = logits.max(1, keepdims=True) - logits
        to_boundaries = np.divide(gaps, between, out=np.zeros_like(gaps), where=between > 0)
        depth = to_boundaries.sum(1) / np.maximum(np.count_nonzero(between, axis=1), 1)
        from_mean = np.linalg.norm(features[PENULTIMATE] - self.mean, axis=1)
        return np.asarray(-depth / np.maximum(from_mean, MIN_MEAN_DISTANCE))


@dataclass(kw_only=True)
class ViM(Baseline):
    """Confidence: E(l) - alpha |R'(f - o)|, o = -pinv(W) b, R = all but the D principal axes of normal f - o.

    alpha = sum of max l / sum of |R'(f - o)| on normal images. Wang et al., ViM: Out-Of-Distribution with Virtual-logit
    Matching, 2022. D is 1000 of 1500 dimensions or more, 512 of 768 or more, else half of them. It is at most half
    the number of normal images: with as many axes as images nothing of them would be left, and alpha be infinite.
    """

    options: ClassVar = {"dimensions": whole}

    dimensions: int | None = None  # D, None for the paper's

    def fit(self, normal: FeatureDict) -> Self:
        """Principal axes are those of most energy about o, where all logits are zero: features are not centred."""
        values = self.values(normal)
        weight = self.classifier.weight.astype(np.float64)
        inverse = np.linalg.pinv(weight @ weight.T, hermitian=True)  # pinv(W) = W'(WW')+
        self.origin = -weight.T @ inverse @ self.classifier.bias.astype(np.float64)
        moved = values - self.origin
        if len(moved) < moved.shape[1]:
            axes = np.linalg.svd(moved, full_matrices=False)[2]
        else:  # in a third of the time
            axes = np.linalg.eigh(moved.T @ moved)[1].T[::-1]
        self.axes = axes[: self.n_axes(len(values))].T
        smallest = MIN_RESIDUAL_SHARE * np.linalg.norm(moved, axis=1).sum()
        residuals = max(self.residual(values).sum(), smallest)
        logits = self.classifier.logits(values).max(1).sum()
        self.alpha = float(logits / residuals) if residuals > 0 else 0.0
        return self

    def residual(self, x: Array) -> Array:
        """(images, d) -> the length of what lies outside the principal space, (images,)."""
        moved = x - self.origin
        return np.asarray(np.linalg.norm(moved - moved @ self.axes @ self.axes.T, axis=1))

    def n_axes(self, n_images: int) -> int:
        """D when fitted on so many normal images."""
        size, wanted = int(self.classifier.weight.shape[1]), self.dimensions
        if wanted is None:
            wanted = 1000 if size >= 1500 else 512 if size >= 768 else size // 2
        return min(wanted, size - 1, n_images // 2)

    def settings(self, images: int) -> dict[str, Setting]:
        return {"dimensions": self.n_axes(images)}

    def score(self, features: FeatureDict) -> Array:
        values = self.values(features)
        return self.alpha * self.residual(values) - energy(self.classifier.logits(values))


@dataclass(kw_only=True)
class KNN(Baseline):
    """Score: |f/|f| - f_k/|f_k||, f_k the k-th nearest of the normal images.

    Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, 2022. k is 50, or one percent of the normal
    images where these are few: the k-th must still be of the image's own kind, which is why the paper takes 1000 of all
    of ImageNet but 10 of one percent of it, fewer than there are in a class.
    """

    needs_classifier = False
    options: ClassVar = {"k": whole}

    k: int | None = None  # None for the rule above

    def fit(self, normal: FeatureDict) -> Self:
        self.bank = of_unit_length(self.values(normal))  # (normal images, d)
        return self

    def score(self, features: FeatureDict) -> Array:
        units, k = of_unit_length(self.values(features)), self.n_neighbours(len(self.bank))
        # Found by the squared distance less what all neighbours share, then measured without cancellation.
        apart = np.square(self.bank).sum(1) - 2 * units @ self.bank.T
        kth = np.argpartition(apart, k - 1, axis=1)[:, k - 1]
        return np.asarray(np.linalg.norm(units - self.bank[kth], axis=1))

    def n_neighbours(self, images: int) -> int:
        """k when fitted on so many normal images."""
        return max(1, min(MAX_NEIGHBOURS, images // 100)) if self.k is None else min(self.k, images)

    def settings(self, images: int) -> dict[str, Setting]:
        return {"k": self.n_neighbours(images)}


class CombOOD(KNN):
    """Score: sqrt(d) log D + z' (C + I)^-1 z, D the squared distance of `KNN`, z the extremes of all activations.

    The extremes are the largest and smallest input of each activation, and logit, standardised, made Gaussian by a
    Yeo-Johnson transform each and standardised again; C is their covariance. Rajasekaran et al., COMBOOD: A
    Semiparametric Approach for Detecting Out-of-distribution Data for Image Classification, 2024: the form that its
    program reports. There, activations that overwrite their input show their outputs.
    """

    needs = (PENULTIMATE, EXTREMES)
    needs_classifier = True
    without = "it is no classifier whose activations can be read"

    def fit(self, normal: FeatureDict) -> Self:
        super().fit(normal)
        values = self.extremes(normal)
        self.mean, self.scale = values.mean(0), safe_scale(values)
        standard = (values - self.mean) / self.scale
        with np.errstate(all="ignore"):
            powers = [float(yeojohnson(column)[1]) if np.ptp(column) else 1.0 for column in standard.T]
        self.powers = np.nan_to_num(np.array(powers), nan=1.0)
        shaped = self.shaped(standard)
        self.centre, self.spread = shaped.mean(0), safe_scale(shaped)
        whitened = (shaped - self.centre) / self.spread
        self.precision = np.linalg.inv(covariance(whitened) + np.eye(len(self.powers)))
        return self

    def extremes(self, features: FeatureDict) -> Array:
        """(images, 2 x activations + 2)."""
        logits = self.classifier.logits(features[PENULTIMATE])
        return np.column_stack([features[EXTREMES].astype(np.float64), logits.max(1), -logits.min(1)])

    def shaped(self, standard: Array) -> Array:
        """Each column after its Yeo-Johnson transform."""
        with np.errstate(all="ignore"):
            columns = [yeojohnson(column, power) for column, power in zip(standard.T, self.powers, strict=True)]
        return np.asarray(np.clip(np.nan_to_num(np.column_stack(columns)), -LARGEST, LARGEST))

    def score(self, features: FeatureDict) -> Array:
        z = (self.shaped((self.extremes(features) - self.mean) / self.scale) - self.centre) / self.spread
        near = np.log(np.maximum(np.square(super().score(features)), SMALLEST))
        return np.asarray(np.sqrt(self.bank.shape[1]) * near + np.einsum("ij,jk,ik->i", z, self.precision, z))


def safe_scale(values: Array) -> Array:
    """The standard deviation of each column, 1 for a constant one."""
    scale = values.std(0)
    return np.where(scale > 0, scale, 1.0)


@dataclass(kw_only=True)
class NNGuide(Baseline):
    """Confidence: E(l) times the mean of the K largest of f/|f| . f_i/|f_i| E(l_i) over normal images i.

    Park et al., Nearest Neighbor Guidance for Out-of-Distribution Detection, 2023. The paper keeps one percent of
    ImageNet, 12 800 images; here every normal image is kept, and K is at most their number. Where a classifier's
    energies are negative the formula stays as it is, though the paper did not mean it for them.
    """

    options: ClassVar = {"k": whole}

    k: int = 100

    def fit(self, normal: FeatureDict) -> Self:
        values = self.values(normal)
        self.bank = of_unit_length(values) * energy(self.classifier.logits(values))[:, None]  # as long as the energy
        return self

    def score(self, features: FeatureDict) -> Array:
        values, least = self.values(features), len(self.bank) - min(self.k, len(self.bank))
        products = of_unit_length(values) @ self.bank.T
        guidance = np.partition(products, least, axis=1)[:, least:].mean(1)
        return np.asarray(-energy(self.classifier.logits(values)) * guidance)

    def settings(self, images: int) -> dict[str, Setting]:
        return {"k": min(self.k, images)}


@dataclass(kw_only=True)
class Local(Baseline):
    """Score: the largest mean z-score over 3 x 3 places, each by its distance from stored places of normal images.

    The `PlaceModel` of this package, which follows PatchCore.
    """

    needs_classifier = False
    needs = (LOCAL,)
    without = "it has no maps of middle layers over the whole image; a discriminator has them in one dense pass"

    device: str | torch.device = "cpu"  # of its products: thousands for each place of an image

    def fit(self, normal: FeatureDict) -> Self:
        self.model = fit_stored_places(normal[LOCAL]).model.to(self.device)
        return self

    def score(self, features: FeatureDict) -> Array:
        z = torch.from_numpy(place_scores(self.model, features[LOCAL]))
        return np.asarray(window_maxima(z)[:, 0].double().numpy())


@dataclass(kw_only=True)
class ActivationCDF(Baseline):
    """Score: sum over layers of the z-score of the sum over channels c of W(image, normal) / range of c.

    W is the earth mover's distance between the distribution of a channel's activations in the image and in all normal
    images; the range is that of normal images, with a fifth more at each end, where others are cut off. Becker et al.,
    2026, as LokiPF/RT-DETR-TUE describes it. Its histograms of 1000 bins are means of 32 groups of the sorted values
    here, and its stages those whose statistics are taken.
    """

    needs_classifier = False
    needs = (DISTRIBUTIONS,)
    without = "the values of its maps are not extracted"

    layer_sizes: tuple[int, ...] = ()  # two for each channel

    def fit(self, normal: FeatureDict) -> Self:
        values = normal[DISTRIBUTIONS]
        pooled = np.sort(values[..., 1:-1].swapaxes(0, 1).reshape(values.shape[1], -1), axis=1)
        groups = pooled.reshape(len(pooled), values.shape[2] - 2, len(values))  # as many values as images in each
        self.reference = groups.mean(2, dtype=np.float64)
        low, high = values[..., 0].min(0).astype(np.float64), values[..., -1].max(0).astype(np.float64)
        self.low, self.high = low - MARGIN * (high - low), high + MARGIN * (high - low)
        sums = self.layer_sums(normal)
        self.mean, self.scale = sums.mean(0), safe_scale(sums)
        return self

    def layer_sums(self, features: FeatureDict) -> Array:
        """(images, layers)."""
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        found = []
        for image in features[DISTRIBUTIONS][..., 1:-1].astype(np.float64):
            inside = np.clip(image, self.low[:, None], self.high[:, None])
            found.append(np.abs(inside - self.reference).mean(1) / span)
        ends = np.cumsum(self.layer_sizes)[:-1] // 2
        return np.stack([part.sum(1) for part in np.split(np.stack(found), ends, axis=1)], axis=1)

    def score(self, features: FeatureDict) -> Array:
        return np.asarray(((self.layer_sums(features) - self.mean) / self.scale).sum(1))


class NIQE(Baseline):
    """Score: sqrt((m - n)' ((C + D) / 2)^+ (m - n)), m, C of the blocks of an image, n, D of sharp normal blocks.

    Mittal et al., Making a "Completely Blind" Image Quality Analyzer, 2013, with the normal images in place of
    pristine ones. Images of 256 pixels have four blocks of 96.
    """

    needs_classifier = False
    needs = (SCENE,)
    without = "only `pixels` has statistics of the pixels"

    def fit(self, normal: FeatureDict) -> Self:
        values = normal[SCENE].astype(np.float64)
        blocks = values[values[..., -1] >= SHARP * values[..., -1].max(1, keepdims=True)][:, :-1]
        self.mean, self.covariance = blocks.mean(0), covariance(blocks)
        return self

    def score(self, features: FeatureDict) -> Array:
        blocks = features[SCENE].astype(np.float64)[..., :-1]
        apart = blocks.mean(1) - self.mean
        pooled = (np.stack([covariance(each) for each in blocks]) + self.covariance) / 2
        inverse = np.linalg.pinv(pooled, hermitian=True)
        return np.asarray(np.sqrt(np.maximum(np.einsum("ij,ijk,ik->i", apart, inverse, apart), 0)))


def covariance(values: Array) -> Array:
    """(n, d) -> (d, d), of a sample."""
    moved = values - values.mean(0)
    return np.asarray(moved.T @ moved / max(len(values) - 1, 1))


def fit_stored_places(places: NDArray[np.floating], *, seed: int = 0) -> PlaceFit:
    """The comparison of the places (images, rows, columns, d) of normal images."""

    def places_of(chosen: Index) -> Iterator[Tensor]:
        return (torch.from_numpy(places[row]).float() for row in chosen)

    count = len(places)
    return fit_places(places_of, fold_numbers(count), np.arange(count), blocks=places.shape[-1:], seed=seed)


@torch.inference_mode()
def place_scores(model: PlaceModel, places: NDArray[np.floating]) -> Floats:
    """Places (images, rows, columns, d) to z-scores (images, rows, columns), image by image on a CPU."""
    device = model.mean.device
    parts = torch.from_numpy(places).split(1 if device.type == "cpu" else GPU_BATCH)
    return torch.cat([model([part.to(device).float().permute(0, 3, 1, 2)]).cpu() for part in parts]).numpy()
