"""Every baseline ranks images as a reference does that shares no code with it.

References follow the public programs that docs/benchmark.md names, in numpy, scipy and scikit-learn, with plain loops
and explicit decompositions.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import correlate
from scipy.optimize import brentq
from scipy.special import gamma, logsumexp, softmax
from scipy.stats import spearmanr
from sklearn.covariance import EmpiricalCovariance, ledoit_wolf_shrinkage
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import PowerTransformer, StandardScaler, normalize

from discopatch.bench.baselines import CLASSES, make_baseline
from discopatch.bench.baselines.distances import ActivationCDF
from discopatch.bench.networks.base import (
    DISTRIBUTIONS,
    EXTREMES,
    PENULTIMATE,
    PERTURBED,
    SCENE,
    Array,
    Classifier,
    ClassifierBackbone,
    FeatureDict,
)
from discopatch.bench.networks.pixels import PixelStatistics
from discopatch.bench.networks.resnet50 import ResNet50, convert_keras
from discopatch.demo import crops, sample_photos
from discopatch.images import Pixels
from tests.bench.networks.samples import by_full_svd, keras_variables
from tests.bench.networks.test_resnet50 import KerasResNet50

SIZE, N_CLASSES, N_NORMAL, N_NEW = 256, 20, 1200, 400


def assert_ranked_alike(ours: Array, reference: Array, *, rtol: float) -> None:
    assert len(np.unique(reference)) > 0.99 * len(reference), "or equal ranks would say little"
    assert spearmanr(ours, reference).statistic >= 0.9999
    np.testing.assert_allclose(ours, reference, rtol=rtol, atol=rtol * np.abs(reference).max())


class Features:
    """As after a relu, each image near its class, with variances that fall as those of real features do.

    Half of the new images have no class.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        directions = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]
        self.spread = directions * np.arange(1, SIZE + 1) ** -0.7
        self.centres = rng.normal(size=(N_CLASSES, SIZE)) @ self.spread * 1.5
        weight = self.centres / np.linalg.norm(self.centres, axis=1, keepdims=True) + rng.normal(0, 0.03, (20, SIZE))
        self.weight = weight.astype(np.float32)
        self.bias = rng.normal(0, 0.1, N_CLASSES).astype(np.float32)
        self.classes = rng.integers(N_CLASSES, size=N_NORMAL)
        self.normal = self.images(rng, self.centres[self.classes])
        known = self.centres[rng.integers(N_CLASSES, size=N_NEW // 2)]
        self.new = self.images(rng, np.vstack([known, np.zeros_like(known)]))

    def images(self, rng: np.random.Generator, centres: Array) -> NDArray[np.float32]:
        values = centres + rng.normal(size=centres.shape) @ self.spread + 0.05
        result: NDArray[np.float32] = np.maximum(values, 0).astype(np.float32)
        return result

    def logits(self, f: Array) -> Array:
        """Of one image (d,) or of several (images, d)."""
        result: Array = np.asarray(f, np.float64) @ self.weight.astype(np.float64).T + self.bias
        return result

    def energy(self, f: Array) -> float:
        return float(logsumexp(self.logits(f)))


DATA = Features()
NORMAL, NEW = DATA.normal.astype(np.float64), DATA.new.astype(np.float64)
RNG = np.random.default_rng(1)
SHIFTED = [np.abs(each + RNG.normal(0, 0.1, each.shape)) - 0.02 for each in (NORMAL, NEW)]
PEAKS = [RNG.gamma(2, 1, (len(each), 9)) + RNG.normal(0, 0.1, (len(each), 1)) for each in (NORMAL, NEW)]
UNIT_NORMAL, UNIT_NEW = normalize(NORMAL), normalize(NEW)


def shaped(f: Array, variant: str, percentile: float) -> Array:
    """One image's features after ASH, or after SCALE."""
    kept = np.argsort(-f, kind="stable")[: SIZE - round(SIZE * percentile / 100)]
    pruned = np.zeros(SIZE)
    pruned[kept] = f[kept]
    if variant == "p":
        return pruned
    if variant == "b":
        pruned[kept] = f.sum() / len(kept)
        return pruned
    result: Array = (f if variant == "scale" else pruned) * np.exp(f.sum() / pruned.sum())
    return result


def msp() -> list[float]:
    return [-softmax(DATA.logits(f)).max() for f in NEW]


def maxlogit() -> list[float]:
    return [-DATA.logits(f).max() for f in NEW]


def plain_energy() -> list[float]:
    return [-DATA.energy(f) for f in NEW]


def ash(variant: str, percentile: float) -> list[float]:
    return [-DATA.energy(shaped(f, variant, percentile)) for f in NEW]


def nnguide(k: int) -> list[float]:
    guides = [unit * DATA.energy(f) for unit, f in zip(UNIT_NORMAL, NORMAL, strict=True)]
    return [
        -DATA.energy(f) * float(np.mean(sorted(float(unit @ guide) for guide in guides)[-k:]))
        for unit, f in zip(UNIT_NEW, NEW, strict=True)
    ]


def fdbd() -> list[float]:
    mean, found = NORMAL.mean(0), []
    for f in NEW:
        logits = DATA.logits(f)
        best = int(logits.argmax())
        depths = [
            abs(logits[best] - logits[c]) / np.linalg.norm(DATA.weight[best].astype(np.float64) - DATA.weight[c])
            for c in range(N_CLASSES)
            if c != best
        ]
        found.append(-float(np.mean(depths) / np.linalg.norm(f - mean)))
    return found


def vim(dimensions: int) -> list[float]:
    origin = -np.linalg.pinv(DATA.weight.astype(np.float64)) @ DATA.bias
    energies, axes = np.linalg.eig(EmpiricalCovariance(assume_centered=True).fit(NORMAL - origin).covariance_)
    rest = axes[:, np.argsort(-energies)[dimensions:]]
    alpha = DATA.logits(NORMAL).max(1).mean() / np.linalg.norm((NORMAL - origin) @ rest, axis=1).mean()
    return [float(alpha * np.linalg.norm((f - origin) @ rest)) - DATA.energy(f) for f in NEW]


def mahalanobis(normal: Array, new: Array) -> list[float]:
    variances = normal.var(0)
    scale = np.sqrt(variances + 0.01**2 * variances.mean())
    standard = (normal - normal.mean(0)) / scale
    share = ledoit_wolf_shrinkage(standard)
    inverse = np.linalg.inv((1 - share) * np.cov(standard.T, bias=True) + share * np.eye(SIZE))
    away = (new - normal.mean(0)) / scale
    return [float(z @ inverse @ z) for z in away]


def mds(normal: Array, new: Array) -> list[float]:
    means = [normal[DATA.classes == c].mean(0) for c in range(N_CLASSES)]
    centred = np.concatenate([normal[DATA.classes == c] - means[c] for c in range(N_CLASSES)])
    precision = EmpiricalCovariance(assume_centered=False).fit(centred).precision_
    return [min(float((f - mean) @ precision @ (f - mean)) for mean in means) for f in new]


def dfm() -> list[float]:
    ratios = PCA().fit(NORMAL).explained_variance_ratio_
    pca = PCA(int((np.cumsum(ratios) < 0.97).sum()), svd_solver="full").fit(NORMAL)
    return [float(np.sum((f - pca.inverse_transform(pca.transform(f[None]))[0]) ** 2)) for f in NEW]


def nci() -> list[float]:
    mean, found = NORMAL.mean(0), []
    for f in NEW:
        weight = DATA.weight[DATA.logits(f).argmax()].astype(np.float64)
        cosine = weight @ (f - mean) / np.linalg.norm(f - mean)
        found.append(-float(cosine + 0.0001 * np.abs(f).sum()))
    return found


def adascale() -> list[float]:
    def measure(f: Array, perturbed: Array) -> float:
        largest = np.argsort(-f, kind="stable")
        raised = sum(max(perturbed[i], 0.0) for i in largest[: int(SIZE * 5 / 100)])
        return float(raised + 10 * sum(abs(f[i] - perturbed[i]) for i in largest[: int(SIZE / 100)]))

    normal = [measure(*pair) for pair in zip(NORMAL, SHIFTED[0], strict=True)]
    found = []
    for f, perturbed in zip(NEW, SHIFTED[1], strict=True):
        own = measure(f, perturbed)
        least = np.mean([own >= each for each in normal])
        percentile = float(80 + (85 - 80) * (1 - least))
        found.append(-DATA.energy(shaped(f, "scale", percentile)))
    return found


def combood(k: int) -> list[float]:
    distances = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(UNIT_NORMAL).kneighbors(UNIT_NEW)[0][:, -1] ** 2
    peaks = [
        np.column_stack([peak, DATA.logits(f).max(1), -DATA.logits(f).min(1)])
        for peak, f in zip(PEAKS, (NORMAL, NEW), strict=True)
    ]
    scaler = StandardScaler().fit(peaks[0])
    power = PowerTransformer(method="yeo-johnson").fit(scaler.transform(peaks[0]))
    normal, new = (power.transform(scaler.transform(each)) for each in peaks)
    inverse = np.linalg.inv(np.cov(normal, rowvar=False) + np.eye(normal.shape[1]))
    return [SIZE**0.5 * float(np.log(d)) + float(z @ inverse @ z) for d, z in zip(distances, new, strict=True)]


def knn(k: int) -> list[float]:
    found = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(UNIT_NORMAL).kneighbors(UNIT_NEW)[0]
    return list(found[:, -1])


REFERENCES: dict[str, Callable[[], list[float]]] = {
    "msp": msp,
    "maxlogit": maxlogit,
    "energy": plain_energy,
    "ash": lambda: ash("s", 90),
    "ash:variant=b:percentile=65": lambda: ash("b", 65),
    "ash:variant=p": lambda: ash("p", 90),
    "scale": lambda: ash("scale", 85),
    "nnguide:k=10": lambda: nnguide(10),
    "fdbd": fdbd,
    "vim": lambda: vim(SIZE // 2),
    "mahalanobis": lambda: mahalanobis(NORMAL, NEW),
    "mahalanobis++": lambda: mahalanobis(UNIT_NORMAL, UNIT_NEW),
    "mds": lambda: mds(NORMAL, NEW),
    "mds++": lambda: mds(UNIT_NORMAL, UNIT_NEW),
    "dfm": dfm,
    "nci": nci,
    "adascale": adascale,
    "knn": lambda: knn(N_NORMAL // 100),
    "combood": lambda: combood(N_NORMAL // 100),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_baseline_ranks_images_as_its_reference(name: str) -> None:
    given: list[FeatureDict] = [
        {PENULTIMATE: f, PERTURBED: shifted, EXTREMES: peaks}
        for f, shifted, peaks in zip((DATA.normal, DATA.new), SHIFTED, PEAKS, strict=True)
    ]
    classes = DATA.classes.astype(np.float64)
    baseline = make_baseline(name, Classifier(DATA.weight, DATA.bias)).fit({**given[0], CLASSES: classes})
    ours, reference = baseline.score(given[1]), np.array(REFERENCES[name]())
    assert_ranked_alike(ours, reference, rtol=1e-4 if name in ("mahalanobis", "mahalanobis++", "combood") else 1e-8)


def test_ash_b_leaves_zeros_where_few_features_are_positive() -> None:
    sparse = np.where(np.quantile(NEW, 0.8, axis=1, keepdims=True) <= NEW, NEW, 0)
    filled = [np.where(f > 0, f.sum() / (SIZE - round(SIZE * 0.65)), 0) for f in sparse]
    baseline = make_baseline("ash:variant=b:percentile=65", Classifier(DATA.weight, DATA.bias))
    assert_ranked_alike(baseline.score({PENULTIMATE: sparse}), np.array([-DATA.energy(f) for f in filled]), rtol=1e-8)


@pytest.fixture(scope="module")
def pixels() -> Pixels:
    photos = sample_photos(["cat", "coffee", "temple", "coins"])
    return np.stack([image.pixels for image in crops(photos, 10, size=256, seed=0)])


@pytest.mark.slow
@torch.inference_mode()
def test_activation_cdfs_rank_images_as_histograms_of_1000_bins_do(pixels: Pixels) -> None:
    network = ResNet50.from_tensors(convert_keras(keras_variables()).tensors)
    backbone = ClassifierBackbone("resnet50", network)
    noisy = np.clip(pixels + np.random.default_rng(0).normal(0, 25, pixels.shape), 0, 255).astype(np.uint8)
    normal, new = pixels[::2], np.concatenate([pixels[1::2], noisy[::4]])
    baseline = ActivationCDF(backbone.classifier, layer_sizes=backbone.layer_sizes)
    ours = baseline.fit(backbone.extract(normal, [DISTRIBUTIONS])).score(backbone.extract(new, [DISTRIBUTIONS]))
    maps = [network.layers(network.prepare(torch.from_numpy(each)))[0] for each in (normal, new)]
    reference = np.zeros(len(new))
    for known, asked in zip(*maps, strict=True):
        sums = np.zeros(len(normal) + len(new))
        for channel in range(known.shape[1]):
            values = known[:, channel].numpy()
            low, high = values.min() - 0.2 * np.ptp(values), values.max() + 0.2 * np.ptp(values)
            edges = np.linspace(low, high, 1001)
            pooled = np.histogram(values, edges)[0].cumsum() / values.size
            for place, image in enumerate([*values, *asked[:, channel].numpy()]):
                cumulated = np.histogram(np.clip(image, low, high), edges)[0].cumsum() / image.size
                sums[place] += np.abs(cumulated - pooled).mean()
        clean = sums[: len(normal)]
        reference += (sums[len(normal) :] - clean.mean()) / clean.std()
    assert spearmanr(ours, reference).statistic > 0.99


def test_niqe_measures_from_the_sharp_blocks_of_normal_images(pixels: Pixels) -> None:
    """From the definition: moments of a block, a search for the shape, one image and block at a time."""
    features = PixelStatistics().extract(pixels[::2], [SCENE]), PixelStatistics().extract(pixels[1::2], [SCENE])
    ours = make_baseline("niqe", Classifier(DATA.weight, DATA.bias)).fit(features[0]).score(features[1])
    normal, new = ([by_blocks(image) for image in each] for each in (pixels[::2], pixels[1::2]))
    sharp = np.array([f for blocks in normal for s, f in blocks if s >= 0.75 * max(other for other, _ in blocks)])
    reference = []
    for blocks in new:
        values = np.array([f for _, f in blocks])
        away = values.mean(0) - sharp.mean(0)
        inverse = np.linalg.pinv((np.cov(values.T) + np.cov(sharp.T)) / 2)
        reference.append(float(away @ inverse @ away) ** 0.5)
    assert spearmanr(ours, reference).statistic > 0.99
    np.testing.assert_allclose(ours, reference, rtol=0.02)


def by_blocks(image: NDArray[np.uint8]) -> list[tuple[float, list[float]]]:
    """The sharpness and the 36 statistics of each block of 96 pixels."""
    grey = (image.astype(np.float64) @ [0.299, 0.587, 0.114]).round()[:192, :192]
    window = np.exp(-(np.arange(-3, 4)[:, None] ** 2 + np.arange(-3, 4) ** 2) / (2 * (7 / 6) ** 2))
    half = torch.from_numpy(grey)[None, None]
    small = torch.nn.functional.interpolate(half, scale_factor=0.5, mode="bicubic", antialias=True)[0, 0].numpy()
    normalised = []
    for values in (grey, small):
        mean, square = (correlate(x, window / window.sum(), mode="nearest") for x in (values, values**2))
        deviation = np.sqrt(np.abs(square - mean**2))
        normalised.append(((values - mean) / (deviation + 1), deviation))
    found = []
    for row, column in np.ndindex(2, 2):
        statistics: list[float] = []
        for (values, _), side in zip(normalised, (96, 48), strict=True):
            block = values[row * side : (row + 1) * side, column * side : (column + 1) * side]
            shape, left, right = generalised_gaussian(block)
            statistics += [shape, (left + right) / 2]
            for shift in ((0, 1), (1, 0), (1, 1), (1, -1)):
                shape, left, right = generalised_gaussian(block * np.roll(block, shift, (0, 1)))
                statistics += [shape, (right - left) * gamma(2 / shape) / gamma(1 / shape), left, right]
        sharpness = normalised[0][1][row * 96 : (row + 1) * 96, column * 96 : (column + 1) * 96].mean()
        found.append((float(sharpness), statistics))
    return found


def generalised_gaussian(block: Array) -> tuple[float, float, float]:
    left, right = (np.sqrt(np.mean(block[side] ** 2)) for side in (block < 0, block > 0))
    ratio = left / right
    wanted = np.mean(np.abs(block)) ** 2 / np.mean(block**2) * (ratio**3 + 1) * (ratio + 1) / (ratio**2 + 1) ** 2
    shape = brentq(lambda a: gamma(2 / a) ** 2 / (gamma(1 / a) * gamma(3 / a)) - wanted, 0.1, 20)
    scale = float(np.sqrt(gamma(1 / shape) / gamma(3 / shape)))
    return shape, left * scale, right * scale


RANKED = ("rankfeat", "rankfeat:blocks=4", "rankfeat:blocks=3", "rankfeat-weight")


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKED)
@torch.inference_mode()
def test_rank_one_goes_out_of_resnet50_as_its_authors_take_it(name: str, pixels: Pixels) -> None:
    """Out of the kernels as they were trained: BatchNorm comes after them, and is not folded in the reference."""
    variables = keras_variables()
    backbone = ClassifierBackbone("resnet50", ResNet50.from_tensors(convert_keras(variables).tensors))
    if name == "rankfeat-weight":
        for place in ("res5c_branch2b", "res5c_branch2c"):
            kernel = torch.from_numpy(variables[f"{place}/kernel"]).permute(3, 2, 0, 1).double()  # outputs first
            reduced = by_full_svd(kernel.flatten(1)[None, :, :, None]).view_as(kernel)
            variables[f"{place}/kernel"] = reduced.permute(2, 3, 1, 0).float().numpy()
    keras = KerasResNet50(variables)
    *_, before, last = keras.maps(pixels)
    last, before = by_full_svd(last), by_full_svd(before)
    for block in "abc":
        before = keras.block(before, f"5{block}", stride=2 if block == "a" else 1)
    chosen = {"rankfeat": (last, before), "rankfeat:blocks=3": (before,)}.get(name, (last,))
    weight, bias = (keras.variables[f"fc1000/{part}"].numpy() for part in ("kernel", "bias"))
    logits = np.mean([maps.mean((2, 3)).numpy() @ weight + bias for maps in chosen], axis=0)
    baseline = make_baseline(name, backbone.classifier)
    ours = baseline.score(backbone.extract(pixels, baseline.needs))
    assert_ranked_alike(ours, -logsumexp(logits, axis=1), rtol=1e-4)
