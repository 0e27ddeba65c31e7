"""Every baseline ranks images as a reference does that shares no code with it.

References follow the public programs that docs/benchmark.md names, in numpy, scipy and scikit-learn, with plain loops
and explicit decompositions.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from scipy.stats import spearmanr
from sklearn.covariance import EmpiricalCovariance, ledoit_wolf_shrinkage
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from discopatch.bench.baselines import CLASSES, make_baseline
from discopatch.bench.networks.base import PENULTIMATE, Array, Classifier, ClassifierBackbone, FeatureDict
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


def mahalanobis() -> list[float]:
    variances = NORMAL.var(0)
    scale = np.sqrt(variances + 0.01**2 * variances.mean())
    standard = (NORMAL - NORMAL.mean(0)) / scale
    share = ledoit_wolf_shrinkage(standard)
    inverse = np.linalg.inv((1 - share) * np.cov(standard.T, bias=True) + share * np.eye(SIZE))
    away = (NEW - NORMAL.mean(0)) / scale
    return [float(z @ inverse @ z) for z in away]


def mds() -> list[float]:
    means = [NORMAL[DATA.classes == c].mean(0) for c in range(N_CLASSES)]
    centred = np.concatenate([NORMAL[DATA.classes == c] - means[c] for c in range(N_CLASSES)])
    precision = EmpiricalCovariance(assume_centered=False).fit(centred).precision_
    return [min(float((f - mean) @ precision @ (f - mean)) for mean in means) for f in NEW]


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
    "mahalanobis": mahalanobis,
    "mds": mds,
    "knn": lambda: knn(N_NORMAL // 100),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_baseline_ranks_images_as_its_reference(name: str) -> None:
    normal: FeatureDict = {PENULTIMATE: DATA.normal, CLASSES: DATA.classes.astype(np.float64)}
    baseline = make_baseline(name, Classifier(DATA.weight, DATA.bias)).fit(normal)
    ours, reference = baseline.score({PENULTIMATE: DATA.new}), np.array(REFERENCES[name]())
    assert_ranked_alike(ours, reference, rtol=1e-4 if name == "mahalanobis" else 1e-8)


@pytest.fixture(scope="module")
def pixels() -> Pixels:
    photos = sample_photos(["cat", "coffee", "temple", "coins"])
    return np.stack([image.pixels for image in crops(photos, 10, size=256, seed=0)])


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
