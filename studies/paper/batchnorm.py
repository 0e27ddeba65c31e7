"""What BatchNorm does to a model of whole images: learned statistics, those of pure batches, and of mixed ones."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from discopatch.bench.bootstrap import Estimate
from discopatch.encoders import resolve_device
from discopatch.errors import ParameterError
from discopatch.images import Pixels
from discopatch.images.tensors import to_unit
from discopatch.model import Discriminator, Weights, channels_last
from paper.dataset import TEST, Dataset, set_groups
from paper.plan import Plan
from paper.scoring import THREADS, Floats, Resamples, scoring_precision

Batches = NDArray[np.int64]  # (batches, images of a batch): indices of images

IMAGES_AT_ONCE = 256


def pure_batches(images: int, batch: int, rng: np.random.Generator) -> Batches:
    """All images in a random order, cut into batches; the last is filled up from the beginning of the order.

    So every image is in a batch of exactly that size, and none is in a batch twice.
    """
    check_enough(images, batch)
    return in_turn(images, ceil(images / batch), batch, rng)


def mixed_batches(normal: int, shifted: int, batch: int, *, shifted_each: int, rng: np.random.Generator) -> Batches:
    """Each batch holds `shifted_each` shifted images and normal ones; the indices of shifted ones follow all normal.

    There are so many batches that every image of either kind is in one at least.
    """
    normal_each = batch - shifted_each
    if not 0 < shifted_each < batch:
        raise ParameterError(f"{shifted_each} of {batch} images: a mixed batch has some of both kinds")
    check_enough(normal, normal_each)
    check_enough(shifted, shifted_each)
    count = max(ceil(normal / normal_each), ceil(shifted / shifted_each))
    return np.concatenate(
        [in_turn(normal, count, normal_each, rng), normal + in_turn(shifted, count, shifted_each, rng)], axis=1
    )


def in_turn(images: int, count: int, each: int, rng: np.random.Generator) -> Batches:
    """(count, each): a random order of the images, over and over."""
    return np.resize(rng.permutation(images), (count, each)).astype(np.int64)


def first_scores(batches: Batches, scores: NDArray[np.floating], images: int) -> Floats:
    """(images,): each image's score in the first batch that it is in."""
    first = np.full(images, np.nan)
    first[batches.ravel()[::-1]] = scores.ravel()[::-1]  # of an image that occurs again, the last one written stays
    return first


def check_enough(images: int, wanted: int) -> None:
    if images < wanted:
        raise ParameterError(f"{images} images are too few for {wanted} in a batch: take smaller batches")


class BatchNormScorer:
    """A discriminator of whole images with BatchNorm; scores are minus the logit.

    `score` uses the learned statistics, so that each image is scored by itself. `score_batches` normalises each batch
    by its own mean and variance, as `nn.BatchNorm2d` does with `track_running_stats` off: here by PatchNorm whose group
    is the batch, so that several batches pass at once and none uses another's statistics.
    """

    def __init__(self, discriminator: Discriminator, device: str | torch.device) -> None:
        architecture = discriminator.architecture
        if architecture.normalisation != "batch":
            raise ParameterError(
                f"normalisation is {architecture.normalisation!r}: only BatchNorm has learned statistics"
            )
        by_batch = Discriminator(replace(architecture, normalisation="patch"))
        by_batch.load_state_dict(discriminator.state_dict())
        self.device = resolve_device(device)
        self._learned = deepcopy(discriminator).to(self.device).eval()
        self._by_batch = channels_last(by_batch.to(self.device)).eval()

    def load(self, *images: Pixels) -> Tensor:
        """Arrays (N, size, size, 3) in uint8, one after the other, as one tensor on the device."""
        return torch.cat([torch.from_numpy(np.ascontiguousarray(each)).to(self.device) for each in images])

    def score(self, images: Tensor) -> Floats:
        """(N,)."""
        return self._scores(images, np.arange(len(images))[:, None], self._learned, group=None).ravel()

    def score_batches(self, images: Tensor, batches: Batches) -> Floats:
        """(batches, images of a batch)."""
        return self._scores(images, batches, self._by_batch, group=batches.shape[1])

    @torch.inference_mode()
    def _scores(self, images: Tensor, batches: Batches, network: Discriminator, group: int | None) -> Floats:
        rows = max(1, IMAGES_AT_ONCE // batches.shape[1])
        indices = torch.from_numpy(batches).to(self.device)
        logits = [
            network(to_unit(images[part.flatten()].permute(0, 3, 1, 2)), group).logits.view(part.shape)
            for part in indices.split(rows)
        ]
        return -torch.cat(logits).double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class SetScores:
    """The scores of the test photos and of one set, in one round of batches."""

    group: str
    name: str
    round: int
    normal: Floats
    shifted: Floats


@dataclass(frozen=True, eq=False)
class BatchStudy:
    """All ways to put the images into batches; sizes for which there are too few images give nothing."""

    scorer: BatchNormScorer
    dataset: Dataset
    plan: Plan

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        groups = set_groups(self.plan, [self.plan.one_severity])
        return {name: groups[name] for name in ("near", "far", "covariate")}

    @property
    def pools(self) -> list[tuple[str, tuple[str, ...]]]:
        """Group and members of the sets that share batches; each corruption has batches of its own."""
        groups = self.groups
        return [(name, groups[name]) for name in ("near", "far")] + [
            ("covariate", (name,)) for name in groups["covariate"]
        ]

    @property
    def rounds(self) -> range:
        return range(self.plan.rounds)

    def learned(self) -> Iterator[SetScores]:
        """By the running statistics."""
        normal = self.scorer.score(self._load(TEST))
        for group, names in self.groups.items():
            for name in names:
                yield SetScores(group, name, 0, normal, self.scorer.score(self._load(name)))

    def pure(self, batch: int) -> Iterator[SetScores]:
        """Every batch holds either test photos or shifted images, those of a pool together."""
        yield from self._pure(batch, self.pools)

    def own_sets(self, batch: int) -> Iterator[SetScores]:
        """The same with shifted images of one set alone."""
        groups = self.groups
        yield from self._pure(batch, [(group, (name,)) for group in ("near", "far") for name in groups[group]])

    def mixed(self, batch: int, shifted_each: int, *, limit: int | None = None) -> Iterator[SetScores]:
        """Test photos and shifted images, of each set at most `limit`, in one batch; with a limit, one round."""
        photos = self.dataset.images(TEST)
        for group, names in self.pools:
            shifted = [self.dataset.images(name)[:limit] for name in names]
            count = sum(map(len, shifted))
            if len(photos) < batch - shifted_each or count < shifted_each:
                continue
            images = self.scorer.load(photos, *shifted)
            for number in self.rounds if limit is None else self.rounds[:1]:
                rng = self._rng(batch, names, number)
                batches = mixed_batches(len(photos), count, batch, shifted_each=shifted_each, rng=rng)
                scores = first_scores(batches, self.scorer.score_batches(images, batches), len(images))
                for name, each in self._split(names, scores[len(photos) :], limit):
                    yield SetScores(group, name, number, scores[: len(photos)], each)

    def _pure(self, batch: int, pools: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[SetScores]:
        photos = self._load(TEST)
        if len(photos) < batch:
            return
        normal = [self._score_pure(photos, batch, (TEST,), number) for number in self.rounds]
        for group, names in pools:
            images = self._load(*names)
            if len(images) < batch:
                continue
            for number in self.rounds:
                scores = self._score_pure(images, batch, names, number)
                for name, each in self._split(names, scores, None):
                    yield SetScores(group, name, number, normal[number], each)

    def _score_pure(self, images: Tensor, batch: int, names: Sequence[str], number: int) -> Floats:
        batches = pure_batches(len(images), batch, self._rng(batch, names, number))
        return first_scores(batches, self.scorer.score_batches(images, batches), len(images))

    def _load(self, *names: str) -> Tensor:
        return self.scorer.load(*map(self.dataset.images, names))

    def _split(self, names: Sequence[str], scores: Floats, limit: int | None) -> Iterator[tuple[str, Floats]]:
        """The sets of a pool apart again."""
        sizes = [len(range(self.dataset.size(name))[:limit]) for name in names]
        yield from zip(names, np.split(scores, np.cumsum(sizes)[:-1]), strict=True)

    def _rng(self, batch: int, names: Sequence[str], number: int) -> np.random.Generator:
        return np.random.default_rng([self.plan.seed, batch, number, crc32("+".join(names).encode())])


def batchnorm_bias(weights: Weights, dataset: Dataset, plan: Plan, device: str) -> dict[str, Any]:
    """AUROC of every group of sets by where the statistics come from.

    Batches of other images than photos are drawn from all sets of a group together, so that there are enough for the
    largest; `own sets` has batches of one set alone, as far as sets are large enough. Corrupted photos are always in
    batches of one corruption. Each round draws the batches anew.
    """
    study = BatchStudy(BatchNormScorer(weights.discriminator, device), dataset, plan)
    sizes = [size for size in plan.batch_sizes if size > 1]
    resamples = Resamples(plan.seed, plan.resamples)
    with scoring_precision(plan.precision, device), ThreadPoolExecutor(THREADS) as threads:

        def summary(scores: Iterator[SetScores]) -> dict[str, Any]:
            return summarise([*scores], resamples, threads)

        return {
            "weights digest": weights.digest,
            "severity": plan.one_severity,
            "rounds": plan.rounds,
            "alone among normal": plan.single,
            "images": {group: sum(map(dataset.size, names)) for group, names in study.groups.items()},
            "learned": summary(study.learned()),
            "batch": {str(size): summary(study.pure(size)) for size in plan.batch_sizes},
            "own sets": {str(size): summary(study.own_sets(size)) for size in plan.batch_sizes},
            "half": {str(size): summary(study.mixed(size, size // 2)) for size in sizes},
            "one": {str(size): summary(study.mixed(size, 1, limit=plan.single)) for size in sizes},
        }


def summarise(scores: Sequence[SetScores], resamples: Resamples, threads: ThreadPoolExecutor) -> dict[str, Any]:
    """By group: the mean AUROC over its sets and all rounds, and that of each round; none for a group without any."""

    def compare(each: SetScores) -> Estimate:
        return resamples.auroc(each.normal, each.shifted, each.name)

    estimates = [*zip(scores, threads.map(compare, scores), strict=True)]
    summary = {}
    for group in dict.fromkeys(each.group for each in scores):
        own = [(each, estimate) for each, estimate in estimates if each.group == group]
        rounds: dict[int, list[float]] = {}
        for each, estimate in own:
            rounds.setdefault(each.round, []).append(estimate.value)
        summary[group] = {
            "auroc": Estimate.mean([estimate for _, estimate in own]).rounded(),
            "rounds": [round(float(np.mean(values)), 5) for values in rounds.values()],
            "sets": sorted({each.name for each, _ in own}),
        }
    return summary
